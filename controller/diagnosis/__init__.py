"""What is wrong with the cluster: `reading.read_facts` turns a snapshot into facts, `rules.diagnose` turns facts into findings.

Commands, the page, conditions and events all show the list of `diagnose`. Each finding has a code, its cause, what it affects and what
fixes it. May import every package of the controller but views, page and command line; only `events` writes.
"""
