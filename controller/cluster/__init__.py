"""One picture of the cluster, for every room of the controller.

It holds the objects as they are read, the stores that keep them, and one rule for each question that several packages ask: where a
node is, what a pod asks for, where it may run, whose group it belongs to, what the way between two places costs. Packages may
import it; it imports no room.
"""
