"""NetworkTopology: plans probes between nodes, turns samples into costs, and sums the bandwidth between zones.

`planner` writes the probe plan of `probe_nodes`, `results_names` names the ConfigMaps with samples, `decision` computes costs from them
by the rules of `netperf`, with `bandwidth`; `weights` builds NetperfCosts and `status` the conditions; `reconciler` writes both, and the
annotation with latencies. `config` has settings, `metrics` gauges. May import `controller.cluster`.
"""
