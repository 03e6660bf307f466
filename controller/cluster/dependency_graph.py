"""Resolves an AppGroup's spec into a dependency graph and a list of faults.

Upstream matches workload names, although only selectors are unique. Here a dependency is found by its selector or, if it has none, by
its name, with kind and namespace if given. Faults are collected, because a group with one invalid dependency still has an order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import msgspec

from controller.cluster.crds import AppGroupSpec, Dependency, Workload, WorkloadRef
from kubekit import quantity
from kubekit.errors import QuantityError
from netperf.policy import MAX_NETWORK_COST

FaultReason = Literal[
    "NoSelector",
    "DuplicateSelector",
    "UnknownDependency",
    "AmbiguousDependency",
    "SelfDependency",
    "BadBandwidth",
    "BadCost",
    "Cycle",
    "UnknownAlgorithm",
]


class Fault(msgspec.Struct, frozen=True):
    """A fault of a spec, as the condition SpecValid shows it; ``message`` names the workload and says what is wrong."""

    reason: FaultReason
    message: str


class DependencyEdge(msgspec.Struct, frozen=True):
    """A resolved dependency.

    Attributes:
        caller, callee: positions in `DependencyGraph.workloads`; the caller depends on the callee.
        min_bandwidth_bps: bits per second; 0 if not set.
        max_network_cost: highest allowed cost; 0 if not set, which allows one zone only.
    """

    caller: int
    callee: int
    min_bandwidth_bps: int = 0
    max_network_cost: int = 0


class DependencyGraph(msgspec.Struct, frozen=True):
    """A group's workloads and dependencies, both in spec order.

    Attributes:
        workloads: all workloads with a selector; if several have the same selector, the first.
        edges: resolved dependencies without self-dependencies, each pair once, with its highest bandwidth and lowest cost limit.
        faults: what was left out or corrected; of workloads first, then of dependencies, each in spec order. Cycles and unknown
            algorithms are not among them, see `appgroups.status.spec_faults_of`.
    """

    workloads: tuple[WorkloadRef, ...]
    edges: tuple[DependencyEdge, ...]
    faults: tuple[Fault, ...]

    def callees_by_caller(self) -> list[list[int]]:
        """For each workload the positions of its dependencies, in spec order."""
        callees: list[list[int]] = [[] for _ in self.workloads]
        for edge in self.edges:
            callees[edge.caller].append(edge.callee)
        return callees

    @property
    def selectors(self) -> tuple[str, ...]:
        """Selectors in spec order."""
        return tuple(w.selector for w in self.workloads)


def build_graph(spec: AppGroupSpec) -> DependencyGraph:
    """Resolve a spec. Never raises; see `DependencyGraph.faults`."""
    faults: list[Fault] = []
    entries = _entries_with_unique_selector(spec, faults)
    workloads = tuple(entry.workload for entry in entries)
    finder = _WorkloadFinder(workloads)
    edges: dict[tuple[int, int], DependencyEdge] = {}
    for caller, entry in enumerate(entries):
        caller_name = _describe(entry.workload)
        for dependency in entry.dependencies or ():
            callee, callee_name = finder.find(dependency.workload), _describe(dependency.workload)
            if callee == "UnknownDependency":
                faults.append(Fault(callee, f"{caller_name} depends on an unknown workload, {callee_name}"))
            elif callee == "AmbiguousDependency":
                faults.append(Fault(callee, f"{caller_name} depends on a name of several workloads, {callee_name}"))
            elif callee == caller:
                faults.append(Fault("SelfDependency", f"{caller_name} depends on itself; remove that dependency"))
            else:
                max_network_cost = _clamp_max_network_cost(dependency, caller_name, faults)
                min_bandwidth_bps = _parse_min_bandwidth(dependency, caller_name, faults)
                if (earlier := edges.get((caller, callee))) is not None:
                    min_bandwidth_bps = max(earlier.min_bandwidth_bps, min_bandwidth_bps)
                    max_network_cost = min(earlier.max_network_cost, max_network_cost)
                edges[caller, callee] = DependencyEdge(caller, callee, min_bandwidth_bps, max_network_cost)
    return DependencyGraph(workloads, tuple(edges.values()), tuple(faults))


def _entries_with_unique_selector(spec: AppGroupSpec, faults: list[Fault]) -> list[Workload]:
    """The spec's workloads with a selector, the first of each selector; adds faults of the others."""
    entry_by_selector: dict[str, Workload] = {}
    for entry in spec.workloads or ():
        name, selector = _describe(entry.workload), entry.workload.selector
        if not selector:
            faults.append(Fault("NoSelector", f"{name} has no selector, so it has no pods; set workload.selector"))
        elif selector in entry_by_selector:
            faults.append(Fault("DuplicateSelector", f"{name}: another workload has the selector {selector!r}"))
        else:
            entry_by_selector[selector] = entry
    return list(entry_by_selector.values())


class _WorkloadFinder:
    """Finds the workload of a reference."""

    def __init__(self, workloads: Sequence[WorkloadRef]) -> None:
        self._workloads = workloads
        self._position_by_selector = {w.selector: i for i, w in enumerate(workloads)}
        self._positions_by_name: dict[str, list[int]] = defaultdict(list)
        for i, workload in enumerate(workloads):
            self._positions_by_name[workload.name].append(i)

    def find(self, reference: WorkloadRef) -> int | Literal["UnknownDependency", "AmbiguousDependency"]:
        """Position of the referenced workload, or why there is none."""
        if reference.selector:
            return self._position_by_selector.get(reference.selector, "UnknownDependency")
        positions_with_name = self._positions_by_name.get(reference.name, ())
        positions = [i for i in positions_with_name if _is_compatible(self._workloads[i], reference)]
        if len(positions) == 1:
            return positions[0]
        return "AmbiguousDependency" if positions else "UnknownDependency"


def _is_compatible(workload: WorkloadRef, reference: WorkloadRef) -> bool:
    """Whether kind and namespace are equal where both are given."""
    pairs = ((workload.kind, reference.kind), (workload.namespace, reference.namespace))
    return all(not own or not referenced or own == referenced for own, referenced in pairs)


def _clamp_max_network_cost(dependency: Dependency, caller_name: str, faults: list[Fault]) -> int:
    """The dependency's maxNetworkCost. If it is out of range, adds a fault and returns the nearest valid cost."""
    cost = dependency.max_network_cost
    if not 0 <= cost <= MAX_NETWORK_COST:
        callee_name = _describe(dependency.workload)
        message = f"{caller_name}: maxNetworkCost {cost} for {callee_name} is not within 0 to {MAX_NETWORK_COST}"
        faults.append(Fault("BadCost", message))
    return min(max(cost, 0), MAX_NETWORK_COST)


def _parse_min_bandwidth(dependency: Dependency, caller_name: str, faults: list[Fault]) -> int:
    """The dependency's minBandwidth in bits per second. If it is invalid or negative, adds a fault and returns 0."""
    try:
        bandwidth_bps = quantity.parse_int(dependency.min_bandwidth) if dependency.min_bandwidth is not None else 0
        problem = " is negative" if bandwidth_bps < 0 else ""
    except QuantityError as error:
        bandwidth_bps, problem = 0, f": {error}"
    if problem:
        message = f"{caller_name}: minBandwidth for {_describe(dependency.workload)}{problem}"
        faults.append(Fault("BadBandwidth", message))
    return max(bandwidth_bps, 0)


def _describe(workload: WorkloadRef) -> str:
    """The selector, which identifies a workload, else its name."""
    return workload.selector or workload.name or "a workload without a name"
