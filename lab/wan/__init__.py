"""The emulated wide-area network between the lab's nodes.

Each node's namespace has a TUN device. One process forwards packets between these devices after a delay, because many kernels lack netem.
"""
