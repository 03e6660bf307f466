"""The central programs: compute network costs, order AppGroups, plan placements, answer kube-scheduler, evict misplaced pods.

`manager` starts the controllers, `config` is their configuration. A controller reads a snapshot, decides in a pure function of
snapshot and time, and writes. import-linter checks which package may import which (docs/architecture.md).
"""
