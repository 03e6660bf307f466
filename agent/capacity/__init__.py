"""What the node's network can carry: from links and their speeds to the extended resource ``network.aware.com/bandwidth``.

`kernel`, `sysfs` and `links` read, `rules` and `node_bandwidth` decide (pure), `publisher` writes. A number that nobody knows is not published.
May import `netperf.contract` and kubekit; the agent's other packages only for its own node.
"""
