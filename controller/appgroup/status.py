"""The status of an AppGroup: its order, who runs, and whether dependencies are as near as they asked to be.

Costs are judged by NetworkOverhead's own rule (docs/contracts, section 4), between all placed pods of both workloads: a
dependency is within its maxNetworkCost when every pair of pods is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from controller.appgroup.graph import Edge, Graph, build_graph, namespaces_of
from controller.appgroup.order import ALGORITHMS, FALLBACK, Order, order
from controller.resources import (
    APPGROUP_LABEL,
    REGION_LABEL,
    WORKLOAD_LABEL,
    ZONE_LABEL,
    AppGroup,
    AppGroupStatus,
    OrderedWorkload,
    WeightInfo,
)
from kubekit.conditions import condition, merge
from kubekit.wire import Condition, Pod, format_time, parse_time

ORDERED, COMPLETE, COSTS_MET, SPEC_VALID = "Ordered", "Complete", "CostsMet", "SpecValid"
SHOWN = 3
UNKNOWN_COST = 100

Location = tuple[str, str]
"""Region and zone of a node, each possibly empty."""
Verdict = Literal["met", "violated", "unknown", "idle"]


class CostLookup:
    """Costs of one weight, by directed pair."""

    def __init__(self, weight: WeightInfo | None) -> None:
        self._costs = {
            (level.topology_key, origin.origin, entry.destination): entry.network_cost
            for level in (weight.topology_list if weight else ())
            for origin in level.origin_list
            for entry in origin.cost_list
        }

    def cost(self, origin: Location, destination: Location) -> int | None:
        """Cost of the way between nodes that are not in one place, or None when it is not known."""
        key, level = (REGION_LABEL, 0) if origin[0] != destination[0] else (ZONE_LABEL, 1)
        return self._costs.get((key, origin[level], destination[level]))


class Judged(msgspec.Struct, frozen=True):
    """How one dependency fares; of several pairs of places the worst, with its cost."""

    edge: Edge
    verdict: Verdict
    cost: int = 0
    origin: Location = ("", "")
    destination: Location = ("", "")


class Facts(msgspec.Struct, frozen=True):
    """What is true of a group now.

    Attributes:
        members: per workload of the graph, placed pods by location.
        judged: one entry per edge of the graph.
        running: pods in phase Running.
        started: RFC 3339 time at which the first of its pods was created, None without pods.
    """

    graph: Graph
    order: Order
    members: tuple[Mapping[Location, int], ...]
    judged: tuple[Judged, ...]
    running: int
    started: str | None


def gather(group: AppGroup, pods: Iterable[Pod], locations: Mapping[str, Location], costs: CostLookup) -> Facts:
    """Look at a group.

    Args:
        group: the AppGroup.
        pods: pods with the AppGroup label, of whatever group and namespace.
        locations: node name -> location; pods on nodes that are gone count nowhere.
        costs: the costs by which dependencies are judged.
    """
    graph = build_graph(group.spec)
    namespaces = namespaces_of(group.metadata.namespace, graph.workloads)
    positions = {selector: i for i, selector in enumerate(graph.selectors)}
    members: list[Counter[Location]] = [Counter() for _ in graph.workloads]
    running = 0
    created: list[str] = []
    for pod in pods:
        meta = pod.metadata
        if meta.namespace not in namespaces or meta.label(APPGROUP_LABEL) != group.metadata.name:
            continue
        created.append(meta.creation_timestamp or "")
        if pod.terminal or meta.deletion_timestamp is not None:
            continue
        running += pod.status.phase == "Running"
        position, location = positions.get(meta.label(WORKLOAD_LABEL)), locations.get(pod.spec.node_name)
        if position is not None and location is not None:
            members[position][location] += 1
    judged = tuple(judge(edge, members[edge.dependant], members[edge.dependency], costs) for edge in graph.edges)
    ordered = order(graph.children, group.spec.topology_sorting_algorithm)
    started = min((c for c in created if c), key=parse_time, default=None)
    return Facts(graph, ordered, tuple(members), judged, running, started)


def judge(edge: Edge, callers: Iterable[Location], called: Iterable[Location], costs: CostLookup) -> Judged:
    """Judge a dependency by the worst pair of places: violated before unknown before met, then by cost."""
    worst = Judged(edge, "idle")
    called = tuple(called)
    for origin in sorted(callers):
        for destination in sorted(called):
            found = _judge_pair(edge, origin, destination, costs)
            if _badness(found) > _badness(worst):
                worst = found
    return worst


def _judge_pair(edge: Edge, origin: Location, destination: Location, costs: CostLookup) -> Judged:
    if not any(destination):
        return Judged(edge, "violated", UNKNOWN_COST, origin, destination)
    if origin == destination:
        return Judged(edge, "met", 1, origin, destination)
    cost = costs.cost(origin, destination)
    if cost is None:
        return Judged(edge, "unknown", UNKNOWN_COST, origin, destination)
    return Judged(edge, "met" if cost <= edge.max_network_cost else "violated", cost, origin, destination)


def _badness(found: Judged) -> tuple[int, int]:
    return ("idle", "met", "unknown", "violated").index(found.verdict), found.cost - found.edge.max_network_cost


def plan_status(group: AppGroup, facts: Facts, now: float) -> AppGroupStatus:
    """The status to write; equal to the one that stands when nothing changed.

    Args:
        group: the AppGroup, whose status is the old one.
        facts: from `gather`.
        now: wall clock, seconds since 1970.
    """
    before, generation = group.status, group.metadata.generation
    index = {position: place for place, position in enumerate(facts.order.sequence, start=1)}
    listed = [OrderedWorkload(workload, index[i]) for i, workload in enumerate(facts.graph.workloads)]
    # Upstream's plugin finds a workload in this list by binary search on the selector.
    listed.sort(key=lambda entry: entry.workload.selector)
    fresh = before.topology_calculation_time is not None and (before.topology_order or []) == listed
    same = fresh and before.observed_generation == generation
    return AppGroupStatus(
        running_workloads=facts.running,
        schedule_start_time=before.schedule_start_time or facts.started,
        topology_calculation_time=before.topology_calculation_time if same else format_time(now),
        topology_order=listed,
        observed_generation=generation,
        conditions=merge(before.conditions, conditions_of(group, facts), now),
    )


def conditions_of(group: AppGroup, facts: Facts) -> list[Condition]:
    """The four conditions, without times."""
    generation = group.metadata.generation
    return [
        _ordered(group, facts, generation),
        _complete(group, facts, generation),
        _costs_met(facts, generation),
        _spec_valid(facts, generation),
    ]


def _ordered(group: AppGroup, facts: Facts, generation: int) -> Condition:
    algorithm = group.spec.topology_sorting_algorithm
    if facts.order.cycles:
        selectors = facts.graph.selectors
        paths = "; ".join(" -> ".join(selectors[i] for i in cycle) for cycle in facts.order.cycles[:SHOWN])
        message = f"dependencies form a cycle: {paths}; its members stand together in the order"
        return condition(ORDERED, holds=False, reason="Cycle", message=message, generation=generation)
    if algorithm not in ALGORITHMS:
        message = f"algorithm {algorithm!r} is not known, {FALLBACK} was taken; write one of {', '.join(ALGORITHMS)}"
        return condition(ORDERED, holds=False, reason="UnknownAlgorithm", message=message, generation=generation)
    message = f"{len(facts.graph.workloads)} workloads ordered by {algorithm}"
    return condition(ORDERED, holds=True, reason="Ordered", message=message, generation=generation)


def _complete(group: AppGroup, facts: Facts, generation: int) -> Condition:
    wanted = group.spec.num_members
    holds = facts.running >= wanted
    message = f"{facts.running} of {wanted} pods run"
    reason = "AllRunning" if holds else "PodsMissing"
    return condition(COMPLETE, holds=holds, reason=reason, message=message, generation=generation)


def _costs_met(facts: Facts, generation: int) -> Condition:
    counts = Counter(found.verdict for found in facts.judged)
    placed = len(facts.judged) - counts["idle"]
    if not placed:
        message = f"{len(facts.judged)} dependencies, none with pods placed at both ends"
        return condition(COSTS_MET, holds=None, reason="NothingPlaced", message=message, generation=generation)
    head = f"{counts['met']} of {placed} placed dependencies within their maxNetworkCost"
    bad = sorted(
        (j for j in facts.judged if j.verdict in {"violated", "unknown"}),
        key=lambda j: (_reverse(j), j.edge.dependant, j.edge.dependency),
    )
    if not bad:
        return condition(COSTS_MET, holds=True, reason="AllWithin", message=head, generation=generation)
    worst = "; ".join(_described(found, facts.graph) for found in bad[:SHOWN])
    more = f" and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    holds, reason = (False, "CostsExceeded") if counts["violated"] else (None, "CostsUnknown")
    message = f"{head}; worst: {worst}{more}"
    return condition(COSTS_MET, holds=holds, reason=reason, message=message, generation=generation)


def _reverse(found: Judged) -> tuple[int, int]:
    severity, excess = _badness(found)
    return -severity, -excess


def _described(found: Judged, graph: Graph) -> str:
    names = graph.selectors
    arrow = f"{names[found.edge.dependant]} to {names[found.edge.dependency]}"
    way = f"{_place(found.origin)} to {_place(found.destination)}"
    if found.verdict == "unknown":
        return f"{arrow} cost unknown ({way})"
    return f"{arrow} costs {found.cost}, at most {found.edge.max_network_cost} ({way})"


def _place(location: Location) -> str:
    return location[1] or location[0] or "a node without zone"


def _spec_valid(facts: Facts, generation: int) -> Condition:
    faults = facts.graph.faults
    if not faults:
        message = "every dependency leads to a workload of the group"
        return condition(SPEC_VALID, holds=True, reason="Valid", message=message, generation=generation)
    more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
    message = "; ".join(fault.detail for fault in faults[:SHOWN]) + more
    return condition(SPEC_VALID, holds=False, reason=faults[0].problem, message=message, generation=generation)
