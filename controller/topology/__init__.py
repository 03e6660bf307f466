"""NetworkTopology: plans probes between nodes, turns samples into costs, and sums the bandwidth between zones.

`planner` writes the probe plan, `results_names` names the ConfigMaps with samples, `decision` computes costs from them (pure) by the
rules of `netperf`, `reconciler` writes NetperfCosts, the annotation with latencies and the status. May import `controller.cluster`.
"""
