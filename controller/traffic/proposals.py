"""Proposes AppGroups from a graph of traffic, and patches that label pods. Pure.

A proposal for an existing AppGroup keeps its entries and only adds workloads and dependencies.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from controller.cluster.costs import SAME_ZONE_COST, CostTable
from controller.cluster.crds import APPGROUP_LABEL, APPGROUPS, WORKLOAD_LABEL, AppGroup, Workload, WorkloadRef
from controller.traffic.graph import ObservedDependency, TrafficGraph, WorkloadId
from controller.traffic.workloads import Workloads
from netperf.policy import MAX_NETWORK_COST

LABELLED_KINDS = frozenset({"Deployment", "StatefulSet"})
"""Kinds whose pods a plan can place; a DaemonSet determines the nodes of its pods."""
JOINING_SHARE = 0.01
"""A dependency joins two workloads into one group if it carries this share of the smaller one's traffic."""
HUB_CALLERS = 0.6
"""A server that this share of a namespace's workloads calls is a hub and joins no groups: a log sink, a shared cache, a gateway."""
MAX_LABEL_VALUE, MAX_SUFFIX = 63, 13
"""Length of a label's value, and the part of it for a number."""
MIN_HUB_CALLERS = 6
"""A server with fewer callers is no hub."""


class ProposedDependency(msgspec.Struct, frozen=True, rename="camel"):
    """A dependency as proposed for an AppGroup; ``client`` and ``server`` are ``namespace/name``."""

    client: str
    server: str
    min_bandwidth_bps: int
    max_network_cost: int
    bytes_per_s: float
    is_user_defined: bool
    """Whether the existing AppGroup has this dependency, which is then kept."""


class Proposal(msgspec.Struct, frozen=True, rename="camel"):
    """A proposed AppGroup.

    Attributes:
        manifest: the object, ready for kubectl.
        patches: (kind, name, patch of the pod template) of workloads whose pods lack the labels.
        dependencies: observed dependencies of the group, greatest first.
        external: ``namespace/name`` of workloads outside the group that it exchanges traffic with, sorted.
        exists: the cluster has this AppGroup already.
    """

    namespace: str
    name: str
    manifest: dict[str, Any]
    patches: tuple[tuple[str, str, dict[str, Any]], ...]
    dependencies: tuple[ProposedDependency, ...]
    external: tuple[str, ...] = ()
    exists: bool = False


def propose(
    graph: TrafficGraph, workloads: Workloads, groups: Sequence[AppGroup], namespace: str, costs: CostTable
) -> list[Proposal]:
    """AppGroups for one namespace, greatest traffic first."""
    internal: list[ObservedDependency] = []
    external: list[ObservedDependency] = []
    for d in graph.dependencies:
        namespaces, kinds = {d.client.namespace, d.server.namespace}, {d.client.kind, d.server.kind}
        if namespaces == {namespace} and kinds <= LABELLED_KINDS | {""}:
            internal.append(d)
        elif namespace in namespaces:
            external.append(d)
    existing = _ExistingGroups(groups, namespace)
    components = _connected_components(internal, existing)
    index_of = {member: index for index, members in enumerate(components) for member in members}
    owners = [existing.group_of(members) for members in components]
    edges: dict[int, list[ObservedDependency]] = defaultdict(list)
    for d in internal:
        client, server = index_of[d.client], index_of[d.server]
        if client == server:
            edges[client].append(d)
        elif owners[client] and owners[server]:
            external.append(d)
    external_peers: dict[int, set[str]] = defaultdict(set)
    for d in external:
        for member, other in ((d.client, d.server), (d.server, d.client)):
            if member in index_of:
                external_peers[index_of[member]].add(other.key)
    taken = set(existing.groups)
    proposals = []
    for index in sorted(edges):
        members = components[index]
        name = owners[index] or _new_name(edges[index], members, namespace, taken)
        taken.add(name)
        component = _Component(namespace, name, members, edges[index], tuple(sorted(external_peers[index])))
        proposals.append(_proposal(component, workloads, existing, costs))
    return sorted(proposals, key=lambda p: (-sum(d.bytes_per_s for d in p.dependencies), p.name))


class _Component(msgspec.Struct, frozen=True):
    """Workloads of a proposed group, dependencies between them, and workloads outside that they exchange traffic with."""

    namespace: str
    name: str
    members: frozenset[WorkloadId]
    edges: list[ObservedDependency]
    external: tuple[str, ...]


class _ExistingGroups:
    """The AppGroups of a namespace. A workload belongs to the first one that lists it."""

    def __init__(self, groups: Iterable[AppGroup], namespace: str) -> None:
        self.groups = {g.metadata.name: g for g in groups if g.metadata.namespace == namespace}
        self._namespace = namespace
        self._listed: dict[str, list[tuple[str, Workload]]] = defaultdict(list)
        for name, group in self.groups.items():
            for item in group.spec.workloads or ():
                if item.workload.namespace in {"", namespace} and item.workload.selector:
                    self._listed[item.workload.name].append((name, item))

    def _find(self, workload: WorkloadId, group: str = "") -> tuple[str, Workload | None]:
        """The first group that lists a workload, and the entry; ``group`` limits the search to one group."""
        for name, item in self._listed.get(workload.name, ()):
            if workload.namespace == self._namespace and _matches(item.workload, workload) and name in {group or name}:
                return name, item
        return "", None

    def group_of(self, members: Iterable[WorkloadId]) -> str:
        """The group that lists one of these workloads; empty without one."""
        return next((owner for w in sorted(members) if (owner := self._find(w)[0])), "")

    def selector_of(self, group: str, workload: WorkloadId) -> str:
        """The selector of a workload's entry in a group; empty without one."""
        _, item = self._find(workload, group)
        return item.workload.selector if item else ""

    def has_edge(self, group: str, client: WorkloadId, server: WorkloadId, selector: str) -> bool:
        """Whether a group has a dependency of the client on the server, by selector, or by name if it has no selector."""
        _, item = self._find(client, group)
        return item is not None and any(
            target.selector == selector if target.selector else _matches(target, server)
            for target in (dependency.workload for dependency in item.dependencies or ())
        )


def _matches(listed: WorkloadRef, observed: WorkloadId) -> bool:
    """Whether names and kinds are equal; an empty kind equals any."""
    return listed.name == observed.name and (listed.kind == observed.kind or not listed.kind or not observed.kind)


class _DisjointSets:
    """Disjoint sets of workloads, each of at most one existing AppGroup."""

    def __init__(self, owners: Mapping[WorkloadId, str]) -> None:
        self._parent = {end: end for end in owners}
        self._owner = dict(owners)
        first_of_owner: dict[str, WorkloadId] = {}
        for end, owner in owners.items():
            if owner:
                self.join(end, first_of_owner.setdefault(owner, end))

    def root(self, end: WorkloadId) -> WorkloadId:
        """The representative of a workload's set."""
        while self._parent[end] != end:
            self._parent[end] = self._parent[self._parent[end]]
            end = self._parent[end]
        return end

    def join(self, first: WorkloadId, second: WorkloadId) -> None:
        """Join the sets of two workloads, unless they are of two existing AppGroups."""
        root, new_root = self.root(first), self.root(second)
        owners = {self._owner[root], self._owner[new_root]} - {""}
        if root != new_root and len(owners) < 2:
            self._parent[root] = new_root
            self._owner[new_root] = next(iter(owners), "")


def _connected_components(
    edges: Sequence[ObservedDependency], existing: _ExistingGroups
) -> list[frozenset[WorkloadId]]:
    """Workloads that are connected by an existing AppGroup, or by dependencies above JOINING_SHARE.

    Components of two existing AppGroups are never joined.
    """
    ends = sorted({end for d in edges for end in (d.client, d.server)})
    sets = _DisjointSets({end: existing.group_of([end]) for end in ends})
    traffic_of: dict[WorkloadId, float] = defaultdict(float)
    callers: dict[WorkloadId, set[WorkloadId]] = defaultdict(set)
    for d in edges:
        traffic_of[d.client] += d.bytes_per_s
        traffic_of[d.server] += d.bytes_per_s
        callers[d.server].add(d.client)
    min_callers = max(MIN_HUB_CALLERS, HUB_CALLERS * (len(ends) - 1))
    hubs = {server for server, clients in callers.items() if len(clients) >= min_callers}
    greatest_first = sorted(edges, key=lambda d: (-d.bytes_per_s, d.client, d.server))
    for d in greatest_first:
        if d.bytes_per_s >= JOINING_SHARE * min(traffic_of[d.client], traffic_of[d.server]) and d.server not in hubs:
            sets.join(d.client, d.server)
    # A hub joins the set of its greatest client.
    for d in greatest_first:
        if d.server in hubs and sets.root(d.server) == d.server:
            sets.join(d.server, d.client)
    components: dict[WorkloadId, set[WorkloadId]] = defaultdict(set)
    for end in ends:
        components[sets.root(end)].add(end)
    return [frozenset(members) for _, members in sorted(components.items())]


def _new_name(
    edges: Sequence[ObservedDependency], members: frozenset[WorkloadId], namespace: str, taken: set[str]
) -> str:
    """The namespace for its first group; later groups have the name of a workload that no other one calls."""
    servers = {d.server for d in edges}
    calls: dict[WorkloadId, float] = defaultdict(float)
    for d in edges:
        calls[d.client] += d.bytes_per_s
    callers_first = sorted(members, key=lambda m: (m in servers, -calls[m], m))
    numbered = (f"{namespace}-{n}" for n in itertools.count(2))
    candidates = itertools.chain((namespace,), (w.name for w in callers_first), numbered)
    return next(candidate for candidate in candidates if candidate not in taken)


def _proposal(component: _Component, workloads: Workloads, existing: _ExistingGroups, costs: CostTable) -> Proposal:
    name, group = component.name, existing.groups.get(component.name)
    selectors = _selectors(component, workloads, existing)
    dependencies = tuple(
        ProposedDependency(
            d.client.key,
            d.server.key,
            round_up_bps(d.peak_bytes_per_s * 8),
            _max_cost(d, workloads, costs),
            d.bytes_per_s,
            existing.has_edge(name, d.client, d.server, selectors[d.server]),
        )
        for d in component.edges
    )
    replicas = sum(workloads.replicas[w] for w in component.members)
    new = [(d.client, d.server, proposed) for d, proposed in zip(component.edges, dependencies, strict=True)]
    spec = {
        "numMembers": max(group.spec.num_members if group is not None else 0, replicas, 1),
        "topologySortingAlgorithm": group.spec.topology_sorting_algorithm if group is not None else "KahnSort",
        "workloads": _spec_workloads(group, selectors, new),
    }
    manifest = {
        "apiVersion": APPGROUPS.api_version,
        "kind": "AppGroup",
        "metadata": {"name": name, "namespace": component.namespace},
        "spec": spec,
    }
    return Proposal(
        component.namespace,
        name,
        manifest,
        tuple(_patches(name, selectors, workloads)),
        tuple(sorted(dependencies, key=lambda d: (-d.bytes_per_s, d.client, d.server))),
        component.external,
        group is not None,
    )


def _selectors(component: _Component, workloads: Workloads, existing: _ExistingGroups) -> dict[WorkloadId, str]:
    """The selector of each workload: that of its entry, else its pods' label, else an unused name made from workload and kind."""
    group = existing.groups.get(component.name)
    taken = {item.workload.selector for item in (group.spec.workloads if group else None) or ()}
    selectors: dict[WorkloadId, str] = {}
    for workload in sorted(component.members):
        labels = workloads.labels.get(workload, {})
        selector = existing.selector_of(component.name, workload)
        if not selector and labels.get(APPGROUP_LABEL, component.name) == component.name:
            selector = labels.get(WORKLOAD_LABEL, "")
        names = (f"{workload.name}{suffix}" for suffix in ("", f"-{workload.kind.lower()}"))
        values = (re.sub(r"[^A-Za-z0-9]+$", "", name[:MAX_LABEL_VALUE]) for name in names)
        numbered = (f"{workload.name[: MAX_LABEL_VALUE - MAX_SUFFIX]}-{n}" for n in itertools.count(2))
        selectors[workload] = selector or next(v for v in itertools.chain(values, numbered) if v not in taken)
        taken.add(selectors[workload])
    return selectors


def _spec_workloads(
    existing: AppGroup | None,
    selectors: Mapping[WorkloadId, str],
    dependencies: Iterable[tuple[WorkloadId, WorkloadId, ProposedDependency]],
) -> list[dict[str, Any]]:
    """``spec.workloads``: existing entries with added dependencies, then new ones."""
    items: list[dict[str, Any]] = (msgspec.to_builtins(existing.spec).get("workloads") or []) if existing else []
    by_selector: dict[str, dict[str, Any]] = {}
    for item in items:
        by_selector.setdefault(item["workload"].get("selector", ""), item)
    references = {
        w: {"kind": w.kind or "Deployment", "apiVersion": "apps/v1", "name": w.name, "selector": selector}
        for w, selector in selectors.items()
    }
    for workload, reference in references.items():
        if selectors[workload] not in by_selector:
            by_selector[selectors[workload]] = {"workload": reference}
            items.append(by_selector[selectors[workload]])
    for client, server, proposed in dependencies:
        if not proposed.is_user_defined:
            entry = {
                "workload": references[server],
                "minBandwidth": str(proposed.min_bandwidth_bps),
                "maxNetworkCost": proposed.max_network_cost,
            }
            by_selector[selectors[client]].setdefault("dependencies", []).append(entry)
    return items


def _patches(
    group: str, selectors: Mapping[WorkloadId, str], workloads: Workloads
) -> Iterable[tuple[str, str, dict[str, Any]]]:
    for workload, selector in selectors.items():
        labels = {APPGROUP_LABEL: group, WORKLOAD_LABEL: selector}
        if not labels.items() <= workloads.labels.get(workload, {}).items():
            yield workload.kind or "Deployment", workload.name, {"spec": {"template": {"metadata": {"labels": labels}}}}


def round_up_bps(rate_bps: float) -> int:
    """Round up to two significant digits, and to at least 1 kbit/s."""
    if rate_bps <= 1000:
        return 1000
    unit = int(10 ** (math.floor(math.log10(rate_bps)) - 1))
    return math.ceil(rate_bps / unit) * unit


def _max_cost(observed: ObservedDependency, workloads: Workloads, costs: CostTable) -> int:
    """The highest cost between zones of a dependency, or of its replicas if zones are unknown; at least that within a zone."""
    pairs = [(workloads.location_of(a), workloads.location_of(b)) for a, b in observed.zones] or itertools.product(
        workloads.locations.get(observed.client, ()), workloads.locations.get(observed.server, ())
    )
    by_pair = (costs.cost(client, server) for client, server in pairs if client != server)
    return min(max([SAME_ZONE_COST, *(cost for cost in by_pair if cost is not None)]), MAX_NETWORK_COST)
