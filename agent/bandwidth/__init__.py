"""Checks in the kernel whether pods are limited as their bandwidth annotations say, and repairs limits in ``enforce``.

`annotations`, `processes`, `cni`, `tc_reader` and `counters` read; `rules`, `backoff` and `meters` decide (pure); `tc_writer` writes;
`manager` runs them. A qdisc, filter or program of another writer is never removed. May import `netperf.contract`, kubekit, and the agent's `config`, `netlink` and `rtnetlink`.
"""
