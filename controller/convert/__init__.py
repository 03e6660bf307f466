"""Converts AppGroups and NetworkTopologies of older API groups and spellings. May import `controller.cluster`; reads no cluster."""
