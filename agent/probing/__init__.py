"""The agent's part in measuring latency: answer probes, run those of the zone's plan, hand on what they read.

One probe at a time; a failure yields no number. How a probe is done and what a sample is worth is `netperf`'s; this package keeps the
time table, the secret, the announcement on the node and the writing of results.
"""
