"""The cluster cache: stores of all kinds that the controller watches, and rules that several of its packages need.

| question | module |
|---|---|
| may a pod run on a node, and why not? | `eligibility`, `hosts`, `volumes` |
| which replica answers a call? | `services` |
| what does a pod request, and what is requested on a node? | `resource_requests`, `hosts` |
| which AppGroup does a pod belong to, and which workloads depend on which? | `membership`, `dependency_graph` |
| what does the path between two locations cost? | `costs` |

Every package of the controller may import this one; it imports none of them.
"""
