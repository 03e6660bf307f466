"""Proposes AppGroups from observed dependencies, with patches that label pod templates, without I/O.

A proposal for an existing AppGroup keeps its entries, adds workloads and dependencies, and may raise numMembers.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from controller.cluster.costs import SAME_ZONE_COST, CostTable
from controller.cluster.crds import APPGROUP_LABEL, APPGROUPS, WORKLOAD_LABEL, AppGroup, Workload, WorkloadRef
from controller.traffic.graph import ObservedDependency, TrafficGraph, WorkloadId
from controller.traffic.workloads import Workloads
from netperf.policy import MAX_NETWORK_COST

DEFAULT_KIND = "Deployment"
LABELLED_KINDS = frozenset({DEFAULT_KIND, "StatefulSet"})
"""Kinds whose pods a plan can place; a DaemonSet determines the nodes of its pods."""
MIN_JOINING_SHARE = 0.01
"""A dependency joins two workloads into one group if it carries this share of the traffic of either workload."""
MIN_HUB_CALLER_SHARE, MIN_HUB_CALLERS = 0.6, 6
"""A server is a hub, such as a log sink, if at least this share of the other connected workloads, and at least this number, calls it. A
hub does not join its clients into one group."""
MAX_LABEL_LENGTH, MAX_SUFFIX_LENGTH = 63, 13
"""Length of a label's value, and the part of it for a number."""
MIN_BANDWIDTH_BPS = 1000
"""Smallest rate that the CNI bandwidth plugin accepts."""


class ProposedDependency(msgspec.Struct, frozen=True, rename="camel"):
    """A dependency of a proposed AppGroup.

    Attributes:
        client, server: workloads as ``namespace/name``.
        min_bandwidth_bps: proposed minBandwidth, from the peak of the traffic (`round_up_bps`).
        max_network_cost: proposed maxNetworkCost, from the zones that exchange traffic today.
        bytes_per_s: mean traffic.
        is_user_defined: whether the existing AppGroup has this dependency; its values then stay, instead of the proposed.
    """

    client: str
    server: str
    min_bandwidth_bps: int
    max_network_cost: int
    bytes_per_s: float
    is_user_defined: bool


class LabelPatch(NamedTuple):
    """A patch that labels the pod template of a workload, by the workload's kind and name."""

    kind: str
    name: str
    patch: dict[str, Any]


class Proposal(msgspec.Struct, frozen=True, rename="camel"):
    """A proposed AppGroup.

    Attributes:
        namespace, name: of the AppGroup.
        manifest: the object, ready for kubectl.
        patches: for workloads whose pods lack the labels.
        dependencies: observed dependencies of the group, most traffic first.
        external: workloads outside the group that exchange traffic with it, as ``namespace/name``, sorted.
        exists: whether the cluster has this AppGroup already.
    """

    namespace: str
    name: str
    manifest: dict[str, Any]
    patches: tuple[LabelPatch, ...]
    dependencies: tuple[ProposedDependency, ...]
    external: tuple[str, ...] = ()
    exists: bool = False


def propose(
    graph: TrafficGraph, workloads: Workloads, groups: Sequence[AppGroup], namespace: str, costs: CostTable
) -> list[Proposal]:
    """AppGroups for one namespace, most traffic first, from the traffic, workloads and AppGroups of the whole cluster."""
    existing = _ExistingGroups(groups, namespace)
    components = _build_components(graph, existing, namespace)
    proposals = [_make_proposal(component, workloads, existing, costs) for component in components]
    return sorted(proposals, key=lambda p: (-sum(d.bytes_per_s for d in p.dependencies), p.name))


class _Component(msgspec.Struct, frozen=True):
    """The workloads of a proposed group, dependencies between them, and workloads outside that exchange traffic with them."""

    namespace: str
    name: str
    members: frozenset[WorkloadId]
    edges: list[ObservedDependency]
    external: tuple[str, ...]


class _ExistingGroups:
    """The AppGroups of a namespace. A workload of the namespace belongs to the first AppGroup that lists it."""

    def __init__(self, groups: Iterable[AppGroup], namespace: str) -> None:
        self.groups = {g.metadata.name: g for g in groups if g.metadata.namespace == namespace}
        self._entries: dict[str, list[tuple[str, Workload]]] = defaultdict(list)
        """Name of a workload -> AppGroups that list a workload of this name, with the entry."""
        for name, group in self.groups.items():
            for entry in group.spec.workloads or ():
                if entry.workload.namespace in {"", namespace} and entry.workload.selector:
                    self._entries[entry.workload.name].append((name, entry))

    def _entries_of(self, workload: WorkloadId) -> Iterator[tuple[str, Workload]]:
        """The groups that list a workload, each with the entry."""
        entries = self._entries.get(workload.name, ())
        return ((group, entry) for group, entry in entries if _is_same_workload(entry.workload, workload))

    def entry_of(self, group: str, workload: WorkloadId) -> Workload | None:
        """A group's entry of a workload."""
        return next((entry for name, entry in self._entries_of(workload) if name == group), None)

    def group_of(self, members: Iterable[WorkloadId]) -> str:
        """A group that lists one of these workloads, that of the first listed workload; empty if none is listed."""
        return next((group for workload in sorted(members) for group, _ in self._entries_of(workload)), "")

    def has_edge(self, group: str, client: WorkloadId, server: WorkloadId, selector: str) -> bool:
        """Whether a group has a dependency of the client on the server, by selector, or by name if it has no selector."""
        entry = self.entry_of(group, client)
        return entry is not None and any(
            target.selector == selector if target.selector else _is_same_workload(target, server)
            for target in (dependency.workload for dependency in entry.dependencies or ())
        )


def _build_components(graph: TrafficGraph, existing: _ExistingGroups, namespace: str) -> list[_Component]:
    """The proposed groups of a namespace; each has at least one dependency within it."""
    internal_edges: list[ObservedDependency] = []
    external_edges: list[ObservedDependency] = []
    for edge in graph.dependencies:
        namespaces, kinds = {edge.client.namespace, edge.server.namespace}, {edge.client.kind, edge.server.kind}
        if namespaces == {namespace} and kinds <= LABELLED_KINDS | {""}:
            internal_edges.append(edge)
        elif namespace in namespaces:
            external_edges.append(edge)
    members_by_index = _connected_components(internal_edges, existing)
    index_of = {member: index for index, members in enumerate(members_by_index) for member in members}
    edges_by_index: dict[int, list[ObservedDependency]] = defaultdict(list)
    for edge in internal_edges:
        if index_of[edge.client] == index_of[edge.server]:
            edges_by_index[index_of[edge.client]].append(edge)
        else:
            external_edges.append(edge)
    external_peers: dict[int, set[str]] = defaultdict(set)
    for edge in external_edges:
        for member, peer in ((edge.client, edge.server), (edge.server, edge.client)):
            if member in index_of:
                external_peers[index_of[member]].add(peer.key)
    used_names = set(existing.groups)
    components: list[_Component] = []
    for index, edges in sorted(edges_by_index.items()):
        members = members_by_index[index]
        name = existing.group_of(members) or _choose_name(edges, members, namespace, used_names)
        used_names.add(name)
        components.append(_Component(namespace, name, members, edges, tuple(sorted(external_peers[index]))))
    return components


def _is_same_workload(listed: WorkloadRef, observed: WorkloadId) -> bool:
    """Whether names and kinds are equal; an empty kind equals any."""
    return listed.name == observed.name and (listed.kind == observed.kind or not listed.kind or not observed.kind)


def _connected_components(
    edges: Sequence[ObservedDependency], existing: _ExistingGroups
) -> list[frozenset[WorkloadId]]:
    """Workloads that are connected by an existing AppGroup, or by dependencies from `MIN_JOINING_SHARE` on.

    Components of two existing AppGroups are never joined. A hub then joins the component of the client with the most traffic.
    """
    workloads = sorted({end for edge in edges for end in (edge.client, edge.server)})
    group_by_workload = {workload: existing.group_of([workload]) for workload in workloads}
    component_by_workload = {workload: [workload] for workload in workloads}

    def join(workload: WorkloadId, other: WorkloadId) -> None:
        members = [*component_by_workload[other], *component_by_workload[workload]]
        groups = {group_by_workload[member] for member in members} - {""}
        if component_by_workload[other] is not component_by_workload[workload] and len(groups) < 2:
            component_by_workload.update(dict.fromkeys(members, members))

    first_members: dict[str, WorkloadId] = {}
    for workload, group in group_by_workload.items():
        if group:
            join(workload, first_members.setdefault(group, workload))
    rates: dict[WorkloadId, float] = defaultdict(float)
    for edge in edges:
        rates[edge.client] += edge.bytes_per_s
        rates[edge.server] += edge.bytes_per_s
    hubs = _find_hubs(edges, len(workloads))
    most_traffic_first = sorted(edges, key=lambda edge: (-edge.bytes_per_s, edge.client, edge.server))
    for edge in most_traffic_first:
        min_rate = MIN_JOINING_SHARE * min(rates[edge.client], rates[edge.server])
        if edge.bytes_per_s >= min_rate and edge.server not in hubs:
            join(edge.client, edge.server)
    for edge in most_traffic_first:
        if edge.server in hubs and component_by_workload[edge.server][0] == edge.server:
            join(edge.server, edge.client)
    components = {members[0]: frozenset(members) for members in component_by_workload.values()}
    return [members for _, members in sorted(components.items())]


def _find_hubs(edges: Sequence[ObservedDependency], workload_count: int) -> set[WorkloadId]:
    """The servers that most workloads call, see `MIN_HUB_CALLER_SHARE`."""
    clients_by_server: dict[WorkloadId, set[WorkloadId]] = defaultdict(set)
    for edge in edges:
        clients_by_server[edge.server].add(edge.client)
    min_callers = max(MIN_HUB_CALLERS, MIN_HUB_CALLER_SHARE * (workload_count - 1))
    return {server for server, clients in clients_by_server.items() if len(clients) >= min_callers}


def _choose_name(
    edges: Sequence[ObservedDependency], members: frozenset[WorkloadId], namespace: str, used_names: set[str]
) -> str:
    """The first unused name: of the namespace, of the workloads (uncalled first, then by traffic), then the namespace with a number."""
    servers = {edge.server for edge in edges}
    rates: dict[WorkloadId, float] = defaultdict(float)
    for edge in edges:
        rates[edge.client] += edge.bytes_per_s
    callers_first = sorted(members, key=lambda member: (member in servers, -rates[member], member))
    numbered = (f"{namespace}-{n}" for n in itertools.count(2))
    candidates = itertools.chain((namespace,), (w.name for w in callers_first), numbered)
    return next(candidate for candidate in candidates if candidate not in used_names)


def _make_proposal(
    component: _Component, workloads: Workloads, existing: _ExistingGroups, costs: CostTable
) -> Proposal:
    name, group = component.name, existing.groups.get(component.name)
    selectors = _choose_selectors(component, workloads, existing)
    dependencies = tuple(
        ProposedDependency(
            client=edge.client.key,
            server=edge.server.key,
            min_bandwidth_bps=round_up_bps(edge.peak_bytes_per_s * 8),
            max_network_cost=_highest_cost(edge, workloads, costs),
            bytes_per_s=edge.bytes_per_s,
            is_user_defined=existing.has_edge(name, edge.client, edge.server, selectors[edge.server]),
        )
        for edge in component.edges
    )
    replicas = sum(workloads.replica_counts[w] for w in component.members)
    spec = {
        "numMembers": max(group.spec.num_members if group is not None else 0, replicas, 1),
        "topologySortingAlgorithm": group.spec.topology_sorting_algorithm if group is not None else "KahnSort",
        "workloads": _spec_workloads(group, selectors, component.edges, dependencies),
    }
    manifest = {**APPGROUPS.type_meta, "metadata": {"name": name, "namespace": component.namespace}, "spec": spec}
    return Proposal(
        namespace=component.namespace,
        name=name,
        manifest=manifest,
        patches=tuple(_label_patches(name, selectors, workloads)),
        dependencies=tuple(sorted(dependencies, key=lambda d: (-d.bytes_per_s, d.client, d.server))),
        external=component.external,
        exists=group is not None,
    )


def _choose_selectors(component: _Component, workloads: Workloads, existing: _ExistingGroups) -> dict[WorkloadId, str]:
    """The selector of each workload: that of its entry, else its pods' label, else an unused name made from workload and kind."""
    group = existing.groups.get(component.name)
    used_selectors = {entry.workload.selector for entry in (group.spec.workloads if group else None) or ()}
    selectors: dict[WorkloadId, str] = {}
    for workload in sorted(component.members):
        labels = workloads.labels_by_workload.get(workload, {})
        entry = existing.entry_of(component.name, workload)
        selector = entry.workload.selector if entry else ""
        if not selector and labels.get(APPGROUP_LABEL, component.name) == component.name:
            selector = labels.get(WORKLOAD_LABEL, "")
        names = (f"{workload.name}{suffix}" for suffix in ("", f"-{workload.kind.lower()}"))
        values = (re.sub(r"[^A-Za-z0-9]+$", "", name[:MAX_LABEL_LENGTH]) for name in names)
        numbered = (f"{workload.name[: MAX_LABEL_LENGTH - MAX_SUFFIX_LENGTH]}-{n}" for n in itertools.count(2))
        candidates = itertools.chain(values, numbered)
        selectors[workload] = selector or next(value for value in candidates if value not in used_selectors)
        used_selectors.add(selectors[workload])
    return selectors


def _spec_workloads(
    existing: AppGroup | None,
    selectors: Mapping[WorkloadId, str],
    edges: Iterable[ObservedDependency],
    dependencies: Iterable[ProposedDependency],
) -> list[dict[str, Any]]:
    """``spec.workloads``: existing entries with added dependencies, then new entries."""
    entries: list[dict[str, Any]] = (msgspec.to_builtins(existing.spec).get("workloads") or []) if existing else []
    entry_by_selector: dict[str, dict[str, Any]] = {}
    for entry in entries:
        entry_by_selector.setdefault(entry["workload"].get("selector", ""), entry)
    references = {
        w: {"kind": w.kind or DEFAULT_KIND, "apiVersion": "apps/v1", "name": w.name, "selector": selector}
        for w, selector in selectors.items()
    }
    for workload, selector in selectors.items():
        if selector not in entry_by_selector:
            entry_by_selector[selector] = {"workload": references[workload]}
            entries.append(entry_by_selector[selector])
    for edge, proposed in zip(edges, dependencies, strict=True):
        if not proposed.is_user_defined:
            limits = {"minBandwidth": str(proposed.min_bandwidth_bps), "maxNetworkCost": proposed.max_network_cost}
            dependency = {"workload": references[edge.server], **limits}
            entry_by_selector[selectors[edge.client]].setdefault("dependencies", []).append(dependency)
    return entries


def _label_patches(group: str, selectors: Mapping[WorkloadId, str], workloads: Workloads) -> Iterator[LabelPatch]:
    for workload, selector in selectors.items():
        labels = {APPGROUP_LABEL: group, WORKLOAD_LABEL: selector}
        if not labels.items() <= workloads.labels_by_workload.get(workload, {}).items():
            patch = {"spec": {"template": {"metadata": {"labels": labels}}}}
            yield LabelPatch(workload.kind or DEFAULT_KIND, workload.name, patch)


def round_up_bps(rate_bps: float) -> int:
    """Round up to two significant digits, and to at least `MIN_BANDWIDTH_BPS`."""
    if rate_bps <= MIN_BANDWIDTH_BPS:
        return MIN_BANDWIDTH_BPS
    unit = int(10 ** (math.floor(math.log10(rate_bps)) - 1))
    return math.ceil(rate_bps / unit) * unit


def _highest_cost(observed: ObservedDependency, workloads: Workloads, costs: CostTable) -> int:
    """The highest cost between zones with traffic or, if these are unknown, with replicas; `SAME_ZONE_COST` to `MAX_NETWORK_COST`."""
    pairs = [(workloads.location_of(a), workloads.location_of(b)) for a, b in observed.zones] or itertools.product(
        workloads.location_counts.get(observed.client, ()), workloads.location_counts.get(observed.server, ())
    )
    pair_costs = (costs.cost(client, server) for client, server in pairs if client != server)
    return min(max([SAME_ZONE_COST, *(cost for cost in pair_costs if cost is not None)]), MAX_NETWORK_COST)
