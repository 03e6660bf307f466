"""Evicts pods from overutilized nodes, from nodes far from their dependencies, and from the only zone of a workload.

`decide` decides a round from a snapshot and a history, without a clock or a cluster; the planner confirms the moves. `conditions`
lists what must hold before a pod is evicted. `program` reads usage, decides, records moves and evicts pods in a loop. May import
`controller.scheduler` and the packages below it.
"""
