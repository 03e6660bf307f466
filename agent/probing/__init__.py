"""Measures latency: runs the node's probes of the zone's plan, answers probes of other nodes, and writes the results.

`plan_source` reads the plan, `scheduler` runs one probe at a time, `background` exchanges datagrams between runs, `probe_responder`
answers, `results_queue` chooses what `results` writes, `manager` connects them. The probers and the rules about samples are in
`netperf`.
"""
