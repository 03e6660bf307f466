"""The agent's part in measuring latency: answer probes, run those of the zone's plan, hand on what they read."""
