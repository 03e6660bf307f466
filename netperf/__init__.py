"""The domain: what a latency measurement between two zones is, and what it is worth.

Rules here are pure: time and randomness are arguments and nothing waits. Only ``netperf.probers`` touches the network,
so that every rule can be tried with plain values. Nothing here knows of Kubernetes beyond the limits of a ConfigMap.
"""
