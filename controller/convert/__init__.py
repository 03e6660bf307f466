"""Reads AppGroups and NetworkTopologies in every spelling found in the field. May import `controller.cluster` and the orders of
`controller.appgroups`; knows nothing of a running cluster.
"""
