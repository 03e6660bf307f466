"""Publishes the node's network capacity as the extended resource ``network.aware.com/bandwidth``.

`link_reader` and `sysfs` read; `rules`, `instances`, `node_bandwidth` and `publication` decide (pure); `publisher` writes;
`metrics` exports. An unknown capacity is not published. May not import the agent's other packages.
"""
