"""Conditions RoutedNear and Balanced of a placed group: whether Services could route calls nearer, or replicas are unbalanced. Pure.

The routing rules are those of kube-proxy (pkg/proxy/topology.go) and of the EndpointSlice controller (endpointslice/trafficdist,
endpointslice/reconciler.go), Kubernetes 1.36: a hint is the zone or node of the replica itself; one ready replica without a zone
makes kube-proxy ignore the zones of all; a node without a replica in its zone calls any replica; automatic hints override
``trafficDistribution``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from controller.appgroups.status import BALANCED, ROUTED_NEAR
from controller.cluster.costs import CostTable, Location, count_by_location
from controller.cluster.crds import AppGroup
from controller.cluster.dependency_graph import DependencyGraph
from controller.cluster.hosts import Host
from controller.cluster.services import Routing, Service
from controller.scheduler.placement.annotations import call_edges, spread_of
from controller.scheduler.placement.evaluation import Evaluation, count_replicas, endpoints_of, evaluate_edges
from controller.scheduler.placement.problem import CallEdge, Problem
from controller.scheduler.placement.problem_builder import BoundReplica, PlacementRequest, Spread, build_problem
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.state import State
from kubekit.conditions import make_condition
from kubekit.text import join_first
from kubekit.wire import Condition

OVERLOADED_RATIO = 1.5
"""Ratio of calls to the fair share above which a replica is reported as overloaded."""
MIN_GAIN_US, MIN_GAIN_RATIO = 20.0, 0.05
"""Least gain worth advice: microseconds, and share of a call's latency."""
MAX_SHOWN = 3

_DISTRIBUTION = {Routing.ANY: "", Routing.ZONE: "PreferSameZone", Routing.NODE: "PreferSameNode"}


class PlacedGroup(msgspec.Struct, frozen=True, dict=True):
    """Placed pods of a group, and the Services that route calls to them.

    Attributes:
        group: the AppGroup.
        graph: its dependencies.
        members: per workload, node -> number of placed pods.
        locations: node -> location.
        services: per workload, the Services that select it.
        routings: per workload, the routing of calls to it.
        spreads: per workload.
        costs: between locations, by the weight in use.
        has_topology: whether there is a NetworkTopology.
        zones: number of zones that have nodes.
    """

    group: AppGroup
    graph: DependencyGraph
    members: Sequence[Mapping[str, int]]
    locations: Mapping[str, Location]
    services: Sequence[Sequence[Service]]
    routings: Sequence[Routing]
    spreads: Sequence[Spread]
    costs: CostTable
    has_topology: bool = True
    zones: int = 0

    @cached_property
    def problem(self) -> Problem:
        """The placed pods as the planner's placed."""
        snapshot = GroupSnapshot(
            graph=self.graph,
            pods=(),
            replicas={},
            costs=self.costs,
            hosts={node: Host(node, location, {}, (), {}) for node, location in self.locations.items()},
            used={},
            has_topology=self.has_topology,
        )
        counts = {w: sum(nodes.values()) for w, nodes in enumerate(self.members)}
        placed = ((node, w, n) for w, nodes in enumerate(self.members) for node, n in nodes.items())
        request = PlacementRequest(
            snapshot=snapshot,
            waiting=(),
            bound=[BoundReplica(node, workload) for node, workload, count in placed for _ in range(count)],
            spreads=self.spreads,
            edges=call_edges(self.group, self.graph, counts, self.routings, []),
        )
        return build_problem(request)

    @cached_property
    def by_host(self) -> Sequence[Mapping[int, int]]:
        """[workload] host of `problem` -> number of placed pods."""
        return count_replicas(self.problem, np.zeros(0, np.int64))

    def callers_of(self, callee: int) -> list[CallEdge]:
        """Dependencies on a workload that have traffic, and pods at both ends."""
        edges = [e for e in self.problem.edges if e.callee == callee and e.weight]
        return [e for e in edges if self.by_host[e.caller] and self.by_host[callee]]

    def has_unzoned_replica(self, callee: int) -> bool:
        """Whether a replica is on a node without a zone; then kube-proxy ignores all zone hints."""
        return not endpoints_of(self.problem, Routing.ZONE, self.by_host[callee]).has_zone_hints

    def estimate(self, edges: Sequence[CallEdge], routing: Routing) -> Evaluation:
        """Evaluate these calls for a routing of the Service that answers them."""
        routed = [msgspec.structs.replace(edge, routing=routing) for edge in edges]
        return evaluate_edges(self.problem, routed, self.by_host)


def placed_group(state: State, key: str) -> PlacedGroup:
    """The placed pods of a group now; later changes of the state do not change the result."""
    group, graph, members = state.groups[key], state.graph(key), state.pod_counts(key)
    placed = [
        {node: count for node, count in members.get(w.selector, {}).items() if node in state.location_index}
        for w in graph.workloads
    ]
    costs = state.costs(group.metadata.namespace)
    default = spread_of(group.metadata.annotations, "soft", [])
    examples = [state.example_pods(key, selector) for selector in graph.selectors]
    return PlacedGroup(
        group=group,
        graph=graph,
        members=placed,
        locations={node: state.locations[state.location_index[node]] for nodes in placed for node in nodes},
        services=[state.services_of(key, selector) for selector in graph.selectors],
        routings=[state.routing_to(key, selector) for selector in graph.selectors],
        spreads=[spread_of(pods[0].annotations, default, []) if pods else default for pods in examples],
        costs=costs.table,
        has_topology=bool(costs.topology_key),
        zones=len({state.locations[index] for index in state.node_count_by_location if state.locations[index].zone}),
    )


class _Advice(NamedTuple):
    """The latency that a call to a workload would gain by the advice, the condition's reason, and its message."""

    gain_us: float
    reason: str
    text: str


def _advise(placed: PlacedGroup, callee: int) -> _Advice | None:
    """Advice for the Service of a workload; None if it has no better routing."""
    edges = placed.callers_of(callee)
    services = [s for s in placed.services[callee] if not s.is_headless]
    if not edges or not services or any(s.spec.internal_traffic_policy == "Local" for s in services):
        return None
    service = min(services, key=lambda s: s.routing)
    name, distribution = f"Service {service.metadata.key}", _DISTRIBUTION[service.routing]
    if distribution and placed.has_unzoned_replica(callee):
        text = (
            f"{name} has {distribution}, but kube-proxy ignores it, because a replica is on a node without a zone label"
        )
        return _Advice(0.0, "HintsIgnored", text)
    current = placed.estimate(edges, service.routing)
    better = None if distribution else _nearer_routing(placed, edges, current)
    if better is None:
        return None
    routing, estimate = better
    reason, cause = "NoTrafficDistribution", "has no trafficDistribution"
    if service.has_auto_hints:
        reason, cause = "HintsIgnored", "asks for automatic hints by annotation, which overrides trafficDistribution"
    elif service.spec.traffic_distribution:
        cause = f"has the unknown trafficDistribution {service.spec.traffic_distribution}"
    latencies = f"{_format_latency(estimate)} instead of {_format_latency(current)}"
    text = f"{name} {cause}: with {_DISTRIBUTION[routing]} a call would take {latencies}"
    return _Advice(current.latency - estimate.latency, reason, text)


def _nearer_routing(
    placed: PlacedGroup, edges: Sequence[CallEdge], current: Evaluation
) -> tuple[Routing, Evaluation] | None:
    """Routing by zone, or by node if that gains enough more, with its estimate; None if neither gains enough without overload."""
    best: tuple[Routing, Evaluation] | None = None
    for routing in (Routing.ZONE, Routing.NODE):
        estimate = placed.estimate(edges, routing)
        gain_us = (current if best is None else best[1]).latency - estimate.latency
        is_overloaded = estimate.max_load_ratio > max(OVERLOADED_RATIO, current.max_load_ratio)
        if not is_overloaded and gain_us >= max(MIN_GAIN_US, MIN_GAIN_RATIO * current.latency):
            best = routing, estimate
    return best


def _format_latency(estimate: Evaluation) -> str:
    """The latency with two digits, so that small changes of the network do not rewrite a condition."""
    return f"{float(f'{estimate.latency:.2g}'):.0f} µs"


def advice_conditions(placed: PlacedGroup) -> list[Condition]:
    """RoutedNear and Balanced, which are False where a Service could be routed better, or replicas should be elsewhere."""
    return [_routed_near(placed), _balanced(placed)]


def _routed_near(placed: PlacedGroup) -> Condition:
    advice = (_advise(placed, callee) for callee in range(len(placed.members)))
    by_gain = sorted((item for item in advice if item is not None), key=lambda item: (-item.gain_us, item.text))
    if by_gain:
        holds, reason, message = False, by_gain[0].reason, join_first([item.text for item in by_gain], MAX_SHOWN, "; ")
    elif any(placed.members[edge.caller] and placed.members[edge.callee] for edge in placed.graph.edges):
        holds, reason, message = True, "AsNearAsCanBe", "no trafficDistribution would bring calls nearer"
    else:
        holds, reason, message = None, "NothingPlaced", "no dependency has pods placed at both ends"
    generation = placed.group.metadata.generation
    return make_condition(ROUTED_NEAR, holds=holds, reason=reason, message=message, generation=generation)


def _balanced(placed: PlacedGroup) -> Condition:
    selectors = placed.graph.selectors
    texts: list[str] = []
    for w, counts in replicas_by_zone(placed):
        if len(counts) == 1:
            zone = next(iter(counts)).zone
            where = f"in {zone}" if zone else "on nodes without a zone"
            texts.append(f"all {counts.total()} replicas of {selectors[w]} are {where}, but its spread is zone")
    reason = "OneZone" if texts else "HotReplica"
    texts += [
        f"a replica of {selectors[w]} takes {ratio:.1f} times its fair share of the calls"
        for w, ratio in _overloaded_workloads(placed)
    ]
    holds: bool | None
    if not any(placed.members):
        holds, reason, message = None, "NothingPlaced", "no pod is placed"
    elif not texts:
        holds, reason = True, "Balanced"
        message = "replicas are in as many zones as they should be, and none is overloaded"
    else:
        holds, message = False, join_first(texts, MAX_SHOWN, "; ")
    generation = placed.group.metadata.generation
    return make_condition(BALANCED, holds=holds, reason=reason, message=message, generation=generation)


def _overloaded_workloads(placed: PlacedGroup) -> Iterator[tuple[int, float]]:
    """Workloads whose busiest replica takes too many calls: the workload's index, and the replica's load over its fair share."""
    for callee in range(len(placed.members)):
        edges = placed.callers_of(callee)
        if edges and edges[0].routing is not Routing.ANY:
            max_load_ratio = placed.estimate(edges, edges[0].routing).max_load_ratio
            if max_load_ratio > OVERLOADED_RATIO:
                yield callee, max_load_ratio


def replicas_by_zone(placed: PlacedGroup) -> Iterator[tuple[int, Counter[Location]]]:
    """Workloads with spread ``zone`` and several replicas: the workload's index, and its replicas by location."""
    for workload, nodes in enumerate(placed.members):
        if placed.spreads[workload] == "zone" and sum(nodes.values()) > 1 and placed.zones > 1:
            yield workload, count_by_location(nodes, placed.locations)
