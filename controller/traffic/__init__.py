"""Traffic between workloads: reads it from Prometheus, proposes AppGroups from it, and computes its price.

`sources` reads flows, and `reconciler` writes to the API server. The other modules do no I/O: `workloads` and `graph` find dependencies,
`proposals` makes AppGroups, `drift` compares AppGroups with traffic, `weights` decodes annotations, `prices` and `bill` compute prices,
`metrics` exports them. May import `controller.cluster` and `controller.prometheus`.
"""
