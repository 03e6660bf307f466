"""Findings about agents, probes between zones, and costs without a recent measurement."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from controller.diagnosis.facts import Facts, unix_seconds
from controller.diagnosis.findings import (
    APPLY_AGAIN,
    MAX_AFFECTED,
    MAX_CAUSES,
    ConditionFinding,
    Finding,
    NodeFinding,
    Severity,
    ZoneFinding,
)
from controller.diagnosis.model import AgentView, PairBasis, PairView
from kubekit.text import format_command, pluralize
from kubekit.wire import split_key
from netperf.contract import AGENT, AGENT_POD_SELECTOR, CONTROLLER, REGION_LABEL, ZONE_LABEL
from netperf.plans import DATA_PORT, DATAGRAM_PORT, PROBE_PORT
from netperf.results import refresh_interval_s

WRITE_DELAY_S = 10.0
"""An agent writes its samples within this time after a probe."""
MISSED_ROUNDS = 2.0
"""One round in which an agent repeats unchanged samples, and one that a busy node may miss."""
OUTLIER_ROUNDS = 8.0
"""Rounds before an outlier is reported: its pair is probed again after at most six."""
_PORTS = f"open TCP {PROBE_PORT} and {DATA_PORT}, and UDP {DATAGRAM_PORT}"
_AGENT_POD = f"pods -l {AGENT_POD_SELECTOR} --field-selector spec.nodeName={{node}}"
_DELETE_AGENT_POD = f"kubectl -n {{netaware_namespace}} delete {_AGENT_POD}"
MAX_SINGLE_RESTARTS = 3
"""Up to this many agents are restarted by one command each, more with the DaemonSet."""
_DESCRIBE_TOPOLOGY = "kubectl -n {namespace} describe networktopology {name}"


class _ConditionReason(NamedTuple):
    """A reason of a NetworkTopology's condition; ``fix`` has placeholders, see `_condition_findings`."""

    severity: Severity
    summary: str
    fix: tuple[str, ...]
    alert: str = ""


_REASONS: dict[str, _ConditionReason] = {
    "BadCostPolicy": _ConditionReason(
        "warning", "its costPolicy is invalid",
        (_DESCRIBE_TOPOLOGY, "kubectl -n {namespace} patch networktopology {name} --type=merge -p {reset_patch}")),
    "NodesWithoutZone": _ConditionReason(
        "warning", "some nodes have no zone label and are not measured",
        (f"kubectl get nodes -L {ZONE_LABEL}", f"kubectl label node {{nodes}} {ZONE_LABEL}=ZONE"), "NetawareNodesLeftOut"),
    "ConflictingRegions": _ConditionReason(
        "warning",
        "nodes of one zone name different regions; costs are written for the region of most of them, and the others may find none",
        (f"kubectl get nodes -L {REGION_LABEL},{ZONE_LABEL}", f"kubectl label --overwrite node NODE {REGION_LABEL}=REGION")),
    "UnplannedResults": _ConditionReason(
        "warning", "there are results that no probe plan asks for",
        (f"kubectl -n {{netaware_namespace}} logs daemonset/{AGENT} --tail=50", _DELETE_AGENT_POD), "NetawareResultsRefused"),
    "NodesContradicted": _ConditionReason(
        "info", "measurements of some nodes are ignored as outliers",
        ("kubectl describe node {node}", "look for load, a full uplink or a wrong route there")),
    "NetperfFails": _ConditionReason(
        "warning", "netperf fails again and again between some zones",
        ("kubectl netaware costs --percentile p90", f"{_PORTS} between nodes"), "NetawareProbesFailing"),
}  # fmt: skip
_NODE_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")
_POLICY_FIELD = re.compile(r"costPolicy\.(\w+)")
_RELATED_FIELDS = {"expireAfterS": ("expireAfterS", "staleAfterS")}
"""Fields to remove together, because either may be the wrong one."""
_FAILED_CONDITIONS = {("InputValid", "False"), ("OutlierNodes", "True")}


def find_agent_findings(facts: Facts) -> Iterator[Finding]:
    """Findings about agents that do not work, one for each zone, or a single one if no agent works; and about impaired agents."""
    failures: dict[str, list[tuple[str, str]]] = defaultdict(list)
    working_by_zone: dict[str, int] = defaultdict(int)
    for agent in facts.agents:
        reason = _agent_failure(agent, facts)
        if reason:
            failures[agent.zone].append((agent.node, reason))
        elif agent.state != "excluded":
            working_by_zone[agent.zone] += 1
    if failures and not working_by_zone:
        yield _no_agents(facts, failures)
        return
    for zone, nodes in sorted(failures.items()):
        cause = tuple(f"{node}: {reason}" for node, reason in nodes[:MAX_CAUSES])
        names = tuple(node for node, _ in nodes)
        fix = _restart_agents(facts, names)
        if working_by_zone[zone]:
            summary = f"{len(nodes)} of {len(nodes) + working_by_zone[zone]} agents of zone {zone} do not work"
            affects = names[:MAX_AFFECTED]
            yield NodeFinding("agents-down", "warning", summary, cause, None, affects, fix, "NetawareAgentDown")
        else:
            summary = (
                f"no agent of zone {zone} works ({pluralize(len(nodes), 'node')}): its latencies are old or inferred"
            )
            yield ZoneFinding("zone-without-agent", "critical", summary, cause, None, (zone,), fix, "NetawareAgentDown")
    impaired = [agent for agent in facts.agents if agent.state == "up" and agent.reason]
    if impaired:
        summary = f"agents on {pluralize(len(impaired), 'node')} report that something does not work"
        cause = tuple(f"{agent.node}: {agent.reason}" for agent in impaired[:MAX_CAUSES])
        names = tuple(agent.node for agent in impaired[:MAX_AFFECTED])
        yield NodeFinding("agents-impaired", "warning", summary, cause, None, names, _restart_agents(facts, names))


def _agent_failure(agent: AgentView, facts: Facts) -> str:
    """Why an agent that should work does not; empty if it works, or need not."""
    max_age_s = refresh_interval_s(facts.interval_s) + WRITE_DELAY_S + MISSED_ROUNDS * facts.interval_s
    if agent.state == "down":
        return agent.reason
    # Samples name only nodes of the probe plan.
    if agent.state == "up" and agent.probes and agent.newest_at is not None and facts.now - agent.newest_at > max_age_s:
        return f"its newest sample is {facts.now - agent.newest_at:.0f} s old"
    return ""


def _restart_agents(facts: Facts, nodes: Sequence[str]) -> tuple[str, ...]:
    """Commands that inspect the first agent and restart all of these."""
    namespace, get_pod = facts.netaware_namespace, f"kubectl -n {{netaware_namespace}} get {_AGENT_POD}"
    lines = (f"{get_pod} -o wide", f"kubectl -n {{netaware_namespace}} logs --tail=50 $({get_pod} -o name)")
    inspect_commands = tuple(format_command(line, netaware_namespace=namespace, node=nodes[0]) for line in lines)
    if len(nodes) > MAX_SINGLE_RESTARTS:
        return *inspect_commands, _restart_all_agents(facts)
    delete_commands = (format_command(_DELETE_AGENT_POD, netaware_namespace=namespace, node=node) for node in nodes)
    return *inspect_commands, *delete_commands


def _restart_all_agents(facts: Facts) -> str:
    return format_command(f"kubectl -n {{}} rollout restart daemonset/{AGENT}", facts.netaware_namespace)


def _no_agents(facts: Facts, failures: dict[str, list[tuple[str, str]]]) -> Finding:
    nodes = [entry for zone in sorted(failures) for entry in failures[zone]]
    cause = tuple(f"{node}: {reason}" for node, reason in nodes[:MAX_CAUSES])
    summary = f"no agent works on any of {len(nodes)} nodes: nothing is measured"
    fix = (
        format_command(f"kubectl -n {{}} describe daemonset {AGENT}", facts.netaware_namespace),
        format_command(f"kubectl -n {{}} get pods -l {AGENT_POD_SELECTOR} -o wide", facts.netaware_namespace),
        _restart_all_agents(facts),
    )
    zones = tuple(sorted(failures))
    return Finding("no-agents", "critical", summary, cause, None, zones[:MAX_AFFECTED], fix, "NetawareAgentDown")


def find_network_findings(facts: Facts, silent_zones: Collection[str]) -> Iterator[Finding]:
    """Findings about paths between zones, and about costs.

    Args:
        facts: facts of the cluster.
        silent_zones: zones without a working agent, which another finding reports; pairs with them are left out.
    """
    if not facts.topologies and facts.control_plane.can_list_topologies:
        summary = "there is no NetworkTopology, so no costs can be written"
        logs = format_command(
            f"kubectl -n {{}} logs deployment/{CONTROLLER} | grep NetworkTopology", facts.netaware_namespace
        )
        cause = ("the leader creates one within a minute, but only if `bootstrap.networkTopology` names it",)
        fix = (logs, "set bootstrap.networkTopology: nt-default in the configuration, or create one yourself")
        yield Finding("no-topology", "critical", summary, cause, fix=fix, alert="NetawareCostsMissing")
        return
    pairs = [pair for pair in facts.network.pairs if not {pair.origin, pair.destination} & set(silent_zones)]
    unreachable = {_zones(p) for p in pairs if p.basis == "unreachable"}
    unreachable |= {pair for pair in facts.unreachable if not set(silent_zones).intersection(pair)}
    dead_pairs = sorted({(min(pair), max(pair)) for pair in unreachable})
    yield from (_zones_unreachable(*pair) for pair in dead_pairs)
    working_zones = {a.zone for a in facts.agents if a.state == "up" and a.zone} - set(silent_zones)
    if facts.network.interval_s is None and len(working_zones) > 1:
        yield _no_plan(facts, tuple(sorted(working_zones)))
        return
    yield from _condition_findings(facts)
    yield from _pairs_unmeasured([p for p in pairs if (min(_zones(p)), max(_zones(p))) not in dead_pairs])
    # Costs of other pairs may be inferred over these paths, and are then old too.
    if not silent_zones and not dead_pairs:
        yield from _pairs_stale(facts, pairs)


def _zones(pair: PairView) -> tuple[str, str]:
    return pair.origin, pair.destination


def _pair_names(pairs: Iterable[PairView], *bases: PairBasis) -> tuple[str, ...]:
    """Names of the pairs whose cost has one of these sources."""
    return tuple(sorted({f"{p.origin} to {p.destination}" for p in pairs if p.basis in bases}))


def _zones_unreachable(zone: str, other: str) -> Finding:
    summary = f"zones {zone} and {other} cannot reach each other"
    cause = ("probes between them fail from more than one node",)
    show_latency = format_command("kubectl netaware latency {} {}", zone, other)
    fix = (show_latency, f"{_PORTS} between their nodes, or correct the path")
    return ZoneFinding(
        "zones-unreachable", "critical", summary, cause, None, (zone, other), fix, "NetawareZonePairUnreachable"
    )


def _no_plan(facts: Facts, zones: tuple[str, ...]) -> Finding:
    summary = "there is no probe plan, so agents measure nothing"
    fix = (
        format_command(
            f"kubectl -n {{}} logs deployment/{CONTROLLER} --tail=50 | grep -i plan", facts.netaware_namespace
        ),
        *APPLY_AGAIN,
    )
    return Finding("no-plan", "critical", summary, (), None, zones[:MAX_AFFECTED], fix, "NetawareCostsMissing")


def _pairs_unmeasured(pairs: Sequence[PairView]) -> Iterator[Finding]:
    names = _pair_names(pairs, "absent", "inferred")
    if names:
        summary = f"some zones have no measurement between them ({pluralize(len(names), 'pair')})"
        fix = ("kubectl netaware costs", "kubectl netaware status", f"{_PORTS} between their nodes")
        alert = "NetawareCostsMissing" if _pair_names(pairs, "absent") else "NetawareZonePairUnmeasured"
        yield ZoneFinding("pairs-unmeasured", "warning", summary, (), None, names[:MAX_AFFECTED], fix, alert)


def _pairs_stale(facts: Facts, pairs: Sequence[PairView]) -> Iterator[Finding]:
    """A finding about costs from old measurements, by the leader's condition or by the samples."""
    conditions = [
        c for _, of_topology in sorted(facts.topologies.items()) for c in of_topology if c.reason == "MeasurementsOld"
    ]
    names = _pair_names(pairs, "stale")
    if names or conditions:
        summary = "costs between some zones rest on old measurements"
        cause = tuple(c.message for c in conditions)
        since = min((at for c in conditions if (at := unix_seconds(c.last_transition_time)) is not None), default=None)
        fix = ("kubectl netaware costs", "kubectl netaware status", f"{_PORTS} between nodes, if probes time out")
        affects = names[:MAX_AFFECTED] or tuple(sorted(facts.topologies))
        yield ConditionFinding(
            "pairs-stale", "warning", summary, cause, since, affects, fix, "NetawareMeasurementsStale"
        )


def _reset_patch(message: str) -> dict[str, object]:
    """A merge patch that removes the field of costPolicy that a message names; all fields if it names none."""
    match = _POLICY_FIELD.search(message)
    fields = dict.fromkeys(_RELATED_FIELDS.get(match[1], (match[1],))) if match else None
    return {"spec": {"costPolicy": fields}}


def _condition_findings(facts: Facts) -> Iterator[Finding]:
    """Findings from conditions of NetworkTopologies."""
    for key, conditions in sorted(facts.topologies.items()):
        namespace, name = split_key(key)
        for condition in conditions:
            if (condition.type, condition.status) not in _FAILED_CONDITIONS:
                continue
            reason, message = condition.reason, condition.message
            default: Severity = "info" if condition.type == "OutlierNodes" else "warning"
            severity, summary, fix, alert = _REASONS.get(
                reason, _ConditionReason(default, reason, (_DESCRIBE_TOPOLOGY,))
            )
            since = unix_seconds(condition.last_transition_time)
            is_recent = since is not None and facts.now - since < OUTLIER_ROUNDS * facts.interval_s
            if condition.type == "OutlierNodes" and severity == "info" and is_recent:
                continue  # The next probe of its pair may clear it.
            nodes = [word for word in _NODE_NAME.findall(message) if word in facts.nodes] or ["NODE"]
            placeholders = {
                "namespace": namespace,
                "name": name,
                "netaware_namespace": facts.netaware_namespace,
                "reset_patch": _reset_patch(message),
            }
            commands = tuple(format_command(line, node=nodes[0], nodes=nodes, **placeholders) for line in fix)
            summary = f"NetworkTopology {key}: {summary}"
            yield ConditionFinding(f"topology-{reason}", severity, summary, (message,), since, (key,), commands, alert)
