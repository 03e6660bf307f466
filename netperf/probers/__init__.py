"""How latency is measured: netperf, or the built-in echo where netperf is absent, behind one interface.

The only part of the domain that touches processes and sockets. Every await is under a deadline, every failure has a
name, and no failure yields a number.
"""
