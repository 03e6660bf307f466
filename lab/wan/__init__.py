"""The emulated wide-area network between the lab's nodes.

Each namespace has a TUN device, and one process delays and forwards their packets, because many kernels lack netem. Delays are emulated;
packets, TCP stacks and netperf are real.
"""
