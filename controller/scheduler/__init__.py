"""The scheduler plugins: network cost, allocatable resources and topological order, beside a stock kube-scheduler.

One set of rules (`rules`) and one plan for the whole group (`placement/`), released in order (`gating/`) and handed over in two
ways: as an extender (`extender/`), or as node affinity written while a pod is gated (`affinity`). May import `controller.cluster`,
`controller.appgroups`, `controller.topology` and `controller.traffic`; writes to pods, and to nothing else.
"""
