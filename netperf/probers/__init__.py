"""Measures latency: netperf runs, and paced datagrams between them.

The only part of the domain that uses processes and sockets. Every await has a deadline, every failure a name, and no failure yields
a number.
"""
