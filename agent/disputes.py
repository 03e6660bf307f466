"""Constants of disputes, in which another program repeatedly replaces what the agent writes, and of the back-off between its writes."""

DISPUTE_THRESHOLD = 3
"""Number of writes within `DISPUTE_WINDOW_S`, each replaced by another program, that make a dispute."""
DISPUTE_WINDOW_S = 600.0
"""Capacity: each write is forgotten after this time. Limits of one device: all are forgotten this long after the last attempt."""
FIRST_BACKOFF_S, MAX_BACKOFF_S = 5.0, 300.0
"""First and longest delay between repeated writes."""
