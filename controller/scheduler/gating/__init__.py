"""Holds pods at their scheduling gate until it is their turn and their group has a plan, then opens the gate.

Begin with `controller`, which reconciles groups and names the other modules. `opener` is a program of its own.
"""
