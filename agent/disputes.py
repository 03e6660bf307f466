"""Constants of disputes with other programs that replace what the agent writes, and of the back-off between its writes."""

DISPUTE_WINDOW_S = 600.0
"""Time for which a replaced write counts. For the limits of one device it starts again at each attempt."""
DISPUTE_THRESHOLD = 3
"""Number of remembered writes, each replaced by another program, that make a dispute."""
FIRST_BACKOFF_S, MAX_BACKOFF_S = 5.0, 300.0
"""First and longest delay between repeated writes."""
