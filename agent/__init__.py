"""The program on every node: publishes what the node's network can carry, keeps pods to their limits, measures latency.

Nothing here needs the official Kubernetes client: an agent that runs ten thousand times must be small.
"""
