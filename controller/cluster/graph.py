"""An AppGroup's spec as a dependency graph, with what could not be resolved.

Upstream matches workload names although only selectors are unique; here a dependency is found by its selector, and by
its name (with kind and namespace if given) if it has none. Faults are collected, not raised, because a group with one bad
dependency still has an order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from controller.cluster.resources import AppGroupSpec, Dependency, WorkloadRef
from kubekit import quantity
from kubekit.errors import QuantityError

MAX_NETWORK_COST = 10_000

Problem = Literal[
    "NoSelector",
    "DuplicateSelector",
    "UnknownDependency",
    "AmbiguousDependency",
    "SelfDependency",
    "BadBandwidth",
    "BadCost",
]


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong with a spec; ``detail`` names the workload and what to do."""

    problem: Problem
    detail: str


class Edge(msgspec.Struct, frozen=True):
    """A resolved dependency, by position in `Graph.workloads`.

    Attributes:
        min_bandwidth_bps: bits per second, 0 when not asked for.
        max_network_cost: as in the spec.
    """

    dependant: int
    dependency: int
    min_bandwidth_bps: int = 0
    max_network_cost: int = 0


class Graph(msgspec.Struct, frozen=True):
    """A group's workloads in spec order and their dependencies in spec order, each pair at most once.

    Attributes:
        workloads: those with a selector that no earlier one has; isolated ones included.
        edges: resolved dependencies; without self-dependencies. Of a repeated pair the strictest demands count.
        faults: what was left out or doubted, in spec order.
    """

    workloads: tuple[WorkloadRef, ...]
    edges: tuple[Edge, ...]
    faults: tuple[Fault, ...]

    @property
    def children(self) -> list[list[int]]:
        """Per workload, the positions of its dependencies in dependency order."""
        found: list[list[int]] = [[] for _ in self.workloads]
        for edge in self.edges:
            found[edge.dependant].append(edge.dependency)
        return found

    @property
    def selectors(self) -> tuple[str, ...]:
        """Selectors in spec order."""
        return tuple(w.selector for w in self.workloads)


def build_graph(spec: AppGroupSpec) -> Graph:
    """Resolve a spec. Never raises; see `Graph.faults`."""
    workloads, kept, faults = _workloads_of(spec)
    resolver = _Resolver(workloads)
    edges: dict[tuple[int, int], Edge] = {}
    for position, declared in kept:
        for dependency in declared:
            target = resolver.find(dependency.workload)
            name = _name(workloads[position])
            if isinstance(target, str):
                faults.append(Fault(_UNRESOLVED[target], f"{name}: {target} {_name(dependency.workload)}"))
            elif target == position:
                faults.append(Fault("SelfDependency", f"{name} depends on itself; remove that dependency"))
            else:
                edge = _edge(position, target, dependency, name, faults)
                known = edges.get((position, target))
                edges[position, target] = edge if known is None else _strictest(known, edge)
    return Graph(tuple(workloads), tuple(edges.values()), tuple(faults))


_UNRESOLVED: dict[str, Problem] = {
    "depends on an unknown workload,": "UnknownDependency",
    "depends on a name that several workloads have,": "AmbiguousDependency",
}


def _workloads_of(spec: AppGroupSpec) -> tuple[list[WorkloadRef], list[tuple[int, Sequence[Dependency]]], list[Fault]]:
    workloads: list[WorkloadRef] = []
    kept: list[tuple[int, Sequence[Dependency]]] = []
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
            kept.append((len(workloads), item.dependencies or ()))
            workloads.append(item.workload)
    return workloads, kept, faults


class _Resolver:
    def __init__(self, workloads: Sequence[WorkloadRef]) -> None:
        self._workloads = workloads
        self._by_selector = {w.selector: i for i, w in enumerate(workloads)}
        self._by_name: dict[str, list[int]] = defaultdict(list)
        for i, workload in enumerate(workloads):
            self._by_name[workload.name].append(i)

    def find(self, wanted: WorkloadRef) -> int | str:
        """Position of the referenced workload, or a text that says why there is none."""
        if wanted.selector in self._by_selector:
            return self._by_selector[wanted.selector]
        if wanted.selector:
            return "depends on an unknown workload,"
        named = [i for i in self._by_name.get(wanted.name, ()) if _is_compatible(self._workloads[i], wanted)]
        if len(named) == 1:
            return named[0]
        return "depends on a name that several workloads have," if named else "depends on an unknown workload,"


def _is_compatible(workload: WorkloadRef, wanted: WorkloadRef) -> bool:
    pairs = ((workload.kind, wanted.kind), (workload.namespace, wanted.namespace))
    return all(not asked or not has or asked == has for has, asked in pairs)


def _edge(dependant: int, dependency: int, declared: Dependency, name: str, faults: list[Fault]) -> Edge:
    cost = declared.max_network_cost
    towards = _name(declared.workload)
    if not 0 <= cost <= MAX_NETWORK_COST:
        faults.append(
            Fault("BadCost", f"{name}: maxNetworkCost {cost} for {towards} is not within 0 to {MAX_NETWORK_COST}")
        )
        cost = min(max(cost, 0), MAX_NETWORK_COST)
    try:
        rate_bps = quantity.parse_int(declared.min_bandwidth) if declared.min_bandwidth is not None else 0
    except QuantityError as error:
        faults.append(Fault("BadBandwidth", f"{name}: minBandwidth for {towards}: {error}"))
        rate_bps = 0
    if rate_bps < 0:
        faults.append(Fault("BadBandwidth", f"{name}: minBandwidth for {towards} is negative"))
        rate_bps = 0
    return Edge(dependant, dependency, rate_bps, cost)


def _strictest(one: Edge, other: Edge) -> Edge:
    return Edge(
        one.dependant,
        one.dependency,
        max(one.min_bandwidth_bps, other.min_bandwidth_bps),
        min(one.max_network_cost, other.max_network_cost),
    )


def _name(workload: WorkloadRef) -> str:
    return workload.selector or workload.name or "a workload without a name"


def namespaces_of(group_namespace: str, workloads: Iterable[WorkloadRef]) -> frozenset[str]:
    """Namespaces in which pods of a group are looked for: its own, and those that its workloads name."""
    return frozenset({group_namespace, *(w.namespace for w in workloads if w.namespace)})
