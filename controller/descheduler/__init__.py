"""Evicts pods from overutilized nodes (LowNodeLoad) and from nodes far from their dependencies, when a move is likely to help.

`decide` decides a round from a snapshot and a history, without a clock or a cluster. `conditions` lists what must hold before a pod
is evicted. `program` reads usage, decides, records moves and evicts pods in a loop. May import `controller.scheduler` and the
packages below it.
"""
