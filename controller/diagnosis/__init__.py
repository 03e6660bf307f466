"""What is wrong with the cluster: `reading.read_facts` turns a snapshot into facts, `rules.diagnose` turns facts into findings.

`diagnose` is the only judge: commands, the page and events show its list. Each finding has a code, its cause, what it affects and
what fixes it. May import every room of the controller but views, page and command line; only `events` writes.
"""
