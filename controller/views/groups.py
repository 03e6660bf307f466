"""AppGroups: who depends on whom, in which order, where the pods are, and what each dependency costs there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from controller.appgroup.graph import Edge, Graph, build_graph, namespaces_of
from controller.resources import APPGROUP_LABEL, REGION_LABEL, WORKLOAD_LABEL, ZONE_LABEL, AppGroup
from controller.topology.bandwidth import is_placed
from controller.topology.places import draw_map
from controller.views.model import (
    ConditionView,
    EdgeView,
    GroupView,
    NetworkView,
    PairView,
    PodView,
    Verdict,
    WorkloadView,
)
from controller.views.network import by_pair, choose_topology, index_weight
from controller.views.snapshot import Snapshot
from kubekit.wire import Condition, Pod
from netperf.costs import ZonePair
from netperf.policy import SAME_HOST_COST, SAME_ZONE_COST
from netperf.sample import Place


class Prices(msgspec.Struct, frozen=True):
    """What the rule of NetworkOverhead needs: costs by zone pair and by region pair, and where nodes are."""

    zones: Mapping[ZonePair, int]
    regions: Mapping[ZonePair, int]
    places: Mapping[str, Place]

    def between(self, origin: str, destination: str) -> int | None:
        """Cost between two nodes (NetworkOverhead, docs/contracts, section 4); None when it is not known."""
        if origin == destination:
            return SAME_HOST_COST
        here, there = self.places.get(origin), self.places.get(destination)
        if here is None or there is None:
            return None
        if here.region != there.region:
            return self.regions.get((here.region, there.region))
        return SAME_ZONE_COST if here.zone == there.zone else self.zones.get((here.zone, there.zone))


def prices_of(snapshot: Snapshot, network: NetworkView) -> Prices:
    """The costs of the weight that ``network`` shows."""
    topology = choose_topology(snapshot.topologies, network.topology or "")
    zones = index_weight(topology, network.weights, ZONE_LABEL)
    regions = index_weight(topology, network.weights, REGION_LABEL)
    return Prices(
        zones={pair: entry.network_cost for pair, entry in zones.items()},
        regions={pair: entry.network_cost for pair, entry in regions.items()},
        places=draw_map(snapshot.nodes).places,
    )


def build_groups(snapshot: Snapshot, network: NetworkView) -> tuple[GroupView, ...]:
    """All groups, sorted by namespace and name."""
    prices, pairs = prices_of(snapshot, network), by_pair(network.pairs)
    members: dict[tuple[str, str], list[Pod]] = defaultdict(list)
    for pod in snapshot.pods:
        group = pod.metadata.label(APPGROUP_LABEL)
        if group and not pod.terminal:
            members[pod.metadata.namespace, group].append(pod)
    groups = sorted(snapshot.groups, key=lambda g: g.metadata.key)
    return tuple(build_group(group, _members_of(group, members), prices, pairs) for group in groups)


def _members_of(group: AppGroup, members: Mapping[tuple[str, str], list[Pod]]) -> list[Pod]:
    refs = [workload.workload for workload in group.spec.workloads or ()]
    namespaces = sorted(namespaces_of(group.metadata.namespace, refs))
    return [pod for namespace in namespaces for pod in members.get((namespace, group.metadata.name), ())]


def build_group(group: AppGroup, pods: Sequence[Pod], prices: Prices, pairs: Mapping[ZonePair, PairView]) -> GroupView:
    """One group.

    Args:
        group: the object.
        pods: its pods that have not finished, in all its namespaces.
        prices: costs.
        pairs: for the latencies behind the costs.
    """
    graph = build_graph(group.spec)
    by_selector: dict[str, list[Pod]] = defaultdict(list)
    for pod in sorted(pods, key=lambda p: p.metadata.key):
        by_selector[pod.metadata.label(WORKLOAD_LABEL)].append(pod)
    edges = tuple(_edge(edge, graph, by_selector, prices, pairs) for edge in graph.edges)
    index = {entry.workload.selector: entry.index for entry in group.status.topology_order or ()}
    gated = sum(bool(pod.spec.scheduling_gates) for pod in pods)
    return GroupView(
        namespace=group.metadata.namespace,
        name=group.metadata.name,
        algorithm=group.spec.topology_sorting_algorithm,
        members=group.spec.num_members,
        running=sum(pod.status.phase == "Running" for pod in pods),
        gated=gated,
        pending=sum(not pod.spec.node_name for pod in pods) - gated,
        total_cost=sum(_total(edge, graph, by_selector, prices) for edge in graph.edges),
        violated=sum(edge.verdict == "violated" for edge in edges),
        workloads=tuple(
            WorkloadView(
                selector=workload.selector,
                name=workload.name,
                kind=workload.kind,
                index=index.get(workload.selector),
                pods=tuple(_pod(pod, prices) for pod in by_selector.get(workload.selector, ())),
            )
            for workload in graph.workloads
        ),
        edges=edges,
        faults=tuple(fault.detail for fault in graph.faults),
        conditions=_conditions(group.status.conditions),
    )


def _conditions(conditions: Iterable[Condition] | None) -> tuple[ConditionView, ...]:
    return tuple(
        ConditionView(type=c.type, status=c.status, reason=c.reason, message=c.message, since=c.last_transition_time)
        for c in conditions or ()
    )


def _pod(pod: Pod, prices: Prices) -> PodView:
    place = prices.places.get(pod.spec.node_name)
    return PodView(
        name=pod.metadata.name,
        node=pod.spec.node_name,
        zone=place.zone if place is not None else "",
        phase="Terminating" if pod.metadata.deletion_timestamp else pod.status.phase or "Pending",
        gated=bool(pod.spec.scheduling_gates),
    )


def _placed(selector: str, by_selector: Mapping[str, Sequence[Pod]]) -> list[str]:
    return [pod.spec.node_name for pod in by_selector.get(selector, ()) if is_placed(pod)]


def _costs(
    edge: Edge, graph: Graph, by_selector: Mapping[str, Sequence[Pod]], prices: Prices
) -> list[tuple[str, str, int | None]]:
    """Every pair of placed pods of an edge, as nodes, and its cost."""
    callers = _placed(graph.workloads[edge.dependant].selector, by_selector)
    called = _placed(graph.workloads[edge.dependency].selector, by_selector)
    return [(a, b, prices.between(a, b)) for a in callers for b in called]


def _total(edge: Edge, graph: Graph, by_selector: Mapping[str, Sequence[Pod]], prices: Prices) -> int:
    return sum(cost for _, _, cost in _costs(edge, graph, by_selector, prices) if cost is not None)


def _edge(
    edge: Edge,
    graph: Graph,
    by_selector: Mapping[str, Sequence[Pod]],
    prices: Prices,
    pairs: Mapping[ZonePair, PairView],
) -> EdgeView:
    found = _costs(edge, graph, by_selector, prices)
    known = [(cost, a, b) for a, b, cost in found if cost is not None]
    violated = sum(cost > edge.max_network_cost and not _together(a, b, prices) for cost, a, b in known)
    unknown = len(found) - len(known)
    worst = max(known, default=None)
    pair = _zones(worst[1], worst[2], prices) if worst is not None else ("", "")
    return EdgeView(
        dependant=graph.workloads[edge.dependant].selector,
        dependency=graph.workloads[edge.dependency].selector,
        max_cost=edge.max_network_cost,
        min_bandwidth_bps=edge.min_bandwidth_bps,
        cost=worst[0] if worst is not None else None,
        satisfied=len(known) - violated,
        violated=violated,
        unknown=unknown,
        verdict=_verdict(violated, unknown, len(found)),
        latency_us=pairs[pair].p50_us if pair in pairs else None,
    )


def _together(origin: str, destination: str, prices: Prices) -> bool:
    """On one node or in one zone, where a dependency is satisfied whatever it asks for."""
    return prices.between(origin, destination) in {SAME_HOST_COST, SAME_ZONE_COST}


def _verdict(violated: int, unknown: int, total: int) -> Verdict:
    if not total:
        return "unplaced"
    if violated:
        return "violated"
    return "unknown" if unknown else "satisfied"


def _zones(origin: str, destination: str, prices: Prices) -> ZonePair:
    here, there = prices.places.get(origin), prices.places.get(destination)
    return (here.zone if here is not None else "", there.zone if there is not None else "")
