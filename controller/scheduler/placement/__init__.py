"""Whole groups at once: a host for every replica. Everybody who plans does it in these steps.

`inputs` builds the snapshot of a group from the cluster, and `planner` its plan: `problem_builder` makes arrays (`problem`), `solve`
searches (`native`, compiled), and `judge` says what a placement is worth. The leader's plans are made in a process of their own (`worker`).
"""
