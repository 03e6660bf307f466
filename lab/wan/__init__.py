"""The emulated wide-area network between the lab's nodes.

Each node's namespace has a TUN device; one process forwards packets between them after a delay, because many kernels lack netem.
"""
