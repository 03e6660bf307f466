"""What people look at: the cluster's network as plain data, computed from a snapshot of the API's objects.

The command line and the page show the same things, so what they show is computed here once: `overview.build` is pure,
takes the time as part of its snapshot, and uses the rules of the other rooms instead of having its own.
May import every room below it; writes nothing.
"""
