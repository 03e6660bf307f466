"""Pods wait at a gate until it is their turn and their group has a plan; then they are handed to the scheduler.

`controller` puts it together for one group at a time.
"""
