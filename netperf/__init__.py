"""The domain: which pairs of nodes to probe, when a latency sample counts, and what it costs.

`sample` flags a run, `smoothing` decides when a jump counts, `consensus` compares node pairs, `costs` prices zone pairs. Everything but
`netperf.probers` is pure: time and randomness are arguments. Nothing here knows Kubernetes beyond the size limit of a ConfigMap.
"""
