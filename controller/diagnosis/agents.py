"""The agent of each node: its state, version, prober, number of probes, and newest result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from controller.cluster.zones import build_zone_map
from controller.diagnosis.cluster_views import AgentState, AgentView
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.topology.probe_nodes import agent_pods_by_node, to_probe_node
from kubekit.addresses import parse_host_address
from netperf.contract import AGENT_ANNOTATION, Announcement, decode_announcement
from netperf.pairs import ProbeNode
from netperf.results import decode_results
from netperf.sample import Failure, Sample


def build_agents(snapshot: ClusterSnapshot) -> tuple[AgentView, ...]:
    """The agents of all nodes, sorted by zone and name; nodes without a zone come last."""
    agent_pods = agent_pods_by_node(snapshot.agent_pods)
    probe_counts = Counter(probe.origin.node for plan in snapshot.plans for probe in plan.probes)
    newest_at_by_node = _find_newest_times(snapshot)
    agents = []
    for node in snapshot.nodes:
        probe_node = to_probe_node(node, agent_pods)
        announcement = decode_announcement(node.metadata.annotation(AGENT_ANNOTATION))
        state, reason = _find_state(probe_node, announcement)
        agent = AgentView(
            node=probe_node.name,
            zone=probe_node.zone,
            state=state,
            reason=reason,
            version=announcement.version if announcement is not None else "",
            prober=announcement.prober if announcement is not None else "",
            probes=probe_counts[probe_node.name],
            newest_at=newest_at_by_node.get(probe_node.name),
        )
        agents.append(agent)
    return tuple(sorted(agents, key=lambda agent: (not agent.zone, agent.zone, agent.node)))


def _find_newest_times(snapshot: ClusterSnapshot) -> dict[str, float]:
    """Name of a node -> time of the newest result that its agent wrote, at most the snapshot's time."""
    locations = build_zone_map(snapshot.nodes).location_by_node
    newest_at_by_node: dict[str, float] = {}
    for data in snapshot.results.values():
        decoded = decode_results(data, locations)
        results: list[Sample | Failure] = [*decoded.samples.values(), *decoded.failures.values()]
        for result in results:
            if result.taken_at:
                node, taken_at = result.origin.node, min(result.taken_at, snapshot.now_s)
                newest_at_by_node[node] = max(newest_at_by_node.get(node, 0.0), taken_at)
    return newest_at_by_node


def _find_state(node: ProbeNode, announcement: Announcement | None) -> tuple[AgentState, str]:
    """The agent's state, and why it is not ``up``; for an agent that is ``up``, the problem that it reports."""
    reported_problem = announcement.problem if announcement is not None else ""
    has_address = parse_host_address(node.address) is not None
    checks: Sequence[tuple[bool, AgentState, str]] = (
        (node.is_ready, "excluded", "node is not Ready"),
        (announcement is not None, "down", "no agent has announced itself on this node"),
        (node.has_ready_agent, "down", f"the agent's pod is not Ready: {reported_problem or 'reason unknown'}"),
        (bool(node.zone), "excluded", "node has no zone label"),
        (node.is_schedulable, "excluded", "node is cordoned"),
        (has_address, "down", f"the agent's address {node.address!r} is not an IP address"),
        (node.has_own_address, "down", f"the agent's address {node.address} is not one of its node or pod"),
    )
    return next(((state, reason) for is_met, state, reason in checks if not is_met), ("up", reported_problem))
