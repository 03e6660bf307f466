"""Measures latency by runs of netperf, and by datagrams at fixed times.

The only part of `netperf` that uses processes and sockets. Every await has a deadline, and every failure has a name.
"""
