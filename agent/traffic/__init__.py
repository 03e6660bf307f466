"""Counts bytes between pods from the node's connection tracking. Off by default.

`conntrack` reads the kernel's table, `ledger` adds up (pure), `manager` runs both and exports the metrics.
"""
