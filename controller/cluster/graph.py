"""Resolves an AppGroup's spec into a dependency graph and a list of faults.

Upstream matches workload names, although only selectors are unique. Here a dependency is found by its selector, or by its name
(with kind and namespace if given) if it has none. Faults are collected, because a group with one bad dependency still has an order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import msgspec

from controller.cluster.resources import AppGroupSpec, Dependency, WorkloadRef
from kubekit import quantity
from kubekit.errors import QuantityError
from netperf.policy import MAX_NETWORK_COST

Problem = Literal[
    "NoSelector",
    "DuplicateSelector",
    "UnknownDependency",
    "AmbiguousDependency",
    "SelfDependency",
    "BadBandwidth",
    "BadCost",
]
_UNRESOLVED: dict[Problem, str] = {
    "UnknownDependency": "depends on an unknown workload",
    "AmbiguousDependency": "depends on a name that several workloads have",
}


class Fault(msgspec.Struct, frozen=True):
    """A fault of a spec; ``detail`` names the workload and says what is wrong."""

    problem: Problem
    detail: str


class Edge(msgspec.Struct, frozen=True):
    """A resolved dependency, by position in `Graph.workloads`.

    Attributes:
        dependent, dependency: positions of the caller and the callee.
        min_bandwidth_bps: bits per second; 0 if not set.
        max_network_cost: highest allowed cost.
    """

    dependent: int
    dependency: int
    min_bandwidth_bps: int = 0
    max_network_cost: int = 0


class Graph(msgspec.Struct, frozen=True):
    """A group's workloads and dependencies, both in spec order.

    Attributes:
        workloads: all workloads with a selector; of those with the same selector the first.
        edges: resolved dependencies without self-dependencies, each pair once, with the strictest of its limits.
        faults: what was left out or corrected; of workloads first, then of dependencies, each in spec order.
    """

    workloads: tuple[WorkloadRef, ...]
    edges: tuple[Edge, ...]
    faults: tuple[Fault, ...]

    @property
    def children(self) -> list[list[int]]:
        """Positions of each workload's dependencies, in spec order."""
        children: list[list[int]] = [[] for _ in self.workloads]
        for edge in self.edges:
            children[edge.dependent].append(edge.dependency)
        return children

    @property
    def selectors(self) -> tuple[str, ...]:
        """Selectors in spec order."""
        return tuple(w.selector for w in self.workloads)


def build_graph(spec: AppGroupSpec) -> Graph:
    """Resolve a spec. Never raises; see `Graph.faults`."""
    workloads, dependencies, faults = _workloads_of(spec)
    resolver = _Resolver(workloads)
    edges: dict[tuple[int, int], Edge] = {}
    for position, declared in enumerate(dependencies):
        for dependency in declared:
            target = resolver.find(dependency.workload)
            name = _name(workloads[position])
            if isinstance(target, str):
                faults.append(Fault(target, f"{name}: {_UNRESOLVED[target]}, {_name(dependency.workload)}"))
            elif target == position:
                faults.append(Fault("SelfDependency", f"{name} depends on itself; remove that dependency"))
            else:
                edge = _edge(position, target, dependency, name, faults)
                earlier = edges.get((position, target), edge)
                edges[position, target] = Edge(
                    position,
                    target,
                    max(earlier.min_bandwidth_bps, edge.min_bandwidth_bps),
                    min(earlier.max_network_cost, edge.max_network_cost),
                )
    return Graph(tuple(workloads), tuple(edges.values()), tuple(faults))


def _workloads_of(spec: AppGroupSpec) -> tuple[list[WorkloadRef], list[Sequence[Dependency]], list[Fault]]:
    """Workloads with a selector of their own, the declared dependencies of each, and faults of the others."""
    workloads: list[WorkloadRef] = []
    dependencies: list[Sequence[Dependency]] = []
    faults: list[Fault] = []
    seen: set[str] = set()
    for item in spec.workloads or ():
        if not item.workload.selector:
            faults.append(Fault("NoSelector", f"{_name(item.workload)} has no selector, so it has no pods"))
        elif item.workload.selector in seen:
            faults.append(
                Fault("DuplicateSelector", f"{_name(item.workload)}: selector {item.workload.selector!r} is taken")
            )
        else:
            seen.add(item.workload.selector)
            dependencies.append(item.dependencies or ())
            workloads.append(item.workload)
    return workloads, dependencies, faults


class _Resolver:
    """Finds the workload of a reference."""

    def __init__(self, workloads: Sequence[WorkloadRef]) -> None:
        self._workloads = workloads
        self._by_selector = {w.selector: i for i, w in enumerate(workloads)}
        self._by_name: dict[str, list[int]] = defaultdict(list)
        for i, workload in enumerate(workloads):
            self._by_name[workload.name].append(i)

    def find(self, reference: WorkloadRef) -> int | Problem:
        """Position of the referenced workload, or why there is none."""
        if reference.selector:
            return self._by_selector.get(reference.selector, "UnknownDependency")
        same_name = self._by_name.get(reference.name, ())
        positions = [i for i in same_name if _is_compatible(self._workloads[i], reference)]
        if len(positions) == 1:
            return positions[0]
        return "AmbiguousDependency" if positions else "UnknownDependency"


def _is_compatible(workload: WorkloadRef, reference: WorkloadRef) -> bool:
    """Whether kind and namespace are equal where both are given."""
    pairs = ((workload.kind, reference.kind), (workload.namespace, reference.namespace))
    return all(not ours or not theirs or ours == theirs for ours, theirs in pairs)


def _edge(dependent: int, dependency: int, declared: Dependency, name: str, faults: list[Fault]) -> Edge:
    """The edge of a declared dependency of workload ``name``; appends invalid values to ``faults`` and corrects them."""
    cost = declared.max_network_cost
    target = _name(declared.workload)
    if not 0 <= cost <= MAX_NETWORK_COST:
        faults.append(
            Fault("BadCost", f"{name}: maxNetworkCost {cost} for {target} is not within 0 to {MAX_NETWORK_COST}")
        )
        cost = min(max(cost, 0), MAX_NETWORK_COST)
    try:
        rate_bps = quantity.parse_int(declared.min_bandwidth) if declared.min_bandwidth is not None else 0
    except QuantityError as error:
        faults.append(Fault("BadBandwidth", f"{name}: minBandwidth for {target}: {error}"))
        rate_bps = 0
    if rate_bps < 0:
        faults.append(Fault("BadBandwidth", f"{name}: minBandwidth for {target} is negative"))
        rate_bps = 0
    return Edge(dependent, dependency, rate_bps, cost)


def _name(workload: WorkloadRef) -> str:
    return workload.selector or workload.name or "a workload without a name"
