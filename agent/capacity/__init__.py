"""Publishes the node's network capacity as the extended resource ``network.aware.com/bandwidth``.

`kernel`, `sysfs` and `links` read, `rules` and `node_bandwidth` decide (pure), `publisher` writes. An unknown capacity is not published.
May import `netperf.contract`, kubekit, and of the agent's other packages only what reads its own node.
"""
