"""AppGroups: the order of a group's workloads, and a status that says how the group fares.

`order` is pure and shared with the scheduler's gates; `status` computes what to write; `reconciler` writes it. The graph itself
is `controller.cluster.graph`, since others read it too. The spec is the user's and is never touched. May import
`controller.cluster`.
"""
