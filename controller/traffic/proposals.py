"""Turns a graph of traffic into AppGroups and patches that label pods. Pure.

What a person wrote into an AppGroup is kept: a proposal for an existing group changes only what traffic shows and the person
did not write.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from controller.cluster.graph import GREATEST_COST
from controller.cluster.resources import APPGROUP_LABEL, APPGROUPS, WORKLOAD_LABEL, AppGroup
from controller.traffic.flows import WorkloadId
from controller.traffic.graph import ObservedDependency, TrafficGraph
from controller.traffic.prices import Place
from controller.traffic.workloads import Workloads
from kubekit.wire import split_key

LABELLED_KINDS = frozenset({"Deployment", "StatefulSet"})
"""Kinds whose pods a plan can place; a DaemonSet's pods have their nodes already."""
JOINING_SHARE = 0.01
"""A dependency joins two workloads into one group if it carries this share of the smaller one's traffic."""
HUB_CALLERS = 0.6
"""A server that this share of a namespace's workloads calls joins no group: a log sink, a shared cache, a gateway."""
HUB_LEAST = 6

CostOf = Callable[[Place, Place], int | None]
"""Cost between two places, as in the scheduler; None if unknown."""


class ProposedDependency(msgspec.Struct, frozen=True):
    """A dependency as proposed for an AppGroup; rates in bits per second."""

    client: str
    server: str
    min_bandwidth_bps: int
    max_network_cost: int
    bytes_per_s: float
    written: bool
    """Whether a person wrote its figures, which are then kept."""


class Proposal(msgspec.Struct, frozen=True):
    """One AppGroup to be.

    Attributes:
        manifest: the object, ready for kubectl.
        patches: (kind, name, patch of the pod template), for workloads whose pods do not carry the labels.
        dependencies: what is in it, greatest first.
        external: ends of the group's traffic that are in no group: named, and left out.
        exists: whether the cluster has this AppGroup already.
    """

    namespace: str
    name: str
    manifest: dict[str, Any]
    patches: tuple[tuple[str, str, dict[str, Any]], ...]
    dependencies: tuple[ProposedDependency, ...]
    external: tuple[str, ...] = ()
    exists: bool = False


def propose(
    graph: TrafficGraph, workloads: Workloads, groups: Sequence[AppGroup], namespace: str, cost_of: CostOf
) -> list[Proposal]:
    """AppGroups for one namespace, greatest traffic first."""
    inside: list[ObservedDependency] = []
    outside: list[ObservedDependency] = []
    for d in graph.dependencies:
        namespaces, kinds = {d.client.namespace, d.server.namespace}, {d.client.kind, d.server.kind}
        if namespaces == {namespace} and kinds <= LABELLED_KINDS | {""}:
            inside.append(d)
        elif namespace in namespaces:
            outside.append(d)
    known = _Written.of(groups, namespace)
    parts = _parts(inside, known)
    part_of = {member: index for index, members in enumerate(parts) for member in members}
    edges: dict[int, list[ObservedDependency]] = defaultdict(list)
    ends: dict[int, set[str]] = defaultdict(set)
    for d in inside:
        if part_of[d.client] == part_of[d.server]:
            edges[part_of[d.client]].append(d)
    for d in outside:
        for mine, other in ((d.client, d.server), (d.server, d.client)):
            if mine in part_of:
                ends[part_of[mine]].add(other.key)
    taken: set[str] = set()
    proposals = []
    for index in sorted(edges):
        members = parts[index]
        name = known.group_of(members) or _new_name(edges[index], members, namespace, taken | known.names)
        taken.add(name)
        part = _Part(namespace, name, members, edges[index], tuple(sorted(ends[index])))
        proposals.append(_proposal(part, workloads, known, cost_of))
    return sorted(proposals, key=lambda p: (-sum(d.bytes_per_s for d in p.dependencies), p.name))


class _Part(msgspec.Struct, frozen=True):
    """Workloads that make one group, their dependencies among each other, and other ends of their traffic."""

    namespace: str
    name: str
    members: frozenset[WorkloadId]
    edges: list[ObservedDependency]
    external: tuple[str, ...]


class _Written:
    """Existing groups of the namespace with their workloads and dependencies."""

    def __init__(self) -> None:
        self.groups: dict[str, AppGroup] = {}
        self.selector: dict[tuple[str, str], str] = {}
        self.owner: dict[str, str] = {}

    @classmethod
    def of(cls, groups: Iterable[AppGroup], namespace: str) -> _Written:
        found = cls()
        for group in groups:
            if group.metadata.namespace != namespace:
                continue
            found.groups[group.metadata.name] = group
            for item in group.spec.workloads or ():
                if item.workload.namespace in {"", namespace} and item.workload.name:
                    found.selector[group.metadata.name, item.workload.name] = item.workload.selector
                    found.owner.setdefault(item.workload.name, group.metadata.name)
        return found

    @property
    def names(self) -> set[str]:
        return set(self.groups)

    def group_of(self, members: Iterable[WorkloadId]) -> str:
        """The group that most of these are in; empty without one."""
        owners = [self.owner[w.name] for w in members if w.name in self.owner]
        return max(sorted(set(owners)), key=owners.count) if owners else ""

    def has_edge(self, group: str, client: str, server: str, selector: str) -> bool:
        """Whether a person wrote an edge, by names of workloads and the called one's ``selector``; by name where `build_graph` uses
        it.
        """
        return group in self.groups and any(
            target.selector == selector if target.selector else target.name == server
            for item in self.groups[group].spec.workloads or ()
            if item.workload.name == client
            for target in (dependency.workload for dependency in item.dependencies or ())
        )


def _parts(edges: Sequence[ObservedDependency], known: _Written) -> list[frozenset[WorkloadId]]:
    """Workloads that belong together, each part one group-to-be: joined by what is not thin, or by a group that exists."""
    ends = sorted({end for d in edges for end in (d.client, d.server)})
    parent = {end: end for end in ends}

    def root(end: WorkloadId) -> WorkloadId:
        while parent[end] != end:
            parent[end] = parent[parent[end]]
            end = parent[end]
        return end

    moved: dict[WorkloadId, float] = defaultdict(float)
    callers: dict[WorkloadId, set[WorkloadId]] = defaultdict(set)
    for d in edges:
        moved[d.client] += d.bytes_per_s
        moved[d.server] += d.bytes_per_s
        callers[d.server].add(d.client)
    hubs = {s for s, c in callers.items() if len(c) >= max(HUB_LEAST, HUB_CALLERS * (len(ends) - 1))}
    for d in edges:
        thin = d.bytes_per_s < JOINING_SHARE * min(moved[d.client], moved[d.server])
        if not thin and d.server not in hubs:
            parent[root(d.client)] = root(d.server)
    # A hub goes where most of its traffic is.
    for d in sorted((d for d in edges if d.server in hubs), key=lambda d: (-d.bytes_per_s, d.client)):
        if root(d.server) == d.server:
            parent[d.server] = root(d.client)
    first: dict[str, WorkloadId] = {}
    for end in ends:
        group = known.owner.get(end.name)
        if group is not None:
            parent[root(end)] = root(first.setdefault(group, end))
    parts: dict[WorkloadId, set[WorkloadId]] = defaultdict(set)
    for end in ends:
        parts[root(end)].add(end)
    return [frozenset(part) for _, part in sorted(parts.items())]


def _new_name(
    edges: Sequence[ObservedDependency], members: frozenset[WorkloadId], namespace: str, taken: set[str]
) -> str:
    """The namespace's own name for its first group; later ones are named after a workload that no other calls."""
    called = {d.server for d in edges}
    calls: dict[WorkloadId, float] = defaultdict(float)
    for d in edges:
        calls[d.client] += d.bytes_per_s
    callers_first = sorted(members, key=lambda m: (m in called, -calls[m], m))
    numbered = (f"{namespace}-{n}" for n in itertools.count(2))
    candidates = itertools.chain((namespace,), (w.name for w in callers_first), numbered)
    return next(candidate for candidate in candidates if candidate not in taken)


def _proposal(part: _Part, workloads: Workloads, known: _Written, cost_of: CostOf) -> Proposal:
    selectors = {w: known.selector.get((part.name, w.name)) or _selector(w, workloads) for w in sorted(part.members)}
    dependencies = tuple(
        _dependency(
            d, workloads, cost_of, written=known.has_edge(part.name, d.client.name, d.server.name, selectors[d.server])
        )
        for d in part.edges
    )
    existing = known.groups.get(part.name)
    replicas = sum(workloads.replicas[w] for w in part.members)
    spec = {
        "numMembers": max(existing.spec.num_members if existing is not None else 0, replicas, 1),
        "topologySortingAlgorithm": existing.spec.topology_sorting_algorithm if existing is not None else "KahnSort",
        "workloads": _spec_workloads(existing, selectors, dependencies),
    }
    manifest = {
        "apiVersion": APPGROUPS.api_version,
        "kind": "AppGroup",
        "metadata": {"name": part.name, "namespace": part.namespace},
        "spec": spec,
    }
    return Proposal(
        part.namespace,
        part.name,
        manifest,
        tuple(_patches(part.name, selectors, workloads)),
        tuple(sorted(dependencies, key=lambda d: (-d.bytes_per_s, d.client, d.server))),
        part.external,
        existing is not None,
    )


def _spec_workloads(
    existing: AppGroup | None, selectors: Mapping[WorkloadId, str], dependencies: Iterable[ProposedDependency]
) -> list[dict[str, Any]]:
    """``spec.workloads``: existing entries unchanged, then those from traffic."""
    items: dict[str, dict[str, Any]] = {}
    if existing is not None:
        for item in msgspec.to_builtins(existing.spec).get("workloads") or ():
            items[item["workload"].get("name", "")] = item
    references = {w.name: _reference(w, selector) for w, selector in selectors.items()}
    for name, reference in references.items():
        items.setdefault(name, {"workload": reference})
    for d in dependencies:
        if not d.written:
            client, server = split_key(d.client)[1], split_key(d.server)[1]
            entry = {
                "workload": references[server],
                "minBandwidth": str(d.min_bandwidth_bps),
                "maxNetworkCost": d.max_network_cost,
            }
            items[client].setdefault("dependencies", []).append(entry)
    return list(items.values())


def _reference(workload: WorkloadId, selector: str) -> dict[str, Any]:
    return {"kind": workload.kind or "Deployment", "apiVersion": "apps/v1", "name": workload.name, "selector": selector}


def _selector(workload: WorkloadId, workloads: Workloads) -> str:
    """The label that the pods carry already, or the workload's name as far as it is a label's value."""
    found = workloads.labels.get(workload, {}).get(WORKLOAD_LABEL, "")
    return found or re.sub(r"[^A-Za-z0-9]+$", "", workload.name[:63])


def _patches(
    group: str, selectors: Mapping[WorkloadId, str], workloads: Workloads
) -> Iterable[tuple[str, str, dict[str, Any]]]:
    for workload, selector in selectors.items():
        wanted = {APPGROUP_LABEL: group, WORKLOAD_LABEL: selector}
        if not wanted.items() <= workloads.labels.get(workload, {}).items():
            yield workload.kind or "Deployment", workload.name, {"spec": {"template": {"metadata": {"labels": wanted}}}}


def _dependency(
    found: ObservedDependency, workloads: Workloads, cost_of: CostOf, *, written: bool
) -> ProposedDependency:
    return ProposedDependency(
        found.client.key,
        found.server.key,
        round_up(found.peak_bytes_per_s * 8),
        _bearable_cost(found, workloads, cost_of),
        found.bytes_per_s,
        written,
    )


def round_up(rate_bps: float) -> int:
    """A rate with two significant digits, never below what was seen and at least 1 kbit/s."""
    if rate_bps <= 1000:
        return 1000
    unit = int(10 ** (math.floor(math.log10(rate_bps)) - 1))
    return math.ceil(rate_bps / unit) * unit


def _bearable_cost(found: ObservedDependency, workloads: Workloads, cost_of: CostOf) -> int:
    """The highest cost that calls bear today: they work, so that much is bearable; at least 1, the cost within a zone."""
    zones = found.zones or {
        (client[1], server[1]): 1.0
        for client in workloads.places.get(found.client, ())
        for server in workloads.places.get(found.server, ())
    }
    costs = [cost_of(workloads.place_of(a), workloads.place_of(b)) for a, b in zones]
    return min(max([1, *(cost for cost in costs if cost is not None)]), GREATEST_COST)
