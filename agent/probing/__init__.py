"""Measures latency: runs the node's probes of the zone's plan, answers probes of other nodes, and writes the results.

`scheduler` runs one probe at a time, `background` exchanges datagrams between runs, `probe_responder` answers, `results` writes. The probers
and the rules about samples are in `netperf`. A failed probe yields no number.
"""
