"""Real nodes in a lab: each has a kubelet, containerd, CNI plugins, a network namespace and a root directory."""
