"""Traffic between workloads: reads it from Prometheus, proposes AppGroups from it, and prices it.

`sources` reads; the rest is pure: `graph` finds dependencies, `proposals` makes AppGroups, `prices` and `money` make a bill. May import
`controller.cluster` and `controller.prometheus`.
"""
