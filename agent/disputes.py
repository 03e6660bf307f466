"""Constants of disputes with other programs that replace what the agent writes, and of the back-off between its writes."""

DISPUTE_WINDOW_S = 600.0
"""A write that another program replaced counts for this time; those of limits count from the last attempt."""
DISPUTE_THRESHOLD = 3
"""Number of remembered writes, each replaced by another program, that make a dispute."""
FIRST_BACKOFF_S, MAX_BACKOFF_S = 5.0, 300.0
"""First and longest delay between repeated writes."""
