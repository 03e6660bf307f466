"""Checks in the kernel whether pods are limited as their bandwidth annotations say, and repairs limits in ``enforce``.

`annotations`, `processes`, `cni`, `tc_reader`, `snapshot` and `counters` read; `rules`, `foreign`, `backoff` and `meters` decide without I/O;
`tc_writer` writes; `manager` runs them. A qdisc, filter or program of another writer is never removed.
"""
