"""What kube-scheduler asks over HTTP: filter, prioritize and preempt, answered from memory.

`handler` reads a question, `wire` puts the answer together as bytes, `program` is the process with its stores and its server.
May import the rules and the state of `controller.scheduler`, and nothing of what plans or writes.
"""
