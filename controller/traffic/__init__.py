"""Traffic between workloads: reads it from Prometheus, proposes AppGroups from it, and computes its price.

`sources` reads flows and `reconciler` writes. The rest is pure: `workloads` and `graph` find dependencies, `proposals` makes
AppGroups, `drift` compares, `prices` and `bill` compute prices. May import `controller.cluster` and `controller.prometheus`.
"""
