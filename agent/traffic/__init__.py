"""Counts bytes between pods from the node's connection tracking. Off by default.

`conntrack` reads the kernel's table, `edges` adds up bytes by client and server without I/O, `collector` runs both and exports the metrics.
"""
