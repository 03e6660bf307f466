"""NetworkTopology: which nodes probe which, what their samples cost, and what bandwidth is taken between zones.

`weights`, `bandwidth` and `status` are pure; `planner` writes the probe plan, `reconciler` the weights and the
status, `results` stores the ConfigMaps that samples arrive in. The rules of pricing themselves are in `netperf`.
May import `controller.cluster`; of a NetworkTopology it writes its own weight, annotation and status, and no other.
"""
