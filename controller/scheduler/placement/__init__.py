"""Plans a whole group: a host for every replica. The controller, the descheduler and the commands plan through the same modules.

`inputs` builds the snapshot of a group, and `planner` its plan: `problem_builder` compiles arrays (`problem`), `solve` runs searches in
C (`native`), `evaluation` evaluates a placement. The controller plans in a separate process (`worker`).
"""
