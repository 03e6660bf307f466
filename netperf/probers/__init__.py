"""How latency is measured: netperf in turns, and paced datagrams all the time.

The only part of the domain that touches processes and sockets. Every await is under a deadline, every failure has a
name, and no failure yields a number.
"""
