"""The emulated wide-area network between the lab's nodes.

Where the kernel has the netem qdisc, it delays packets on the nodes' devices. Many kernels, those of CI machines and
containers among them, have none; there each node's namespace has a TUN device, and one process carries packets from one to
the other when they are due. The delays are emulated; the packets, the TCP stacks and netperf's measurements are real.
"""
