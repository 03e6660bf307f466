"""A cluster on one machine: a real control plane, nodes as network namespaces, an emulated wide-area network.

Pods are simulated by kwok, so nothing runs in them, unless nodes are real (`lab.realnode`).
"""
