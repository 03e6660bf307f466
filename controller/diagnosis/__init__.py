"""Findings about the cluster: `reading.build_facts` turns a snapshot into facts, `rules.diagnose` turns facts into findings.

Commands, the page and events show the same findings. Each has a code, its cause, the objects that it affects and commands that fix
it. May import every package of the controller but views, page and command line; only `events` writes.
"""
