"""AppGroups: who depends on whom, in which order, where the pods are, and what each dependency costs there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from controller.appgroup.graph import namespaces_of
from controller.appgroup.status import CostLookup, Facts, Judged, Location, gather
from controller.resources import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup
from controller.scheduler.rules import SAME_HOST_COST, SAME_ZONE_COST
from controller.topology.places import draw_map
from controller.views.model import ConditionView, EdgeView, GroupView, NetworkView, PairView, PodView, WorkloadView
from controller.views.network import by_pair, choose_topology
from controller.views.snapshot import Snapshot
from kubekit.wire import Condition, Pod
from netperf.costs import ZonePair
from netperf.sample import Place

Places = Mapping[str, Place]


def build_groups(snapshot: Snapshot, network: NetworkView) -> tuple[GroupView, ...]:
    """All groups, sorted by namespace and name, judged by the weight that ``network`` shows."""
    topology = choose_topology(snapshot, network.topology or "")
    weight = topology.weight(network.weights) if topology is not None and network.weights is not None else None
    costs, pairs, places = CostLookup(weight), by_pair(network.pairs), draw_map(snapshot.nodes).places
    members: dict[tuple[str, str], list[Pod]] = defaultdict(list)
    for pod in snapshot.pods:
        name = pod.metadata.label(APPGROUP_LABEL)
        if name and not pod.terminal:
            members[pod.metadata.namespace, name].append(pod)
    groups = sorted(snapshot.groups, key=lambda g: g.metadata.key)
    return tuple(build_group(group, _members_of(group, members), places, costs, pairs) for group in groups)


def _members_of(group: AppGroup, members: Mapping[tuple[str, str], list[Pod]]) -> list[Pod]:
    refs = [workload.workload for workload in group.spec.workloads or ()]
    namespaces = sorted(namespaces_of(group.metadata.namespace, refs))
    return [pod for namespace in namespaces for pod in members.get((namespace, group.metadata.name), ())]


def build_group(
    group: AppGroup, pods: Sequence[Pod], places: Places, costs: CostLookup, pairs: Mapping[ZonePair, PairView]
) -> GroupView:
    """One group.

    Args:
        group: the object.
        pods: its pods that have not finished, in all its namespaces.
        places: node name -> place.
        costs: by which dependencies are judged.
        pairs: for the latencies behind the costs.
    """
    locations: dict[str, Location] = {node: (place.region, place.zone) for node, place in places.items()}
    facts = gather(group, pods, locations, costs)
    homes = _homes(pods, places)
    edges = tuple(_edge(judged, facts, pairs, homes) for judged in facts.judged)
    selectors = facts.graph.selectors
    gated = sum(bool(pod.spec.scheduling_gates) for pod in pods)
    return GroupView(
        namespace=group.metadata.namespace,
        name=group.metadata.name,
        algorithm=group.spec.topology_sorting_algorithm,
        members=group.spec.num_members,
        running=facts.running,
        gated=gated,
        pending=sum(not pod.spec.node_name for pod in pods) - gated,
        total_cost=sum(edge.cost for edge in edges if edge.cost is not None),
        violated=sum(edge.verdict == "violated" for edge in edges),
        order=tuple(selectors[position] for position in facts.order.sequence),
        workloads=_workloads(group, facts, pods, places),
        edges=edges,
        faults=tuple(fault.detail for fault in facts.graph.faults),
        conditions=_conditions(group.status.conditions),
    )


def _workloads(group: AppGroup, facts: Facts, pods: Iterable[Pod], places: Places) -> tuple[WorkloadView, ...]:
    by_selector: dict[str, list[Pod]] = defaultdict(list)
    for pod in sorted(pods, key=lambda p: p.metadata.key):
        by_selector[pod.metadata.label(WORKLOAD_LABEL)].append(pod)
    # The order in the status is the one in force; the facts' is what the next status will say.
    index = {entry.workload.selector: entry.index for entry in group.status.topology_order or ()}
    return tuple(
        WorkloadView(
            selector=workload.selector,
            name=workload.name,
            kind=workload.kind,
            index=index.get(workload.selector),
            pods=tuple(_pod(pod, places) for pod in by_selector.get(workload.selector, ())),
        )
        for workload in facts.graph.workloads
    )


def _pod(pod: Pod, places: Places) -> PodView:
    place = places.get(pod.spec.node_name)
    return PodView(
        name=pod.metadata.name,
        node=pod.spec.node_name,
        zone=place.zone if place is not None else "",
        phase="Terminating" if pod.metadata.deletion_timestamp else pod.status.phase or "Pending",
        gated=bool(pod.spec.scheduling_gates),
    )


def _homes(pods: Iterable[Pod], places: Places) -> dict[str, set[str]]:
    """The nodes of each workload's pods, as far as pods count for the group's status."""
    found: dict[str, set[str]] = defaultdict(set)
    for pod in pods:
        if pod.spec.node_name in places and pod.metadata.deletion_timestamp is None:
            found[pod.metadata.label(WORKLOAD_LABEL)].add(pod.spec.node_name)
    return found


def _edge(judged: Judged, facts: Facts, pairs: Mapping[ZonePair, PairView], homes: Mapping[str, set[str]]) -> EdgeView:
    edge, zones = judged.edge, (judged.origin[1], judged.destination[1])
    dependant, dependency = (facts.graph.selectors[position] for position in (edge.dependant, edge.dependency))
    cost = judged.cost if judged.verdict in {"met", "violated"} else None
    # The status judges by zones; the scheduler's rules know that one and the same node is nearer still.
    if cost == SAME_ZONE_COST and len(homes[dependant] | homes[dependency]) == 1:
        cost = SAME_HOST_COST
    return EdgeView(
        dependant=dependant,
        dependency=dependency,
        max_cost=edge.max_network_cost,
        min_bandwidth_bps=edge.min_bandwidth_bps,
        verdict=judged.verdict,
        cost=cost,
        origin=zones[0],
        destination=zones[1],
        p50_us=pairs[zones].p50_us if zones in pairs else None,
    )


def _conditions(conditions: Iterable[Condition] | None) -> tuple[ConditionView, ...]:
    return tuple(
        ConditionView(type=c.type, status=c.status, reason=c.reason, message=c.message, since=c.last_transition_time)
        for c in conditions or ()
    )
