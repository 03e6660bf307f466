"""Checks in the kernel whether pods are limited as their bandwidth annotations say, and repairs limits when told to enforce.

`annotations`, `locate` and `traffic_control` read, `rules` decides (pure), `kernel` writes. A qdisc, filter or program of another
writer is never removed. May import `netperf.contract`, kubekit, and the agent's `config`, `netlink` and `rtnetlink`.
"""
