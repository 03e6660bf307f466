"""Combines all findings, and leaves out those that follow from others: a controller that is down is one finding, not one per pod."""

from __future__ import annotations

from controller.diagnosis.agent_findings import find_agent_findings
from controller.diagnosis.bandwidth_findings import find_bandwidth_findings
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import Finding, has_leader, sanitize, sort_findings
from controller.diagnosis.group_findings import find_group_findings
from controller.diagnosis.network_findings import find_network_findings
from controller.diagnosis.pod_findings import find_pod_findings
from controller.diagnosis.program_findings import find_program_findings


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """All findings, worst first; only one if netaware is not installed."""
    if not facts.control_plane.is_installed:
        fix = "look at docs/install.md: make overlay writes dist/overlay", "kubectl apply --server-side -k dist/overlay"
        return (Finding("not-installed", "critical", "netaware is not installed in this cluster", fix=fix),)
    program_findings = list(find_program_findings(facts))
    agent_findings = list(find_agent_findings(facts))
    findings = [*program_findings, *agent_findings]
    zone_findings = [finding for finding in agent_findings if finding.code in {"zone-without-agent", "no-agents"}]
    zones_without_agents = {zone for finding in zone_findings for zone in finding.affects}
    suppressed_codes: set[str] = set()
    if has_leader(program_findings):
        findings += find_network_findings(facts, zones_without_agents)
    else:
        # Without a leader, costs and plans are old, and gates stay closed.
        suppressed_codes.add("gated-too-long")
    if any(finding.code == "scheduler-down" for finding in program_findings):
        suppressed_codes.add("no-scheduler")
    unreachable_zones = zones_without_agents.union(*(f.affects for f in findings if f.code == "zones-unreachable"))
    findings += find_group_findings(facts, unreachable_zones)
    findings += [finding for finding in find_pod_findings(facts) if finding.code not in suppressed_codes]
    findings += find_bandwidth_findings(facts.network, facts.bandwidth)
    return sort_findings(map(sanitize, findings))
