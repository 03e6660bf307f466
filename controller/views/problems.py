"""What a person should look at, worst first, under the name of the alert that stands for it.

The alerts in manifests/prometheus judge the same states from metrics and over time; here they are judged from the objects,
at once, so that somebody without Prometheus sees them too, and sees them before they fire.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from controller.diagnosis.findings import RANK, Severity
from controller.views.model import AgentView, BandwidthView, GroupView, NetworkView, PairBasis, ProblemView
from controller.views.snapshot import Alert, Readings

SHOWN = 5
ALERT_PREFIX = "Netaware"
ENFORCED_VERDICTS = frozenset({"enforced", "not-applicable", "other-enforcer"})
"""Verdicts of the agent that are nobody's fault; each other one means a limit that does not limit."""


def build_problems(
    network: NetworkView,
    agents: Iterable[AgentView],
    groups: Iterable[GroupView],
    bandwidth: BandwidthView,
    readings: Readings,
) -> tuple[ProblemView, ...]:
    """All problems there are, critical ones first; alerts that only Prometheus can judge are added from it."""
    found = [
        *_network(network),
        *_agents(network, list(agents)),
        *_groups(list(groups)),
        *_bandwidth(network, bandwidth),
    ]
    if readings.source and not readings.error:
        found = _with_alerts(found, readings.alerts)
    return tuple(sorted(found, key=lambda p: (RANK[p.severity], p.alert)))


def _problem(alert: str, severity: Severity, things: Sequence[str], one: str, many: str) -> ProblemView:
    """A problem of several things; ``one`` and ``many`` go behind their number."""
    what = one if len(things) == 1 else many
    return ProblemView(
        alert=alert,
        severity=severity,
        count=len(things),
        summary=f"{len(things) or 'no'} {what}",
        examples=tuple(things[:SHOWN]),
    )


def _with_alerts(found: list[ProblemView], alerts: Iterable[Alert]) -> list[ProblemView]:
    """What was found here, marked as firing or not, and the firing alerts that only Prometheus can judge."""
    firing: dict[str, list[Alert]] = defaultdict(list)
    for alert in alerts:
        if alert.name.startswith(ALERT_PREFIX):
            firing[alert.name].append(alert)
    judged = [msgspec.structs.replace(problem, firing=problem.alert in firing) for problem in found]
    for name in firing.keys() - {problem.alert for problem in found}:
        severity: Severity = "critical" if any(a.severity == "critical" for a in firing[name]) else "warning"
        things = [_label_text(alert.labels) for alert in firing[name]]
        judged.append(
            msgspec.structs.replace(
                _problem(name, severity, things, "alert firing in Prometheus", "alerts firing in Prometheus"),
                firing=True,
            )
        )
    return judged


def _label_text(labels: dict[str, str]) -> str:
    kept = {k: v for k, v in labels.items() if k not in {"alertname", "alertstate", "severity", "job", "__name__"}}
    return " ".join(f"{key}={value}" for key, value in sorted(kept.items()))


def _network(network: NetworkView) -> list[ProblemView]:
    if network.topology is None:
        what = "NetworkTopology objects, so that no costs can be written"
        return [_problem("NetawareCostsMissing", "critical", [], what, what)]
    bases: dict[str, tuple[set[PairBasis], str, str]] = {
        "NetawareZonePairUnreachable": ({"unreachable"}, "that nothing gets across", "that nothing gets across"),
        "NetawareCostsMissing": ({"absent"}, "without any cost", "without any cost"),
        "NetawareZonePairUnmeasured": (
            {"inferred"},
            "without a measurement of its own",
            "without measurements of their own",
        ),
        "NetawareMeasurementsStale": (
            {"stale"},
            "with a cost that rests on an old measurement",
            "with costs that rest on old measurements",
        ),
    }
    found = []
    for alert, (wanted, one, many) in bases.items():
        things = [f"{p.origin} to {p.destination}" for p in network.pairs if p.basis in wanted]
        if things:
            found.append(_problem(alert, "warning", things, f"zone pair {one}", f"zone pairs {many}"))
    doubtful = [f"{p.origin} to {p.destination} ({', '.join(p.doubts)})" for p in network.pairs if p.doubts]
    if doubtful:
        what = "whose newest sample is not trusted"
        found.append(_problem("NetawareProbesDoubted", "warning", doubtful, f"zone pair {what}", f"zone pairs {what}"))
    return found


def _agents(network: NetworkView, agents: list[AgentView]) -> list[ProblemView]:
    down = [f"{agent.node} ({agent.reason})" for agent in agents if agent.state == "down"]
    blind = [zone.name for zone in network.zones if zone.ready and not zone.agents]
    if not down:
        return []
    severity: Severity = "critical" if blind else "warning"
    what = "without a working agent" + (f"; no agent at all in {', '.join(blind[:SHOWN])}" if blind else "")
    return [_problem("NetawareAgentDown", severity, down, f"Ready node {what}", f"Ready nodes {what}")]


def _groups(groups: list[GroupView]) -> list[ProblemView]:
    things = [f"{g.namespace}/{g.name} ({g.violated} of {len(g.edges)})" for g in groups if g.violated]
    what = "with dependencies over their maxNetworkCost"
    return (
        [_problem("NetawareDependenciesViolated", "warning", things, f"AppGroup {what}", f"AppGroups {what}")]
        if things
        else []
    )


def _bandwidth(network: NetworkView, bandwidth: BandwidthView) -> list[ProblemView]:
    over = [node.node for node in bandwidth.nodes if node.overcommitted]
    over += [
        f"{p.origin} to {p.destination}"
        for p in network.pairs
        if p.bandwidth_capacity_bps is not None and (p.bandwidth_allocated_bps or 0) > p.bandwidth_capacity_bps
    ]
    loose = [
        f"{pod.namespace}/{pod.name} ({direction} {verdict})"
        for pod in bandwidth.pods
        for direction, verdict in pod.verdicts.items()
        if verdict not in ENFORCED_VERDICTS
    ]
    found = []
    if over:
        what = "with more bandwidth promised than there is"
        one, many = f"node or zone pair {what}", f"nodes or zone pairs {what}"
        found.append(_problem("NetawareBandwidthOvercommitted", "warning", over, one, many))
    if loose:
        one, many = "bandwidth limit that does not hold", "bandwidth limits that do not hold"
        found.append(_problem("NetawareLimitNotEnforced", "warning", loose, one, many))
    return found
