"""NetworkTopology: plans which nodes probe which, turns their samples into costs, and counts bandwidth between zones.

`planner` writes the probe plan, `results` stores the samples, `decision` computes costs from them (pure) by the rules of `netperf`, `reconciler`
writes weights and status. May import `controller.cluster`; of a NetworkTopology it writes only its own weight, annotation and status.
"""
