"""The domain: which pairs of nodes to probe, when a latency sample counts, and what it costs.

`sample` flags a sample, `smoothing` decides when a jump counts, `consensus` compares node pairs, `costs` computes the costs of zone
pairs. All but `netperf.probers` is pure: time and randomness are arguments.
"""
