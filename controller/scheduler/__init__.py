"""Schedules beside an unmodified kube-scheduler: by network cost, allocatable resources and topological order.

`rules` scores nodes pod by pod, from `state`; `placement/` plans a whole group; `gating/` releases its pods in order; `extender/` or
`affinity` hands the plan to kube-scheduler; `explain` and `advice` report. May import `controller.cluster`, `controller.appgroups`,
`controller.topology` and `controller.traffic`; writes only pods.
"""
