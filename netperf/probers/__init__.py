"""Measures latency by runs of netperf and by datagrams, and answers the probes of other nodes.

The only part of `netperf` that uses processes and sockets. Every probe has a deadline, and every failure has a reason.
"""
