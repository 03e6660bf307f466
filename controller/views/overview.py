"""The whole picture from one snapshot, and what a diagnosis looks at: commands and the page gather nothing of their own."""

from __future__ import annotations

from collections.abc import Iterable

from controller.cluster.eligibility import blocking_taints
from controller.cluster.pods import GroupPod
from controller.diagnosis.facts import AgentFact, Facts, NodeFact, Surroundings
from controller.diagnosis.reading import read_pod
from controller.diagnosis.rules import diagnose
from controller.views.agents import build_agents
from controller.views.bandwidth import build_bandwidth
from controller.views.changes import build_changes
from controller.views.groups import build_groups
from controller.views.model import AgentView, NetworkView, Overview
from controller.views.network import build_network
from controller.views.problems import build_problems
from controller.views.snapshot import ClusterSnapshot
from netperf.latencies import LATENCY_ANNOTATION, decode_latencies


def build(snapshot: ClusterSnapshot, namespace: str | None = None) -> Overview:
    """Everything that is shown; pure.

    Args:
        snapshot: what there is.
        namespace: whose AppGroups are shown; None for all.
    """
    network = build_network(snapshot)
    agents, bandwidth = build_agents(snapshot), build_bandwidth(snapshot)
    groups = tuple(g for g in build_groups(snapshot, network) if namespace in {None, g.namespace})
    hidden = {g.metadata.key for g in snapshot.groups if namespace not in {None, g.metadata.namespace}}
    findings = () if snapshot.around is None else diagnose(read_facts(snapshot, network, agents))
    return Overview(
        at=snapshot.now_s,
        network=network,
        agents=agents,
        groups=groups,
        bandwidth=bandwidth,
        problems=build_problems(network, agents, groups, bandwidth, snapshot.readings),
        prometheus=snapshot.readings.source,
        prometheus_error=snapshot.readings.error,
        findings=tuple(f for f in findings if not f.hurts or not hidden.issuperset(f.hurts)),
        changes=tuple(c for c in build_changes(snapshot) if c.about.removeprefix("AppGroup ") not in hidden),
    )


def read_facts(
    snapshot: ClusterSnapshot, network: NetworkView, agents: Iterable[AgentView], more: Iterable[GroupPod] = ()
) -> Facts:
    """Facts of one moment.

    Args:
        snapshot: what there is.
        network: as shown of it.
        agents: as shown of it.
        more: pods that somebody asks about and that the snapshot has not.
    """
    around, membership = snapshot.around or Surroundings(), snapshot.membership
    latencies = [decode_latencies(t.metadata.annotation(LATENCY_ANNOTATION)) for t in snapshot.topologies]
    placements, default = snapshot.placements, snapshot.scheduler.placement
    views = {agent.node: agent for agent in agents}
    return Facts(
        now=snapshot.now_s,
        around=around,
        groups=snapshot.groups,
        pods=tuple(
            read_pod(pod, membership, placements.get(pod.metadata.namespace, default))
            for pod in (*snapshot.pods, *more)
        ),
        agents=tuple(
            AgentFact(a.node, a.zone, a.state, a.reason, a.newest_at if a.probes else None, a.version)
            for a in views.values()
        ),
        nodes={
            node.metadata.name: NodeFact(
                node.metadata.labels or {}, blocking_taints(node), views[node.metadata.name].zone
            )
            for node in snapshot.nodes
        },
        topologies={t.metadata.key: tuple(t.status.conditions or ()) for t in snapshot.topologies},
        has_topology=bool(snapshot.topologies) or not around.topologies_known,
        unreachable=tuple(sorted({pair for found in latencies for pair in found.unreachable})),
        inferred=tuple((p.origin, p.destination) for p in network.pairs if p.basis == "inferred"),
        absent=tuple((p.origin, p.destination) for p in network.pairs if p.basis == "absent"),
        interval_s=network.interval_s,
        max_wait_s=snapshot.scheduler.gates.max_wait_s,
        our_schedulers=snapshot.scheduler.scheduler_names,
        home=snapshot.home,
    )
