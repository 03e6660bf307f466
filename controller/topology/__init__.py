"""NetworkTopology: plans probes between nodes, turns samples into costs, and sums the bandwidth between zones.

`planner` writes the probe plan, `results` names the ConfigMaps with samples, `decision` computes costs from them (pure) by the
rules of `netperf`, `reconciler` writes NetperfCosts, the annotation of latencies and the status. May import `controller.cluster`.
"""
