"""Traffic: who talks to whom and how much, what that says about applications, and what it costs.

May import `controller.cluster` and `controller.prometheus`. Reading is in `sources`; everything else is pure: flows to a graph
of dependencies (`graph`), a graph to AppGroups (`proposals`), bytes to money (`prices`, `money`).
"""
