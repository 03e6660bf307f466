"""The emulated wide-area network between the lab's nodes.

Each node's namespace has a TUN device, and one process carries packets from one to the other when they are due, since many
kernels, those of CI machines and containers among them, have no netem. The delays are emulated; the packets, the TCP stacks
and netperf's measurements are real.
"""
