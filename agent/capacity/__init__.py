"""Publishes the node's network capacity as the extended resource ``network.aware.com/bandwidth``.

`link_reader` and `sysfs` read `links`; `rules` and `publication` decide without I/O; `node_capacity` chooses, with the table of
`instances`; `publisher` writes; `metrics` exports. An unknown capacity is not published. May not import the agent's other packages.
"""
