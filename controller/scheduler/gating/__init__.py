"""Holds pods at their scheduling gate until it is their turn and their group has a plan, then opens the gate.

`controller` reconciles one group at a time, `group_plans` keeps its plan, `release` decides whose turn it is (pure), `pod_updater` writes.
"""
