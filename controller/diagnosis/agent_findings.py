"""Findings about agents that do not work or report a problem."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from controller.diagnosis.cluster_views import AgentView
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import MAX_CAUSES, Finding, NodeFinding, ZoneFinding
from kubekit.text import format_command, pluralize
from netperf.contract import AGENT, AGENT_POD_SELECTOR
from netperf.results import refresh_interval_s

WRITE_DELAY_S = 10.0
"""An agent writes its results within this time after a probe."""
EXTRA_ROUNDS = 2.0
"""Rounds added to the refresh interval: an unchanged sample is written in the round after it, and a busy node may miss a round."""
MAX_SINGLE_RESTARTS = 3
"""A fix restarts at most this many agents one by one, and more by a restart of the DaemonSet."""
_ALERT = "NetawareAgentDown"
_RESTART_ALL = f"rollout restart daemonset/{AGENT}"
_AGENT_POD_ARGUMENTS = f"pods -l {AGENT_POD_SELECTOR} --field-selector spec.nodeName={{node}}"
_ReasonByNode = dict[str, str]
"""Node -> why its agent does not work, or the problem that it reports."""
RESTART_AGENT = f"kubectl -n {{netaware_namespace}} delete {_AGENT_POD_ARGUMENTS}"
"""Command that restarts the agent of a node, with the placeholders ``{netaware_namespace}`` and ``{node}``."""


def find_agent_findings(facts: Facts) -> Iterator[Finding]:
    """Findings about agents that do not work (one per zone) or report a problem; a single finding if no agent works."""
    failures_by_zone: dict[str, _ReasonByNode] = defaultdict(dict)
    working_counts: Counter[str] = Counter()
    for agent in facts.agents:
        reason = _find_failure_reason(agent, facts)
        if reason:
            failures_by_zone[agent.zone][agent.node] = reason
        elif agent.state != "excluded":
            working_counts[agent.zone] += 1
    if failures_by_zone and not working_counts:
        yield _build_no_agents_finding(facts, failures_by_zone)
        return
    for zone, failures in sorted(failures_by_zone.items()):
        yield _build_zone_finding(facts, zone, failures, working_counts[zone])
    problems = {agent.node: agent.reason for agent in facts.agents if agent.state == "up" and agent.reason}
    if problems:
        summary = f"agents on {pluralize(len(problems), 'node')} report a problem"
        cause, fix = _format_causes(problems), _format_restarts(facts, [*problems])
        yield NodeFinding("agents-impaired", "warning", summary, cause, affects=tuple(problems), fix=fix)


def _find_failure_reason(agent: AgentView, facts: Facts) -> str:
    """Why an agent that should work does not; empty if it works, or its node is excluded."""
    if agent.state == "down":
        return agent.reason
    interval_s = facts.network.interval_s or 0.0
    max_age_s = refresh_interval_s(interval_s) + WRITE_DELAY_S + EXTRA_ROUNDS * interval_s
    # An agent that never wrote a result may be new; `agents-impaired` or `pairs-unmeasured` reports it.
    has_result = agent.state == "up" and agent.probes > 0 and agent.newest_at is not None
    age_s = facts.now_s - (agent.newest_at or 0.0)
    return f"its newest result is {age_s:.0f} s old" if has_result and age_s > max_age_s else ""


def _build_no_agents_finding(facts: Facts, failures_by_zone: Mapping[str, _ReasonByNode]) -> Finding:
    zones = tuple(sorted(failures_by_zone))
    failures = {node: reason for zone in zones for node, reason in failures_by_zone[zone].items()}
    summary = f"no agent works on any of {len(failures)} nodes: nothing is measured"
    fix = (
        facts.format_kubectl(f"describe daemonset {AGENT}"),
        facts.format_kubectl(f"get pods -l {AGENT_POD_SELECTOR} -o wide"),
        facts.format_kubectl(_RESTART_ALL),
    )
    cause = _format_causes(failures)
    return Finding("no-agents", "critical", summary, cause, affects=zones, fix=fix, alert=_ALERT)


def _build_zone_finding(facts: Facts, zone: str, failures: _ReasonByNode, working_count: int) -> Finding:
    nodes = tuple(failures)
    cause, fix = _format_causes(failures), _format_restarts(facts, nodes)
    if working_count:
        summary = f"{len(nodes)} of {len(nodes) + working_count} agents of zone {zone} do not work"
        return NodeFinding("agents-down", "warning", summary, cause, affects=nodes, fix=fix, alert=_ALERT)
    summary = f"no agent of zone {zone} works ({pluralize(len(nodes), 'node')}): its latencies are old or inferred"
    return ZoneFinding("zone-without-agent", "critical", summary, cause, affects=(zone,), fix=fix, alert=_ALERT)


def _format_causes(reason_by_node: _ReasonByNode) -> tuple[str, ...]:
    return tuple(f"{node}: {reason}" for node, reason in islice(reason_by_node.items(), MAX_CAUSES))


def _format_restarts(facts: Facts, nodes: Sequence[str]) -> tuple[str, ...]:
    """Commands that inspect the agent of the first node, and restart the agents of all nodes."""
    namespace = facts.netaware_namespace
    get_pod = f"kubectl -n {{netaware_namespace}} get {_AGENT_POD_ARGUMENTS}"
    templates = (f"{get_pod} -o wide", f"kubectl -n {{netaware_namespace}} logs --tail=50 $({get_pod} -o name)")
    inspections = tuple(format_command(template, netaware_namespace=namespace, node=nodes[0]) for template in templates)
    if len(nodes) > MAX_SINGLE_RESTARTS:
        return *inspections, facts.format_kubectl(_RESTART_ALL)
    restarts = (format_command(RESTART_AGENT, netaware_namespace=namespace, node=node) for node in nodes)
    return *inspections, *restarts
