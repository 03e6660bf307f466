"""A cluster on one machine: a real control plane, nodes as network namespaces, an emulated wide-area network.

Placement by latency can only be shown where latencies differ; the lab makes them differ on a laptop and in CI, on a
control plane that is the same code as everywhere else. Only pods are simulated (kwok): nothing runs in them.
"""
