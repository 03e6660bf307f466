"""Traffic between workloads: reads it from Prometheus, proposes AppGroups from it, and computes its price.

`sources` reads flows, and `reconciler` writes to the API server. The rest is pure: `workloads` and `graph` find dependencies,
`proposals` makes AppGroups, `drift` compares, `weights` decodes annotations, `prices` and `bill` compute prices.
May import `controller.cluster` and `controller.prometheus`.
"""
