"""Real nodes in a lab: a kubelet, containerd and CNI plugins in the node's network namespace, with a root of their own."""
