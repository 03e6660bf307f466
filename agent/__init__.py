"""The program on every node: publishes the node's network capacity, checks pods' bandwidth limits, measures latency, counts traffic.

`program` starts its parts: `capacity`, `bandwidth`, `probing` and `traffic`. It never imports the official Kubernetes client, because
an agent runs on every node and must stay small.
"""
