"""Turns facts into findings; a cause hides its consequences.

A dead controller is one finding, not one for each pod that waits for it.
"""

from __future__ import annotations

from controller.diagnosis.appgroups import find_groups
from controller.diagnosis.bandwidth import find_bandwidth_problems
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import Finding, has_leader, in_order
from controller.diagnosis.network import find_agent_findings, find_network_findings
from controller.diagnosis.pods import find_pods
from controller.diagnosis.programs import find_programs

_NEEDS_SCHEDULER = frozenset({"no-scheduler"})
_NEEDS_LEADER = frozenset({"gated-too-long"})


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """All findings, worst first."""
    if not facts.control_plane.installed:
        fix = (
            "look at docs/install.md: make overlay writes dist/overlay",
            "kubectl apply --server-side -k dist/overlay",
        )
        return (Finding("not-installed", "critical", "netaware is not installed in this cluster", fix=fix),)
    programs = list(find_programs(facts))
    agents = list(find_agent_findings(facts))
    found = [*programs, *agents]
    codes = {finding.code for finding in programs}
    silent_zones = {zone for f in agents if f.code in {"zone-without-agent", "no-agents"} for zone in f.affects}
    swallowed: set[str] = set()
    if has_leader(programs):
        found += find_network_findings(facts, silent_zones)
    else:
        # Without a leader nothing is priced, planned or reported.
        swallowed |= _NEEDS_LEADER
    if "scheduler-down" in codes:
        swallowed |= _NEEDS_SCHEDULER
    unreachable = silent_zones.union(*(f.affects for f in found if f.code == "zones-unreachable"))
    found += find_groups(facts, unreachable)
    found += [finding for finding in find_pods(facts) if finding.code not in swallowed]
    found += find_bandwidth_problems(facts.network, facts.bandwidth)
    return in_order(found)
