"""Views of AppGroups: dependencies, order, placement, and the cost of each dependency."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from controller.appgroups.status import DependencyCheck, GroupState, compute_group_state
from controller.cluster.costs import NO_LOCATION, Location, count_by_location, locations_of
from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup
from controller.cluster.pods import Pod
from controller.cluster.services import ServiceIndex
from controller.diagnosis.cluster_views import NetworkView, PairView
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.views.group_views import EdgeView, GroupView, PodView, WorkloadView, ZoneLoss
from netperf.latencies import ZonePair


def build_groups(snapshot: ClusterSnapshot, network: NetworkView) -> tuple[GroupView, ...]:
    """Views of all groups, sorted by namespace and name, with the scheduler's costs and the network's latencies."""
    pairs, locations = network.pairs_by_zones, locations_of(snapshot.nodes)
    membership = snapshot.build_membership()
    members: dict[str, list[Pod]] = defaultdict(list)
    for pod in snapshot.pods:
        name = pod.metadata.label(APPGROUP_LABEL)
        if name and not pod.is_finished:
            members[membership.group_key_of(pod.metadata.namespace, name)].append(pod)
    costs = snapshot.build_cost_index()
    services = None if snapshot.scheduler.is_parity else ServiceIndex.from_objects(snapshot.services)
    views = []
    for group in sorted(snapshot.groups, key=lambda g: g.metadata.key):
        pods, table = members[group.metadata.key], costs.for_namespace(group.metadata.namespace).table
        state = compute_group_state(group, pods, locations, table, membership, services=services)
        views.append(_build_group(group, pods, state, locations, pairs))
    return tuple(views)


def _build_group(
    group: AppGroup,
    pods: Sequence[Pod],
    state: GroupState,
    locations: Mapping[str, Location],
    pairs: Mapping[ZonePair, PairView],
) -> GroupView:
    """The view of a group; ``pods`` are those that have not finished."""
    selectors = state.graph.selectors
    edges = tuple(_build_edge(check, state, pairs) for check in state.checks)
    gated = sum(bool(pod.spec.scheduling_gates) for pod in pods)
    return GroupView(
        namespace=group.metadata.namespace,
        name=group.metadata.name,
        algorithm=group.spec.topology_sorting_algorithm,
        members=group.spec.num_members,
        running=state.running_count,
        gated=gated,
        pending=sum(not pod.spec.node_name for pod in pods) - gated,
        total_cost=sum(edge.cost for edge in edges if edge.cost is not None),
        violated=sum(edge.state == "violated" for edge in edges),
        order=tuple(selectors[position] for position in state.order.sequence),
        workloads=_build_workloads(group, state, pods, locations),
        edges=edges,
        faults=tuple(fault.message for fault in state.graph.faults),
        conditions=tuple(group.status.conditions or ()),
        zone_losses=tuple(_zone_losses(selectors, state.placed_by_node, locations)),
    )


def _zone_losses(
    selectors: Sequence[str], members: Sequence[Mapping[str, int]], locations: Mapping[str, Location]
) -> Iterator[ZoneLoss]:
    """The losses of all zones with a replica; nodes without a zone are left out.

    Args:
        selectors: of the workloads.
        members: node -> number of replicas, of each workload.
        locations: node -> location.
    """
    replicas = [count_by_location(nodes, locations) for nodes in members]
    for location in sorted({location for counts in replicas for location in counts if location.zone}):
        stops = [selectors[w] for w, counts in enumerate(replicas) if counts and counts[location] == counts.total()]
        yield ZoneLoss(location.zone, tuple(stops))


def _build_workloads(
    group: AppGroup, state: GroupState, pods: Iterable[Pod], locations: Mapping[str, Location]
) -> tuple[WorkloadView, ...]:
    by_selector: dict[str, list[Pod]] = defaultdict(list)
    for pod in sorted(pods, key=lambda p: p.metadata.key):
        by_selector[pod.metadata.label(WORKLOAD_LABEL)].append(pod)
    # The status has the order in use; the state has the order of the next status.
    index = {entry.workload.selector: entry.index for entry in group.status.topology_order or ()}
    return tuple(
        WorkloadView(
            selector=workload.selector,
            name=workload.name,
            kind=workload.kind,
            index=index.get(workload.selector),
            pods=tuple(_build_pod(pod, locations) for pod in by_selector.get(workload.selector, ())),
        )
        for workload in state.graph.workloads
    )


def _build_pod(pod: Pod, locations: Mapping[str, Location]) -> PodView:
    return PodView(
        name=pod.metadata.name,
        node=pod.spec.node_name,
        zone=locations.get(pod.spec.node_name, NO_LOCATION).zone,
        gated=bool(pod.spec.scheduling_gates),
    )


def _build_edge(check: DependencyCheck, state: GroupState, pairs: Mapping[ZonePair, PairView]) -> EdgeView:
    edge, zones, selectors = check.edge, (check.origin.zone, check.destination.zone), state.graph.selectors
    return EdgeView(
        dependent=selectors[edge.caller],
        dependency=selectors[edge.callee],
        max_cost=edge.max_network_cost,
        min_bandwidth_bps=edge.min_bandwidth_bps,
        state=check.verdict,
        cost=check.cost if check.verdict in {"met", "violated"} else None,
        origin=zones[0],
        destination=zones[1],
        p50_us=pairs[zones].p50_us if zones in pairs else None,
    )
