"""Counts bytes between pods from the node's connection tracking. Off by default.

`conntrack` reads the kernel's table, `edges` adds up (pure), `manager` runs both and exports the metrics.
"""
