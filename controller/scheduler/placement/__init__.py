"""Plans a whole group: a host for every replica. The controller, the descheduler and the commands plan through the same modules.

`inputs` builds the snapshot of a group, and `planner` its plan: `problem_builder` builds arrays (`problem`), with `annotations`,
`call_costs` and `pod_topology`; `solve` runs searches in C (`native_search`), and `evaluation` evaluates their results. The controller plans in
a separate process (`worker`).
"""
