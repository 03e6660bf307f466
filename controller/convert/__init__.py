"""Converts AppGroups and NetworkTopologies of older API groups and spellings. May import `controller.cluster` and the orders of
`controller.appgroups`; reads no cluster.
"""
