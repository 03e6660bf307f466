"""Findings about the cluster: `facts.build_facts` turns a snapshot into facts, `diagnose.diagnose` turns facts into findings.

A type ``…Fact`` has the fields of an object that findings need; a ``…View`` is also shown. `zones`, `agents` and `bandwidth` build the
views in the facts. Each module `*_findings` finds the problems of one subject, and `pod_diagnosis` explains one pod. May import every
package of the controller but views, page and command line; only `events` writes.
"""
