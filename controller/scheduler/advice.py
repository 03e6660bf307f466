"""Computes two conditions of a placed group: RoutedNear, by the routing of its Services, and Balanced, by its replicas and calls.

The routing rules are those of kube-proxy (pkg/proxy/topology.go) and of the EndpointSlice controller (endpointslice/trafficdist,
endpointslice/reconciler.go), Kubernetes 1.36:

- A hint is the zone or node of the replica itself.
- One ready replica without a zone makes kube-proxy ignore the zones of all.
- A node without a replica in its zone calls any replica.
- Automatic hints override ``trafficDistribution``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from controller.appgroups.status import BALANCED, ROUTED_NEAR
from controller.cluster.costs import Location, count_by_location
from controller.cluster.hosts import Host
from controller.cluster.services import Routing, Service
from controller.cluster.statuses import ConditionState, make_conditions
from controller.scheduler.placement.annotations import call_edges, spread_of
from controller.scheduler.placement.evaluation import Evaluation, count_replicas, endpoints_of, evaluate_edges
from controller.scheduler.placement.problem import CallEdge, Problem
from controller.scheduler.placement.problem_builder import BoundReplica, PlacementRequest, Spread, build_problem
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.state import State
from kubekit.text import join_first
from kubekit.wire import Condition

OVERLOADED_RATIO = 1.5
"""Ratio of a replica's calls to its fair share above which the replica is reported as overloaded."""
MIN_GAIN_US, MIN_GAIN_RATIO = 20.0, 0.05
"""Smallest gain of an advised routing: microseconds per call, and share of the call's latency; both must be met."""
MAX_MESSAGES_SHOWN = 3

_DISTRIBUTION_BY_ROUTING = {Routing.ZONE: "PreferSameZone", Routing.NODE: "PreferSameNode"}


class PlacedGroup(msgspec.Struct, frozen=True, dict=True):
    """Placed pods of a group, and the Services that route calls to them.

    Attributes:
        snapshot: the AppGroup, its dependencies and costs, and the nodes of its placed pods, without their resources.
        pods_by_node: [workload] node -> number of placed pods.
        services: [workload] the Services that select it.
        routings: [workload] routing of calls to it.
        spreads: [workload] how its replicas are spread.
        zone_count: number of zones with nodes.
    """

    snapshot: GroupSnapshot
    pods_by_node: Sequence[Counter[str]]
    services: Sequence[Sequence[Service]]
    routings: Sequence[Routing]
    spreads: Sequence[Spread]
    zone_count: int

    @cached_property
    def problem(self) -> Problem:
        """A problem without replicas to place, for evaluations."""
        group, graph, pods = self.snapshot.group, self.snapshot.graph, self.pods_by_node
        replica_counts = {workload: pods_by_node.total() for workload, pods_by_node in enumerate(pods)}
        request = PlacementRequest(
            snapshot=self.snapshot,
            waiting=(),
            bound=[BoundReplica(node, w) for w, pods_by_node in enumerate(pods) for node in pods_by_node.elements()],
            spreads=self.spreads,
            edges=call_edges(group, graph, replica_counts, self.routings, []),
        )
        return build_problem(request)

    @cached_property
    def replica_counts(self) -> Sequence[Mapping[int, int]]:
        """[workload] host of `problem` -> number of placed pods."""
        return count_replicas(self.problem, np.zeros(0, np.int64))

    def edges_to(self, callee: int) -> list[CallEdge]:
        """Dependencies on a workload with traffic, and with pods at both ends."""
        edges = [e for e in self.problem.edges if e.callee == callee and e.weight]
        return [e for e in edges if self.replica_counts[e.caller] and self.replica_counts[callee]]

    def evaluate(self, edges: Sequence[CallEdge], routing: Routing) -> Evaluation:
        """Evaluate these dependencies, by time, as if the callee's Service had this routing."""
        routed_edges = [msgspec.structs.replace(edge, routing=routing) for edge in edges]
        return evaluate_edges(self.problem, routed_edges, self.replica_counts)

    def replicas_of_zone_spreads(self) -> dict[str, Counter[Location]]:
        """Selectors of workloads with spread ``zone`` and two or more replicas -> replicas by location; empty in a single zone."""
        locations = {node: host.location for node, host in self.snapshot.hosts.items()}
        workloads = zip(self.snapshot.graph.selectors, self.spreads, self.pods_by_node, strict=True)
        return {
            selector: count_by_location(pods_by_node, locations)
            for selector, spread, pods_by_node in workloads
            if spread == "zone" and pods_by_node.total() > 1 and self.zone_count > 1
        }


def copy_placed_group(state: State, key: str) -> PlacedGroup:
    """The placed pods of a group, as a copy that later changes of the state do not change."""
    group, graph, pod_counts = state.groups[key], state.graph(key), state.pod_counts(key)
    location_index = state.location_index
    pods_by_node = [
        Counter({node: count for node, count in pod_counts.get(selector, {}).items() if node in location_index})
        for selector in graph.selectors
    ]
    hosts = {
        node: Host(node, state.locations[location_index[node]], labels={}, taints=(), allocatable={})
        for counts in pods_by_node
        for node in counts
    }
    costs = state.costs(group.metadata.namespace)
    default = spread_of(group.metadata.annotations, "soft", [])
    example_pods = [state.example_pods(key, selector) for selector in graph.selectors]
    zones = {state.locations[index] for index in state.node_count_by_location if state.locations[index].zone}
    snapshot = GroupSnapshot(
        graph=graph,
        pods=(),
        replicas={},
        costs=costs.table,
        hosts=hosts,
        used={},
        group=group,
        has_topology=bool(costs.network_topology),
    )
    return PlacedGroup(
        snapshot=snapshot,
        pods_by_node=pods_by_node,
        services=[state.services_of(key, selector) for selector in graph.selectors],
        routings=[state.routing_to(key, selector) for selector in graph.selectors],
        spreads=[spread_of(pods[0].annotations, default, []) if pods else default for pods in example_pods],
        zone_count=len(zones),
    )


class _Advice(NamedTuple):
    """A better routing for a Service, or why its routing has no effect.

    Attributes:
        gain_us: time that a call to the workload would gain; 0 if a replica's node has no zone label.
        reason, message: reason and message of the condition RoutedNear.
    """

    gain_us: float
    reason: str
    message: str


def _advise(placed_group: PlacedGroup, callee: int) -> _Advice | None:
    """Advice for the Service of a workload; None if nothing calls it by a Service, or no other routing is better."""
    edges = placed_group.edges_to(callee)
    services = [s for s in placed_group.services[callee] if not s.is_headless]
    # With Local, only replicas on the caller's node answer, whatever trafficDistribution says.
    if not edges or not services or any(s.spec.internal_traffic_policy == "Local" for s in services):
        return None
    # The least local Service, because it is unknown which of them callers use.
    service = min(services, key=lambda s: s.routing)
    name, distribution = f"Service {service.metadata.key}", service.spec.traffic_distribution
    if service.routing is not Routing.ANY:
        if endpoints_of(placed_group.problem, Routing.ZONE, placed_group.replica_counts[callee]).has_zone_hints:
            return None
        cause = "kube-proxy ignores zones, because a replica is on a node without a zone label"
        return _Advice(0.0, "HintsIgnored", f"{name} has {distribution}, but {cause}")
    current = placed_group.evaluate(edges, service.routing)
    routing = _find_better_routing(placed_group, edges, current)
    if routing is None:
        return None
    better = placed_group.evaluate(edges, routing)
    reason, cause = "NoTrafficDistribution", "has no trafficDistribution"
    if service.has_auto_hints:
        reason, cause = "HintsIgnored", "asks for automatic hints by annotation, which overrides trafficDistribution"
    elif distribution:
        cause = f"has the unknown trafficDistribution {distribution}"
    latencies = f"{_format_latency(better)} instead of {_format_latency(current)}"
    message = f"{name} {cause}: with {_DISTRIBUTION_BY_ROUTING[routing]} a call would take {latencies}"
    return _Advice(current.cost_per_call - better.cost_per_call, reason, message)


def _find_better_routing(placed_group: PlacedGroup, edges: Sequence[CallEdge], current: Evaluation) -> Routing | None:
    """Routing by zone, or by node if that gains enough more; None if neither gains enough without overload."""
    better, lowest_cost_us = None, current.cost_per_call
    for routing in (Routing.ZONE, Routing.NODE):
        evaluation = placed_group.evaluate(edges, routing)
        is_overloaded = evaluation.max_load_ratio > max(OVERLOADED_RATIO, current.max_load_ratio)
        min_gain_us = max(MIN_GAIN_US, MIN_GAIN_RATIO * current.cost_per_call)
        if not is_overloaded and lowest_cost_us - evaluation.cost_per_call >= min_gain_us:
            better, lowest_cost_us = routing, evaluation.cost_per_call
    return better


def _format_latency(evaluation: Evaluation) -> str:
    """The time of a call with two digits, so that small changes of the network do not rewrite a condition."""
    return f"{float(f'{evaluation.cost_per_call:.2g}'):.0f} µs"


def advice_conditions(placed_group: PlacedGroup) -> list[Condition]:
    """RoutedNear, False if a Service could route better; Balanced, False if replicas or calls are not spread; else True or Unknown."""
    states = {ROUTED_NEAR: _routed_near_state(placed_group), BALANCED: _balanced_state(placed_group)}
    return make_conditions(states, placed_group.snapshot.group.metadata.generation)


def _routed_near_state(placed_group: PlacedGroup) -> ConditionState:
    advice = [a for callee in range(len(placed_group.pods_by_node)) if (a := _advise(placed_group, callee)) is not None]
    advice.sort(key=lambda a: (-a.gain_us, a.message))
    if advice:
        message = join_first([a.message for a in advice], MAX_MESSAGES_SHOWN, "; ")
        return ConditionState(advice[0].reason, message, holds=False)
    pods_by_node = placed_group.pods_by_node
    if any(pods_by_node[edge.caller] and pods_by_node[edge.callee] for edge in placed_group.snapshot.graph.edges):
        return ConditionState("NoBetterRouting", "no trafficDistribution would bring calls nearer", holds=True)
    return ConditionState("NothingPlaced", "no dependency has pods placed at both ends", holds=None)


def _balanced_state(placed_group: PlacedGroup) -> ConditionState:
    if not any(placed_group.pods_by_node):
        return ConditionState("NothingPlaced", "no pod is placed", holds=None)
    one_zone, overloaded = list(_one_zone_messages(placed_group)), list(_overloaded_replica_messages(placed_group))
    if one_zone or overloaded:
        message = join_first([*one_zone, *overloaded], MAX_MESSAGES_SHOWN, "; ")
        return ConditionState("OneZone" if one_zone else "OverloadedReplica", message, holds=False)
    message = "replicas are in as many zones as they should be, and none is overloaded"
    return ConditionState("Balanced", message, holds=True)


def _one_zone_messages(placed_group: PlacedGroup) -> Iterator[str]:
    for selector, replicas_by_location in placed_group.replicas_of_zone_spreads().items():
        if len(replicas_by_location) == 1:
            zone = next(iter(replicas_by_location)).zone
            where = f"in {zone}" if zone else "on nodes without a zone"
            yield f"all {replicas_by_location.total()} replicas of {selector} are {where}, but its spread is zone"


def _overloaded_replica_messages(placed_group: PlacedGroup) -> Iterator[str]:
    for callee, selector in enumerate(placed_group.snapshot.graph.selectors):
        edges = placed_group.edges_to(callee)
        routing = edges[0].routing if edges else Routing.ANY
        ratio = placed_group.evaluate(edges, routing).max_load_ratio if routing is not Routing.ANY else 1.0
        if ratio > OVERLOADED_RATIO:
            yield f"a replica of {selector} takes {ratio:.1f} times its fair share of the calls"
