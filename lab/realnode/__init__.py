"""Real nodes in a lab: a kubelet, containerd and CNI plugins, each with a network namespace and a root directory of its own."""
