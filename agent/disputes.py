"""Constants of disputes with other programs that replace what the agent writes, and of the back-off between its writes."""

DISPUTE_WINDOW_S = 600.0
"""Replacements by another program are forgotten after this time."""
DISPUTE_THRESHOLD = 3
"""Number of replacements within the window that make a dispute."""
FIRST_WAIT_S = 5.0
MAX_WAIT_S = 300.0
"""First and longest delay of the exponential back-off between writes."""
