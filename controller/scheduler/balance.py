"""Advice on a placed group: what could be routed nearer, and which replicas are unbalanced. Pure.

Rules of routing are those of kube-proxy (pkg/proxy/topology.go) and of the EndpointSlice controller (endpointslice/trafficdist,
endpointslice/reconciler.go), Kubernetes 1.36: a hint is the zone or node of the replica itself; one ready replica without a zone
makes kube-proxy ignore the zones of all; a node without a replica in its zone calls any; automatic hints win over the field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from controller.appgroups.status import BALANCED, ROUTED_NEAR
from controller.cluster.costs import CostTable, Location, count_by_location
from controller.cluster.graph import Graph
from controller.cluster.hosts import Host
from controller.cluster.resources import AppGroup
from controller.cluster.services import Routing, Service, has_zone_hints
from controller.scheduler.placement.evaluation import count_hosts, evaluate_edge
from controller.scheduler.placement.preferences import call_edges, spread_of
from controller.scheduler.placement.problem import CallEdge
from controller.scheduler.placement.problem_builder import BoundReplica, PlacementRequest, Spread, compile_problem
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.state import State
from kubekit.conditions import condition
from kubekit.wire import Condition

HOT = 1.5
"""Times its fair share of the calls, from which on a replica is hot."""
LEAST_GAIN_US, LEAST_SHARE = 20.0, 0.05
"""Of a call's time, what advice has to gain."""
SHOWN = 3

Reason = Literal["NoTrafficDistribution", "HintsIgnored", "HotReplica"]
_FIELD = {Routing.ANY: "", Routing.ZONE: "PreferSameZone", Routing.NODE: "PreferSameNode"}


class PlacedGroup(msgspec.Struct, frozen=True):
    """Placed pods of a group, and who answers whom.

    Attributes:
        group: the AppGroup.
        graph: of it.
        members: per workload, node -> placed pods.
        locations: of these nodes.
        services: per workload, those by which it is called.
        spreads: per workload.
        costs: the weight in use.
        measured: whether there is a NetworkTopology.
        zones: how many zones have nodes.
    """

    group: AppGroup
    graph: Graph
    members: Sequence[Mapping[str, int]]
    locations: Mapping[str, Location]
    services: Sequence[Sequence[Service]]
    spreads: Sequence[Spread]
    costs: CostTable
    measured: bool = True
    zones: int = 0


class Advice(msgspec.Struct, frozen=True, rename="camel"):
    """Advice on routing calls to a Service.

    Attributes:
        service: ``namespace/name``.
        workload: selector of the workload behind it.
        traffic_distribution: the current one; empty for any replica.
        advised: what to set instead; empty for none, the same where replicas and not the field should change.
        latency_us: expected of a call to it as it is; ``advised_us`` as advised.
        hottest: load of the busiest replica over its fair share as it is.
        text: for people.
    """

    service: str
    workload: str
    reason: Reason
    traffic_distribution: str
    advised: str
    latency_us: float
    advised_us: float
    hottest: float
    text: str


def placed_group(state: State, key: str) -> PlacedGroup:
    """A group out of the scheduler's picture; nothing of it changes any more."""
    group, graph, members = state.groups[key], state.graph(key), state.members(key)
    placed = [
        {node: count for node, count in members.get(w.selector, {}).items() if node in state.place_of}
        for w in graph.workloads
    ]
    costs = state.costs(group.metadata.namespace)
    default = spread_of(group.metadata.annotations, "soft", [])
    models = [state.models(key, selector) for selector in graph.selectors]
    return PlacedGroup(
        group=group,
        graph=graph,
        members=placed,
        locations={node: state.places[state.place_of[node]] for nodes in placed for node in nodes},
        services=[state.services_of(key, selector) for selector in graph.selectors],
        spreads=[spread_of(found[0].annotations, default, []) if found else default for found in models],
        costs=costs.table,
        measured=bool(costs.topology),
        zones=len({state.places[place] for place in state.population if state.places[place].zone}),
    )


class RoutingEstimate(NamedTuple):
    """Expected latency of calls to one Service, over its callers by their weights, and load of the busiest replica over its fair share."""

    latency_us: float
    hottest: float


class _PlacedArrays:
    """A group as arrays."""

    def __init__(self, current: PlacedGroup) -> None:
        self.current = current
        hosts = {node: Host(node, where, {}, (), {}) for node, where in current.locations.items()}
        counts = {w: sum(nodes.values()) for w, nodes in enumerate(current.members)}
        routings = [min((s.routing for s in found), default=Routing.ANY) for found in current.services]
        snapshot = GroupSnapshot(
            graph=current.graph,
            pods=(),
            replicas={},
            costs=current.costs,
            hosts=hosts,
            used={},
            measured=current.measured,
        )
        placed = ((node, w, n) for w, nodes in enumerate(current.members) for node, n in nodes.items())
        request = PlacementRequest(
            snapshot=snapshot,
            waiting=(),
            bound=[BoundReplica(node, workload) for node, workload, count in placed for _ in range(count)],
            spreads=current.spreads,
            edges=call_edges(current.group, current.graph, counts, routings, []),
        )
        self.problem = compile_problem(request)
        self.hosts_of = count_hosts(self.problem, np.zeros(0, np.int64))

    def callers_of(self, callee: int) -> list[CallEdge]:
        """Dependencies on a workload with pods at both ends."""
        found = [e for e in self.problem.edges if e.callee == callee]
        return [e for e in found if self.hosts_of[e.caller] and self.hosts_of[callee]]

    def unlabelled(self, callee: int) -> bool:
        """Whether a replica is on a node without a zone; then kube-proxy ignores all zone hints."""
        zoned = self.problem.zoned[self.problem.zone_of[list(self.hosts_of[callee])]]
        return not has_zone_hints(Routing.ZONE, zoned)

    def estimate(self, edges: Sequence[CallEdge], routing: Routing) -> RoutingEstimate:
        """Estimate calls as if the Service behind these dependencies had that routing."""
        weight = sum(edge.weight for edge in edges)
        latency = hottest = 0.0
        for edge in edges:
            routed = msgspec.structs.replace(edge, routing=routing)
            found = evaluate_edge(self.problem, routed, self.hosts_of[edge.caller], self.hosts_of[edge.callee])
            latency += edge.weight * found.latency
            hottest += edge.weight * found.hottest
        return RoutingEstimate(latency / weight, hottest / weight)


def advise(current: PlacedGroup) -> list[Advice]:
    """Advice on routing calls within a group, the greatest gains first."""
    arrays = _PlacedArrays(current)
    found = [advice for callee in range(len(current.members)) for advice in _advise(arrays, callee)]
    return sorted(found, key=lambda a: (a.advised_us - a.latency_us, a.service, a.reason))


def _advise(arrays: _PlacedArrays, callee: int) -> Iterator[Advice]:
    edges = arrays.callers_of(callee)
    services = [s for s in arrays.current.services[callee] if not s.headless]
    if not edges or not services or any(s.spec.internal_traffic_policy == "Local" for s in services):
        return
    service = min(services, key=lambda s: s.routing)
    name, workload, routing = service.metadata.key, arrays.current.graph.selectors[callee], service.routing
    now = arrays.estimate(edges, routing)

    def make(reason: Reason, advised: Routing, then: RoutingEstimate, text: str) -> Advice:
        return Advice(
            service=name,
            workload=workload,
            reason=reason,
            traffic_distribution=_FIELD[routing],
            advised=_FIELD[advised],
            latency_us=round(now.latency_us, 1),
            advised_us=round(then.latency_us, 1),
            hottest=round(now.hottest, 2),
            text=f"Service {name} {text}",
        )

    if routing is Routing.ANY:
        better = _nearer(arrays, edges, now)
        if better is not None:
            advised, then = better
            why = "has no trafficDistribution"
            if service.hinted:
                why = "asks for automatic hints by annotation, which wins over trafficDistribution"
            elif service.spec.traffic_distribution:
                why = f"has the trafficDistribution {service.spec.traffic_distribution}, which is none"
            text = f"{why}: with {_FIELD[advised]} a call would take {_us(then)} instead of {_us(now)}"
            yield make("HintsIgnored" if service.hinted else "NoTrafficDistribution", advised, then, text)
        return
    if arrays.unlabelled(callee):
        text = f"has {_FIELD[routing]}, and a replica is on a node without a zone label, so that no zone's hints count"
        yield make("HintsIgnored", routing, now, text)
        return
    if now.hottest > HOT:
        cooler = [(r, arrays.estimate(edges, r)) for r in (Routing.ZONE, Routing.ANY) if r < routing]
        advised, then = min(cooler, key=lambda item: (item[1].hottest > HOT, item[1].latency_us))
        field = _FIELD[advised] or "no trafficDistribution"
        text = (
            f"has {_FIELD[routing]}, and the busiest replica takes {now.hottest:.1f} times its fair share: with {field} "
            f"{then.hottest:.1f} times, at {_us(then)} a call instead of {_us(now)}; or more replicas where its callers are"
        )
        yield make("HotReplica", advised, then, text)


def _nearer(
    arrays: _PlacedArrays, edges: Sequence[CallEdge], now: RoutingEstimate
) -> tuple[Routing, RoutingEstimate] | None:
    """By zone, or by node if that saves as much again; neither if a replica would be hot."""
    best: tuple[Routing, RoutingEstimate] | None = None
    for routing in (Routing.ZONE, Routing.NODE):
        then = arrays.estimate(edges, routing)
        from_us = now if best is None else best[1]
        if then.hottest <= max(HOT, now.hottest) and _is_gain(from_us.latency_us - then.latency_us, now):
            best = routing, then
    return best


def _is_gain(gain_us: float, now: RoutingEstimate) -> bool:
    return gain_us >= max(LEAST_GAIN_US, LEAST_SHARE * now.latency_us)


def _us(estimate: RoutingEstimate) -> str:
    """Round to two digits, so that small changes of the network do not rewrite a condition."""
    return f"{float(f'{estimate.latency_us:.2g}'):.0f} µs"


def routed_near(current: PlacedGroup) -> Condition:
    """The condition of that name: False where a Service could be routed better, and how."""
    generation = current.group.metadata.generation
    found = advise(current)
    if found:
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        text = "; ".join(advice.text for advice in found[:SHOWN]) + more
        return condition(ROUTED_NEAR, holds=False, reason=found[0].reason, message=text, generation=generation)
    placed = sum(bool(current.members[e.dependant] and current.members[e.dependency]) for e in current.graph.edges)
    if not placed:
        message = "no dependency has pods placed at both ends"
        return condition(ROUTED_NEAR, holds=None, reason="NothingPlaced", message=message, generation=generation)
    message = "no trafficDistribution would bring calls nearer"
    return condition(ROUTED_NEAR, holds=True, reason="AsNearAsCanBe", message=message, generation=generation)


def balanced(current: PlacedGroup) -> Condition:
    """The condition of that name: False where replicas that should be in several zones are in one, or one is hot."""
    generation, selectors = current.group.metadata.generation, current.graph.selectors
    alone = list(in_one_zone(current))
    arrays = _PlacedArrays(current)
    hot: list[tuple[int, float]] = []
    for callee in range(len(current.members)):
        edges = arrays.callers_of(callee)
        if edges and edges[0].routing is not Routing.ANY:
            hottest = arrays.estimate(edges, edges[0].routing).hottest
            if hottest > HOT:
                hot.append((callee, hottest))

    texts = [
        f"all {sum(current.members[w].values())} replicas of {selectors[w]} are in {zone}, and it is to survive a zone"
        for w, zone in alone
    ]
    texts += [f"a replica of {selectors[w]} takes {times:.1f} times its fair share of the calls" for w, times in hot]
    if texts:
        reason = "OneZone" if alone else "HotReplica"
        more = f"; and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
        message = "; ".join(texts[:SHOWN]) + more
        return condition(BALANCED, holds=False, reason=reason, message=message, generation=generation)
    if not any(current.members):
        message = "no pod is placed"
        return condition(BALANCED, holds=None, reason="NothingPlaced", message=message, generation=generation)
    message = "replicas are in as many zones as they should be, and none is hot"
    return condition(BALANCED, holds=True, reason="Balanced", message=message, generation=generation)


def replicas_by_zone(current: PlacedGroup) -> Iterator[tuple[int, Counter[Location]]]:
    """Workloads of several replicas that are to survive a zone, and where these are."""
    for workload, nodes in enumerate(current.members):
        if current.spreads[workload] == "zone" and sum(nodes.values()) > 1 and current.zones > 1:
            yield workload, count_by_location(nodes, current.locations)


def in_one_zone(current: PlacedGroup) -> Iterator[tuple[int, str]]:
    """Workloads that are to survive a zone and are wholly in one, and which."""
    for workload, found in replicas_by_zone(current):
        if len(found) == 1:
            yield workload, next(iter(found)).zone
