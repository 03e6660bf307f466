"""LowNodeLoad and network misplacement: which pods should move, whether a move is likely to help, and when to stop.

``plan`` decides, from a snapshot and a state, without looking at a clock or a cluster; ``program`` reads, decides, evicts and
remembers. The dry-run prints what ``plan`` decides and the live loop executes the same value.
May import `controller.scheduler` and what is below; evicts through disruption budgets alone, and remembers before it acts.
"""
