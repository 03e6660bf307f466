"""Who talks to whom: bytes between pods, counted from the node's connection tracking. Off unless switched on.

Reading the kernel is in `conntrack`; adding up is in `ledger`, pure; `supervisor` is what runs and what Prometheus sees.
"""
