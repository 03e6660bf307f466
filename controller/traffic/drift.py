"""Compares AppGroups with measured traffic. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

import msgspec

from controller.cluster.graph import build_graph
from controller.cluster.membership import Membership
from controller.cluster.resources import AppGroup
from controller.traffic.graph import TrafficGraph

DRIFT_FACTOR = 10.0
DriftKind = Literal["new", "gone", "grown"]


class Drift(msgspec.Struct, frozen=True):
    """A difference between traffic and an AppGroup: an edge that is new, gone, or ten times its ``minBandwidth``."""

    kind: DriftKind
    client: str
    server: str
    bytes_per_s: float
    detail: str


def _own_workloads(group: AppGroup) -> dict[str, str]:
    """Selector -> ``namespace/name``, only of workloads in the group's namespace: its writer must not observe others' traffic."""
    namespace = group.metadata.namespace
    workloads = build_graph(group.spec).workloads
    return {w.selector: f"{namespace}/{w.name}" for w in workloads if w.name and w.namespace in {"", namespace}}


def members_of(group: AppGroup) -> list[str]:
    """``namespace/name`` of the group's workloads in its own namespace."""
    return list(dict.fromkeys(_own_workloads(group).values()))


def drift_of(group: AppGroup, graph: TrafficGraph) -> list[Drift]:
    """Differences between traffic and the group, by names of workloads in its namespace."""
    declared, own = build_graph(group.spec), _own_workloads(group)
    members, names = set(own.values()), [own.get(selector) for selector in declared.selectors]
    ends = ((names[edge.dependant], names[edge.dependency], edge.min_bandwidth_bps) for edge in declared.edges)
    written = {(client, server): least for client, server, least in ends if client and server}
    real = {(d.client.key, d.server.key): d for d in graph.dependencies if {d.client.key, d.server.key} <= members}
    found = []
    for (client, server), d in real.items():
        least = written.get((client, server))
        if least is None:
            found.append(Drift("new", client, server, d.bytes_per_s, "calls that the AppGroup does not declare"))
        elif least and d.bytes_per_s * 8 > DRIFT_FACTOR * least:
            detail = f"moves {d.bytes_per_s * 8:.0f} bit/s, {d.bytes_per_s * 8 / least:.0f} times its minBandwidth"
            found.append(Drift("grown", client, server, d.bytes_per_s, detail))
    found += [
        Drift("gone", client, server, 0.0, "declared, but no calls were seen")
        for client, server in written
        if (client, server) not in real and real
    ]
    return sorted(found, key=lambda d: (d.kind, d.client, d.server))


def measured_weights(group: AppGroup, graph: TrafficGraph) -> dict[str, dict[str, float]]:
    """Weights for a plan: caller's selector -> callee's selector -> bytes per second, for edges that both know."""
    selectors = {name: selector for selector, name in _own_workloads(group).items()}
    weights: dict[str, dict[str, float]] = defaultdict(dict)
    for d in graph.dependencies:
        if d.client.key in selectors and d.server.key in selectors:
            weights[selectors[d.client.key]][selectors[d.server.key]] = round(d.bytes_per_s, 3)
    return dict(weights)


def groups_of_workloads(membership: Membership) -> dict[str, str]:
    """``namespace/workload`` -> ``namespace/AppGroup`` that may have its pods; one of the workload's own namespace comes before those
    of others.
    """
    own: dict[str, str] = {}
    others: dict[str, str] = {}
    for key, group in membership.groups.items():
        here = group.metadata.namespace
        for item in group.spec.workloads or ():
            namespace = item.workload.namespace or here
            if membership.group_of(namespace, group.metadata.name) == key:
                found = own if namespace == here else others
                found.setdefault(f"{namespace}/{item.workload.name}", key)
    return others | own
