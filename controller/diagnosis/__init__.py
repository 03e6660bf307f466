"""What is wrong, because of what, since when, whom it hurts, and what to do: one pure function from objects to findings.

May import `controller.cluster` and `controller.groups`. Commands, page and events show findings; none of them judges for itself.
"""
