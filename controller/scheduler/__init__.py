"""Scheduling beside a stock kube-scheduler: network cost, allocatable resources and topological order.

`rules` scores nodes pod by pod; `placement/` plans a whole group; `gating/` releases its pods in order; `extender/` or `affinity` hands
the plan to kube-scheduler. May import `controller.cluster`, `controller.appgroups`, `controller.topology` and `controller.traffic`;
writes only pods.
"""
