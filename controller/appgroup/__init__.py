"""AppGroups: the graph of dependencies, its order, and a status that says how the group fares.

`graph` and `order` are pure and shared with the scheduler's gates and planner; `status` computes what to write; `reconciler`
writes it. The spec is the user's and is never touched.
"""
