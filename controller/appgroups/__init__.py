"""AppGroups: computes the order of a group's workloads and writes it, with conditions, to the group's status.

`order` is pure, `status` computes what to write, `reconciler` writes it. The graph is `controller.cluster.graph`. The spec is never
written. May import `controller.cluster`.
"""
