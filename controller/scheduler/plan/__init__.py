"""Whole groups at once: a host for every replica, on arrays alone.

`problem` says what is asked, `solve` finds a placement, `judge` says what a placement is worth. Nothing here knows Kubernetes'
objects: whoever reads those (`controller.scheduler.planner`, `simulate`) makes the arrays.
"""
