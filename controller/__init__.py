"""The central program: prices the network, orders applications, plans placements, answers kube-scheduler, evicts misplaced pods.

`manager` starts its parts, `config` is their configuration. Decisions are pure functions of a snapshot and a time; reading comes before
and writing after them, in functions of their own. Packages import one way (docs/architecture.md), which import-linter checks.
"""
