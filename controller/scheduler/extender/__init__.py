"""The scheduler extender: answers kube-scheduler's filter, prioritize and preempt over HTTP, from memory.

`handler` decides, `encoding` writes the answers from the JSON of `node_index`, and `program` is the process with its stores and its
server. May import the rules and the state of `controller.scheduler`, and nothing that plans or writes.
"""
