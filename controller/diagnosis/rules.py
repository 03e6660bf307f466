"""Turns facts into findings, without consequences of other findings: a dead controller is one finding, not one for each pod."""

from __future__ import annotations

from controller.diagnosis.appgroups import find_group_findings
from controller.diagnosis.bandwidth import find_bandwidth_findings
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import Finding, has_leader, sort_findings
from controller.diagnosis.network import find_agent_findings, find_network_findings
from controller.diagnosis.pods import find_pod_findings
from controller.diagnosis.programs import find_program_findings


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """All findings, worst first."""
    if not facts.control_plane.is_installed:
        fix = "look at docs/install.md: make overlay writes dist/overlay", "kubectl apply --server-side -k dist/overlay"
        return (Finding("not-installed", "critical", "netaware is not installed in this cluster", fix=fix),)
    programs = list(find_program_findings(facts))
    agents = list(find_agent_findings(facts))
    findings = [*programs, *agents]
    silent_zones = {zone for f in agents if f.code in {"zone-without-agent", "no-agents"} for zone in f.affects}
    suppressed: set[str] = set()
    if has_leader(programs):
        findings += find_network_findings(facts, silent_zones)
    else:
        # Without a leader costs and plans are old, and gates stay shut.
        suppressed.add("gated-too-long")
    if any(finding.code == "scheduler-down" for finding in programs):
        suppressed.add("no-scheduler")
    unreachable = silent_zones.union(*(f.affects for f in findings if f.code == "zones-unreachable"))
    findings += find_group_findings(facts, unreachable)
    findings += [finding for finding in find_pod_findings(facts) if finding.code not in suppressed]
    findings += find_bandwidth_findings(facts.network, facts.bandwidth)
    return sort_findings(findings)
