"""Converts AppGroups and NetworkTopologies of older API groups and spellings. Reads no cluster; may import `controller.cluster`."""
