"""LowNodeLoad and network misplacement: which pods should move, whether a move is likely to help, and when to stop.

`decide` decides, from a snapshot and a history, without looking at a clock or a cluster; `conditions` is the list of what every move
has to pass; `program` reads, decides, evicts and remembers. The dry-run prints what the live loop executes.
May import `controller.scheduler` and what is below; evicts through disruption budgets alone, and remembers before it acts.
"""
