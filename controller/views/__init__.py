"""Views: what commands and the page show, as plain data computed from a snapshot.

The command line and the page show the same things, so what they show is computed here once: `overview.build` is pure,
takes the time as part of its snapshot, and uses the rules of the other packages instead of having its own.
May import every room below it; writes nothing.
"""
