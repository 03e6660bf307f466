"""Whether pods are kept to the bandwidth that their annotations name: found out from the kernel, and repaired if asked to.

`annotations`, `locate` and `traffic_control` read, `rules` judges and plans (pure), `kernel` carries out. Another program's qdisc, filter or
program is never removed. May import `netperf.contract` and kubekit; the agent's other packages only for its own node.
"""
