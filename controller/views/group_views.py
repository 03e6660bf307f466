"""Views of AppGroups, as ``-o json`` and the page show them. An unknown value is null, never 0."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from controller.appgroups.status import DependencyCheck, DependencyVerdict, GroupState, compute_group_state
from controller.cluster.costs import NO_LOCATION, Location, count_by_location, locations_of
from controller.cluster.crds import AppGroup
from controller.cluster.pods import Pod
from controller.cluster.services import ServiceIndex
from controller.diagnosis.cluster_views import NetworkView, PairView, View
from controller.diagnosis.snapshot import ClusterSnapshot
from kubekit.wire import Condition
from netperf.latencies import ZonePair


class PodView(View, frozen=True):
    """A pod of a workload; ``node`` and ``zone`` are empty until it is bound, ``zone`` also if its node has none."""

    name: str
    node: str
    zone: str
    has_gates: bool


class WorkloadView(View, frozen=True):
    """A workload of a group.

    Attributes:
        selector: value of the workload label on its pods.
        name: of the Deployment or other object that creates its pods.
        index: position in the order of the group's present status, from 1; null if that order lacks the workload.
        pods: its pods that have not finished, sorted by namespace and name.
    """

    selector: str
    name: str
    index: int | None
    pods: tuple[PodView, ...]


class DependencyView(View, frozen=True):
    """A dependency, and the verdict on it by its worst pair of a caller's and a callee's pod.

    Attributes:
        caller, callee: selectors of the workloads.
        max_cost, min_bandwidth_bps: ``maxNetworkCost`` and ``minBandwidth`` of the spec.
        verdict: ``met``, ``violated``, ``unknown`` (no cost known) or ``idle`` (one side has no placed pod).
        cost: of that pair of pods; 0 on the same node, 1 within a zone, null if unknown or idle.
        origin, destination: zones of that pair's caller and callee; empty if idle or for nodes without a zone.
        p50_us: median round trip between these zones; null within a zone, or if it is unknown.
    """

    caller: str
    callee: str
    max_cost: int
    min_bandwidth_bps: int
    verdict: DependencyVerdict
    cost: int | None
    origin: str
    destination: str
    p50_us: float | None


class ZoneLoss(View, frozen=True):
    """A zone, and the workloads that its loss would stop, because all their replicas are in it; an entry per region with the name."""

    zone: str
    stopped_workloads: tuple[str, ...]


class GroupView(View, frozen=True):
    """An AppGroup.

    Attributes:
        algorithm: ``spec.topologySortingAlgorithm``.
        num_members: ``spec.numMembers``.
        running_pods: number of pods in phase Running that are not being deleted.
        gated_pods, pending_pods: numbers of unbound pods with and without scheduling gates.
        total_cost: sum of the dependencies' known costs.
        violated_dependencies: number of dependencies with the verdict ``violated``.
        order: selectors in the order that the next status will have; a workload's ``index`` is that of the present status.
        workloads, dependencies: of the spec, as far as it is valid.
        faults: mistakes in the spec.
        conditions: the status's conditions.
        zone_losses: one for each zone with a replica.
    """

    namespace: str
    name: str
    algorithm: str
    num_members: int
    running_pods: int
    gated_pods: int
    pending_pods: int
    total_cost: int
    violated_dependencies: int
    order: tuple[str, ...]
    workloads: tuple[WorkloadView, ...]
    dependencies: tuple[DependencyView, ...]
    faults: tuple[str, ...]
    conditions: tuple[Condition, ...]
    zone_losses: tuple[ZoneLoss, ...] = ()


def build_group_views(snapshot: ClusterSnapshot, network: NetworkView) -> tuple[GroupView, ...]:
    """Views of all groups, sorted by namespace and name; ``network`` gives the latencies."""
    pairs, locations = network.pairs_by_zones, locations_of(snapshot.nodes)
    membership, cost_index = snapshot.build_membership(), snapshot.build_cost_index()
    pods_by_group = membership.pods_by_group(pod for pod in snapshot.pods if not pod.is_finished)
    services = None if snapshot.scheduler.has_upstream_parity else ServiceIndex.from_objects(snapshot.services)
    views = []
    for group in sorted(snapshot.groups, key=lambda g: g.metadata.key):
        pods = pods_by_group.get(group.metadata.key, [])
        costs = cost_index.for_namespace(group.metadata.namespace).table
        state = compute_group_state(group, pods, locations, costs, membership, services=services)
        views.append(_build_group_view(group, pods, state, locations, pairs))
    return tuple(views)


def _build_group_view(
    group: AppGroup,
    pods: Sequence[Pod],
    state: GroupState,
    locations: Mapping[str, Location],
    pairs: Mapping[ZonePair, PairView],
) -> GroupView:
    """The view of a group; ``pods`` are its pods that have not finished."""
    selectors = state.graph.selectors
    dependencies = tuple(_build_dependency_view(check, state, pairs) for check in state.checks)
    gated_pods = sum(bool(pod.spec.scheduling_gates) for pod in pods)
    return GroupView(
        namespace=group.metadata.namespace,
        name=group.metadata.name,
        algorithm=group.spec.topology_sorting_algorithm,
        num_members=group.spec.num_members,
        running_pods=state.running_count,
        gated_pods=gated_pods,
        pending_pods=sum(not pod.spec.node_name for pod in pods) - gated_pods,
        total_cost=sum(d.cost for d in dependencies if d.cost is not None),
        violated_dependencies=sum(d.verdict == "violated" for d in dependencies),
        order=tuple(selectors[position] for position in state.order.sequence),
        workloads=_build_workload_views(group, state, pods, locations),
        dependencies=dependencies,
        faults=tuple(fault.message for fault in state.spec_faults),
        conditions=tuple(group.status.conditions or ()),
        zone_losses=tuple(_find_zone_losses(selectors, state.pods_by_node, locations)),
    )


def _find_zone_losses(
    selectors: Sequence[str], pods_by_node: Sequence[Mapping[str, int]], locations: Mapping[str, Location]
) -> Iterator[ZoneLoss]:
    """The losses of all zones with a replica; ``pods_by_node`` has, for each of ``selectors``, node -> number of replicas."""
    pods_by_location = [count_by_location(counts, locations) for counts in pods_by_node]
    for location in sorted({location for counts in pods_by_location for location in counts if location.zone}):
        workloads = zip(selectors, pods_by_location, strict=True)
        stopped = (selector for selector, counts in workloads if 0 < counts[location] == counts.total())
        yield ZoneLoss(zone=location.zone, stopped_workloads=tuple(stopped))


def _build_workload_views(
    group: AppGroup, state: GroupState, pods: Iterable[Pod], locations: Mapping[str, Location]
) -> tuple[WorkloadView, ...]:
    pods_by_selector: dict[str, list[Pod]] = defaultdict(list)
    for pod in sorted(pods, key=lambda p: p.metadata.key):
        pods_by_selector[pod.workload].append(pod)
    index_by_selector = {entry.workload.selector: entry.index for entry in group.status.topology_order or ()}
    return tuple(
        WorkloadView(
            selector=workload.selector,
            name=workload.name,
            index=index_by_selector.get(workload.selector),
            pods=tuple(_build_pod_view(pod, locations) for pod in pods_by_selector.get(workload.selector, ())),
        )
        for workload in state.graph.workloads
    )


def _build_pod_view(pod: Pod, locations: Mapping[str, Location]) -> PodView:
    return PodView(
        name=pod.metadata.name,
        node=pod.spec.node_name,
        zone=locations.get(pod.spec.node_name, NO_LOCATION).zone,
        has_gates=bool(pod.spec.scheduling_gates),
    )


def _build_dependency_view(
    check: DependencyCheck, state: GroupState, pairs: Mapping[ZonePair, PairView]
) -> DependencyView:
    edge, selectors = check.edge, state.graph.selectors
    origin, destination = check.origin.zone, check.destination.zone
    return DependencyView(
        caller=selectors[edge.caller],
        callee=selectors[edge.callee],
        max_cost=edge.max_network_cost,
        min_bandwidth_bps=edge.min_bandwidth_bps,
        verdict=check.verdict,
        cost=check.cost if check.verdict in {"met", "violated"} else None,
        origin=origin,
        destination=destination,
        p50_us=pair.p50_us if (pair := pairs.get((origin, destination))) is not None else None,
    )
