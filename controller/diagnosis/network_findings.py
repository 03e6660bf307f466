"""Findings about probes between zones, NetworkTopologies, and costs without a recent measurement."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from controller.diagnosis.agent_findings import RESTART_AGENT
from controller.diagnosis.cluster_views import PairBasis, PairView
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import APPLY_AGAIN, ConditionFinding, Finding, Severity, ZoneFinding
from kubekit.text import format_command, pluralize
from kubekit.wire import Condition, split_key
from netperf.consensus import link_between
from netperf.contract import AGENT, CONTROLLER, REGION_LABEL, ZONE_LABEL
from netperf.plans import CONTROL_PORT, DATA_PORT, DATAGRAM_PORT

NEW_ZONE_ROUNDS = 3.0
"""Rounds before a pair without a measurement is reported: a new installation or zone is measured within two."""
OUTLIER_ROUNDS = 8.0
"""Rounds before an outlier is reported, because its pair is probed again after at most six."""
_OPEN_PORTS = f"open TCP {CONTROL_PORT} and {DATA_PORT}, and UDP {DATAGRAM_PORT}"
_DESCRIBE_TOPOLOGY = "kubectl -n {namespace} describe networktopology {name}"


class _ReasonFinding(NamedTuple):
    """The finding for a reason of a NetworkTopology's condition; `_build_condition_finding` fills the placeholders in ``fix``."""

    severity: Severity
    summary: str
    fix: tuple[str, ...]
    alert: str = ""


_FINDINGS_BY_REASON: dict[str, _ReasonFinding] = {
    "BadCostPolicy": _ReasonFinding(
        "warning", "its costPolicy is invalid",
        (_DESCRIBE_TOPOLOGY, "kubectl -n {namespace} patch networktopology {name} --type=merge -p {reset_patch}")),
    "ResultsTooLarge": _ReasonFinding(
        "warning", "a ConfigMap with results is close to its size limit",
        (_DESCRIBE_TOPOLOGY, "remove keys that netaware did not write"), "NetawareResultsRefused"),
    "ResultsMalformed": _ReasonFinding(
        "warning", "some results cannot be used", (_DESCRIBE_TOPOLOGY,), "NetawareResultsRefused"),
    "NodesWithoutZone": _ReasonFinding(
        "warning", "some nodes have no zone label and are not measured",
        (f"kubectl get nodes -L {ZONE_LABEL}", f"kubectl label node {{nodes}} {ZONE_LABEL}=ZONE"), "NetawareNodesLeftOut"),
    "ConflictingRegions": _ReasonFinding(
        "warning",
        "nodes of one zone have different region labels; costs are written for the most frequent region only",
        (f"kubectl get nodes -L {REGION_LABEL},{ZONE_LABEL}", f"kubectl label --overwrite node NODE {REGION_LABEL}=REGION")),
    "UnplannedResults": _ReasonFinding(
        "warning", "agents wrote results for pairs that are in no probe plan",
        (f"kubectl -n {{netaware_namespace}} logs daemonset/{AGENT} --tail=50", RESTART_AGENT), "NetawareResultsRefused"),
    "NodesContradicted": _ReasonFinding(
        "info", "measurements of some nodes are ignored as outliers",
        ("kubectl describe node {node}", "look for load, a full uplink or a wrong route on the node")),
    "NetperfFails": _ReasonFinding(
        "warning", "netperf fails repeatedly between some zones",
        ("kubectl netaware costs --percentile p90", f"{_OPEN_PORTS} between nodes"), "NetawareProbesFailing"),
}  # fmt: skip
_DEFAULT_FINDINGS: dict[str, _ReasonFinding] = {
    "InputValid": _ReasonFinding("warning", "some of its inputs are missing or invalid", (_DESCRIBE_TOPOLOGY,)),
    "OutlierNodes": _ReasonFinding("info", "some latencies contradict each other", (_DESCRIBE_TOPOLOGY,)),
}
"""Condition -> finding for its other reasons."""
_NODE_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")
_POLICY_FIELD = re.compile(r"costPolicy\.(\w+)")
_RELATED_FIELDS = {"expireAfterS": ("expireAfterS", "staleAfterS")}
"""Field that a message names -> fields to remove together, because either may be the wrong one."""
_FAILED_CONDITIONS = {("InputValid", "False"), ("OutlierNodes", "True")}
"""Type and status of the conditions that become findings of their own."""


def find_network_findings(facts: Facts, zones_without_agents: Collection[str]) -> Iterator[Finding]:
    """Findings about NetworkTopologies, the probe plan, paths between zones, and costs.

    ``zones_without_agents`` have no working agent, which another finding reports. Their pairs, and all stale costs, are not reported.
    """
    if not facts.topology_conditions and facts.control_plane.can_list_topologies:
        yield _build_no_topology_finding(facts)
        return
    pairs = [pair for pair in facts.network.pairs if not set(pair.zones).intersection(zones_without_agents)]
    directed_pairs = {pair.zones for pair in pairs if pair.basis == "unreachable"}
    directed_pairs |= {zones for zones in facts.unreachable_pairs if not set(zones).intersection(zones_without_agents)}
    unreachable_pairs = {link_between(*zones) for zones in directed_pairs}
    yield from (_build_unreachable_finding(*zones) for zones in sorted(unreachable_pairs))
    working_zones = {a.zone for a in facts.agents if a.state == "up" and a.zone} - set(zones_without_agents)
    if facts.network.interval_s is None and len(working_zones) > 1:
        yield _build_no_plan_finding(facts, tuple(sorted(working_zones)))
        return
    yield from _find_failed_conditions(facts)
    all_conditions = (c for conditions in facts.topology_conditions.values() for c in conditions)
    # New zones have no measurement in the first rounds.
    if not any(c.type == "Measured" and _is_recent(c, NEW_ZONE_ROUNDS, facts) for c in all_conditions):
        yield from _find_unmeasured([pair for pair in pairs if link_between(*pair.zones) not in unreachable_pairs])
    # Costs of other pairs may be inferred from paths over these zones and pairs, and are then old too.
    if not zones_without_agents and not unreachable_pairs:
        yield from _find_stale(facts, pairs)


def _build_no_topology_finding(facts: Facts) -> Finding:
    summary = "there is no NetworkTopology, so no costs can be written"
    cause = ("the leader creates a NetworkTopology within a minute, but only if `bootstrap.networkTopology` names one",)
    fix = (
        facts.format_kubectl(f"logs deployment/{CONTROLLER} | grep NetworkTopology"),
        "set bootstrap.networkTopology: nt-default in the configuration, or create a NetworkTopology yourself",
    )
    return Finding("no-topology", "critical", summary, cause, fix=fix, alert="NetawareCostsMissing")


def _list_pair_names(pairs: Iterable[PairView], *bases: PairBasis) -> tuple[str, ...]:
    """Sorted names of the pairs whose cost has one of these bases."""
    return tuple(sorted({f"{pair.origin} to {pair.destination}" for pair in pairs if pair.basis in bases}))


def _build_unreachable_finding(zone: str, other_zone: str) -> Finding:
    summary = f"zones {zone} and {other_zone} cannot reach each other"
    cause = ("probes between them fail from more than one node",)
    show_latency = format_command("kubectl netaware latency {} {}", zone, other_zone)
    fix = (show_latency, f"{_OPEN_PORTS} between their nodes, or correct the route")
    affects, alert = (zone, other_zone), "NetawareZonePairUnreachable"
    return ZoneFinding("zones-unreachable", "critical", summary, cause, affects=affects, fix=fix, alert=alert)


def _build_no_plan_finding(facts: Facts, zones: tuple[str, ...]) -> Finding:
    summary = "there is no probe plan, so agents measure nothing"
    fix = (facts.format_kubectl(f"logs deployment/{CONTROLLER} --tail=50 | grep -i plan"), *APPLY_AGAIN)
    return Finding("no-plan", "critical", summary, affects=zones, fix=fix, alert="NetawareCostsMissing")


def _find_unmeasured(pairs: Sequence[PairView]) -> Iterator[Finding]:
    names = _list_pair_names(pairs, "absent", "inferred")
    if names:
        summary = f"there is no measurement for {pluralize(len(names), 'pair')} of zones"
        fix = ("kubectl netaware costs", "kubectl netaware status", f"{_OPEN_PORTS} between their nodes")
        alert = "NetawareCostsMissing" if _list_pair_names(pairs, "absent") else "NetawareZonePairUnmeasured"
        yield ZoneFinding("pairs-unmeasured", "warning", summary, affects=names, fix=fix, alert=alert)


def _find_stale(facts: Facts, pairs: Sequence[PairView]) -> Iterator[Finding]:
    """A finding about costs from old measurements. It affects the stale pairs or, without any, NetworkTopologies with that condition."""
    topologies = sorted(facts.topology_conditions.items())
    conditions = {key: c for key, conditions in topologies for c in conditions if c.reason == "MeasurementsOld"}
    names = _list_pair_names(pairs, "stale")
    if names or conditions:
        summary, alert = "costs between some zones are based on old measurements", "NetawareMeasurementsStale"
        cause = tuple(condition.message for condition in conditions.values())
        since = min((c.changed_at_s for c in conditions.values() if c.changed_at_s is not None), default=None)
        fix = ("kubectl netaware costs", "kubectl netaware status", f"{_OPEN_PORTS} between nodes, if probes time out")
        affects = names or tuple(conditions)
        yield ConditionFinding(
            "pairs-stale", "warning", summary, cause, since=since, affects=affects, fix=fix, alert=alert
        )


def _find_failed_conditions(facts: Facts) -> Iterator[Finding]:
    """Findings from `_FAILED_CONDITIONS` of NetworkTopologies."""
    for key, conditions in sorted(facts.topology_conditions.items()):
        for condition in conditions:
            if (condition.type, condition.status) not in _FAILED_CONDITIONS:
                continue
            finding = _build_condition_finding(key, condition, facts)
            # Infos are about outliers, which the next probes of their pairs may end.
            if finding.severity != "info" or not _is_recent(condition, OUTLIER_ROUNDS, facts):
                yield finding


def _is_recent(condition: Condition, rounds: float, facts: Facts) -> bool:
    """Whether the condition changed less than this number of probing rounds ago; False without a probe plan or time of change."""
    max_age_s = rounds * (facts.network.interval_s or 0.0)
    return condition.changed_at_s is not None and facts.now_s - condition.changed_at_s < max_age_s


def _build_condition_finding(topology_key: str, condition: Condition, facts: Facts) -> Finding:
    reason_finding = _FINDINGS_BY_REASON.get(condition.reason, _DEFAULT_FINDINGS[condition.type])
    severity, summary, fix_templates, alert = reason_finding
    nodes = [word for word in _NODE_NAME.findall(condition.message) if word in facts.nodes] or ["NODE"]
    namespace, name = split_key(topology_key)
    placeholders = {
        "namespace": namespace,
        "name": name,
        "netaware_namespace": facts.netaware_namespace,
        "reset_patch": _build_reset_patch(condition.message),
        "node": nodes[0],
        "nodes": nodes,
    }
    fix = tuple(format_command(template, **placeholders) for template in fix_templates)
    code, summary = f"topology-{condition.reason}", f"NetworkTopology {topology_key}: {summary}"
    cause, affects, since = (condition.message,), (topology_key,), condition.changed_at_s
    return ConditionFinding(code, severity, summary, cause, since=since, affects=affects, fix=fix, alert=alert)


def _build_reset_patch(message: str) -> dict[str, object]:
    """A merge patch that removes the field of costPolicy that a message names first, and related fields; all fields if it names none."""
    match = _POLICY_FIELD.search(message)
    fields = dict.fromkeys(_RELATED_FIELDS.get(match[1], (match[1],))) if match else None
    return {"spec": {"costPolicy": fields}}
