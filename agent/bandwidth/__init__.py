"""Checks in the kernel whether pods are limited as their bandwidth annotations say, and repairs limits in ``enforce``.

`annotations`, `processes`, `cni`, `tc_reader`, `snapshot` and `counters` read `state`; `rules`, `foreign`, `backoff` and `meters` decide
without I/O; `tc_writer` writes; `reporter` and `metrics` report; `manager` runs them. Other programs' limits stay, except the CNI plugin's.
"""
