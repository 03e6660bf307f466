"""AppGroups: computes the order of a group's workloads and writes it, with conditions, to the group's status.

`order` sorts, `status` computes the status, `reconciler` writes it. The spec is never written. The graph is in
`controller.cluster.dependency_graph`. May import `controller.cluster`.
"""
