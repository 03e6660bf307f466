"""The cluster cache: stores of all kinds the controller watches, and the only implementation of rules that several packages need.

| question | module |
|---|---|
| may a pod run on a node, and why not? | `eligibility` |
| which replica answers a call? | `services` |
| what does a pod request, and what is free on a node? | `requests`, `hosts` |
| which group does a pod belong to, and who depends on whom? | `membership`, `graph` |
| what does the path between two locations cost? | `costs` |

Every package of the controller may import this one; it imports none of them.
"""
