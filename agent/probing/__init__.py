"""Measures latency: runs the node's probes of the zone's plan, answers probes of other nodes, and writes the results.

`plan_source` reads the plan, `passphrase` the shared secret, `scheduler` runs one probe at a time, `background` sends datagrams between
runs, `probe_responder` answers, `results_queue` chooses what `results_writer` writes, `manager` connects them. The probers and the rules
about samples are in `netperf`.
"""
