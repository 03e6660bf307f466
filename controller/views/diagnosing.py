"""What a diagnosis looks at, from a snapshot and what is shown of it: commands and the page gather nothing of their own."""

from __future__ import annotations

from collections.abc import Iterable

from controller.cluster.eligibility import blocking_taints
from controller.cluster.pods import GroupPod
from controller.diagnosis.facts import AgentFact, Facts, NodeFact, Surroundings
from controller.diagnosis.reading import read_pod
from controller.views.model import AgentView, NetworkView
from controller.views.snapshot import Snapshot
from netperf.latencies import LATENCY_ANNOTATION, decode_latencies


def read_facts(
    snapshot: Snapshot, network: NetworkView, agents: Iterable[AgentView], more: Iterable[GroupPod] = ()
) -> Facts:
    """Facts of one moment.

    Args:
        snapshot: what there is.
        network: as shown of it.
        agents: as shown of it.
        more: pods that somebody asks about and that are of no AppGroup.
    """
    around = snapshot.around or Surroundings()
    latencies = [decode_latencies(t.metadata.annotation(LATENCY_ANNOTATION)) for t in snapshot.topologies]
    views = {agent.node: agent for agent in agents}
    return Facts(
        now=snapshot.now_s,
        around=around,
        groups=snapshot.groups,
        pods=tuple(read_pod(pod) for pod in (*snapshot.pods, *more)),
        agents=tuple(
            AgentFact(
                a.node, a.zone, a.state != "away", a.state, a.reason, a.newest_at if a.probes else None, a.version
            )
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
        max_wait_s=snapshot.max_wait_s,
        our_schedulers=snapshot.our_schedulers,
        home=snapshot.home,
    )
