"""The agent of each node: its state, version, and newest sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from controller.cluster.zones import agent_pods_by_node, build_zone_map, to_probe_node
from controller.diagnosis.model import AgentView
from controller.diagnosis.snapshot import ClusterSnapshot
from kubekit.wire import Node
from netperf.contract import AGENT_ANNOTATION, Announcement, read_announcement
from netperf.pairs import ProbeNode
from netperf.plans import is_address
from netperf.results import decode_results

State = Literal["up", "down", "away"]


def build_agents(snapshot: ClusterSnapshot) -> tuple[AgentView, ...]:
    """One entry per node, sorted by zone and name."""
    agent_pods = agent_pods_by_node(snapshot.agent_pods)
    probes = Counter(probe.origin.node for plan in snapshot.plans for probe in plan.probes)
    newest = _newest(snapshot)
    agents = [_agent(node, to_probe_node(node, agent_pods), probes, newest) for node in snapshot.nodes]
    return tuple(sorted(agents, key=lambda a: (not a.zone, a.zone, a.node)))


def _newest(snapshot: ClusterSnapshot) -> dict[str, float]:
    places = build_zone_map(snapshot.nodes).places
    newest: dict[str, float] = {}
    for data in snapshot.results.values():
        for sample in decode_results(data, places).samples.values():
            for node in (sample.origin.node, sample.destination.node):
                if sample.taken_at:
                    newest[node] = max(newest.get(node, 0.0), min(sample.taken_at, snapshot.now_s))
    return newest


def _agent(node: Node, facts: ProbeNode, probes: Counter[str], newest: dict[str, float]) -> AgentView:
    note = read_announcement(node.metadata.annotation(AGENT_ANNOTATION))
    state, reason = _state(facts, note)
    return AgentView(
        node=facts.name,
        zone=facts.zone,
        state=state,
        reason=reason,
        version=note.version if note is not None else "",
        prober=note.prober if note is not None else "",
        probes=probes[facts.name],
        newest_at=newest.get(facts.name),
    )


def _state(facts: ProbeNode, note: Announcement | None) -> tuple[State, str]:
    """``up`` if the planner lets it measure, with the problem that the agent reports; else the first reason why not."""
    reported = note.problem if note is not None else ""
    checks: Sequence[tuple[bool, State, str]] = (
        (facts.ready, "away", "node is not Ready"),
        (note is not None, "down", "no agent has announced itself on this node"),
        (facts.agent_ready, "down", f"the agent's pod is not Ready: {reported or 'it does not say why'}"),
        (bool(facts.zone), "away", "node has no zone label"),
        (facts.schedulable, "away", "node is cordoned"),
        (is_address(facts.address), "down", f"the agent's address {facts.address!r} is no IP address"),
        (facts.address_is_own, "down", f"the agent announces {facts.address}, no address of its node or pod"),
    )
    return next(((state, reason) for good, state, reason in checks if not good), ("up", reported))
