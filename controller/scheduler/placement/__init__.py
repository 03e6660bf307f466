"""Plans a whole group: a host for every replica. Controller, descheduler and commands plan through the same steps.

`inputs` builds the snapshot of a group and `planner` its plan: `problem_builder` makes arrays (`problem`), `solve` searches (`native`,
compiled), `evaluation` evaluates a placement. The controller plans in a process of its own (`worker`).
"""
