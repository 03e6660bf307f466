"""NetworkTopology: which nodes probe which, what their samples cost, and what bandwidth is taken between zones.

`places`, `weights`, `bandwidth` and `status` are pure; `planner` writes the probe plan, `reconciler` the weights and the
status, `results` mirrors the ConfigMaps that samples arrive in. The rules of pricing themselves are in `netperf`.
"""
