"""The program on every node: publishes the node's network capacity, checks pods' bandwidth limits, measures latency, counts traffic.

`program` starts the parts `capacity`, `bandwidth`, `probing` and `traffic`. The agent never imports the official Kubernetes client,
because it runs on every node and must stay small.
"""
