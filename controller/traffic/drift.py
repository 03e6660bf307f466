"""Compares AppGroups with measured traffic, and weighs their dependencies by it. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

import msgspec

from controller.cluster.crds import AppGroup
from controller.cluster.dependency_graph import build_graph
from controller.traffic.graph import TrafficGraph

DRIFT_FACTOR = 10.0
"""Traffic above this multiple of ``minBandwidth`` is drift; a ``minBandwidth`` of 0 is never exceeded."""
DriftKind = Literal["new", "gone", "grown"]
"""A dependency that is not declared; a declared dependency without calls; traffic above `DRIFT_FACTOR` times ``minBandwidth``."""


class Drift(msgspec.Struct, frozen=True, rename="camel"):
    """A difference between traffic and an AppGroup; ``client`` and ``server`` are ``namespace/name``, ``detail`` is for messages."""

    kind: DriftKind
    client: str
    server: str
    bytes_per_s: float
    detail: str


def local_keys_by_selector(group: AppGroup) -> dict[str, str]:
    """Selector -> ``namespace/name`` of the group's workloads in its own namespace that have a name.

    Workloads of other namespaces are omitted, because the author of the AppGroup may not be allowed to see their traffic.
    """
    namespace = group.metadata.namespace
    workloads = build_graph(group.spec).workloads
    return {w.selector: f"{namespace}/{w.name}" for w in workloads if w.name and w.namespace in {"", namespace}}


def find_drift(group: AppGroup, graph: TrafficGraph) -> list[Drift]:
    """Differences between traffic and a group's dependencies within its own namespace; empty if no such traffic is measured."""
    declared, local_keys = build_graph(group.spec), local_keys_by_selector(group)
    keys = [local_keys.get(selector) for selector in declared.selectors]
    ends = ((keys[edge.caller], keys[edge.callee], edge.min_bandwidth_bps) for edge in declared.edges)
    min_bandwidths = {(client, server): min_bps for client, server, min_bps in ends if client and server}
    members = set(local_keys.values())
    observed = {(d.client.key, d.server.key): d for d in graph.dependencies if {d.client.key, d.server.key} <= members}
    if not observed:
        return []  # The group's traffic is not measured.
    drifts: list[Drift] = []
    for (client, server), dependency in observed.items():
        rate_bps, min_bps = dependency.bytes_per_s * 8, min_bandwidths.get((client, server))
        if min_bps is None:
            detail = "calls that the AppGroup does not declare"
            drifts.append(Drift("new", client, server, dependency.bytes_per_s, detail))
        elif min_bps and rate_bps > DRIFT_FACTOR * min_bps:
            detail = f"moves {rate_bps:.0f} bit/s, {rate_bps / min_bps:.0f} times its minBandwidth"
            drifts.append(Drift("grown", client, server, dependency.bytes_per_s, detail))
    drifts += [
        Drift("gone", client, server, 0.0, "declared, but no calls were seen")
        for client, server in min_bandwidths
        if (client, server) not in observed
    ]
    return sorted(drifts, key=lambda d: (d.kind, d.client, d.server))


def compute_weights(group: AppGroup, graph: TrafficGraph) -> dict[str, dict[str, float]]:
    """Caller's selector -> callee's selector -> bytes per second, between the group's workloads in its own namespace, declared or not."""
    selectors = {key: selector for selector, key in local_keys_by_selector(group).items()}
    weights: dict[str, dict[str, float]] = defaultdict(dict)
    for d in graph.dependencies:
        if d.client.key in selectors and d.server.key in selectors:
            weights[selectors[d.client.key]][selectors[d.server.key]] = round(d.bytes_per_s, 3)
    return dict(weights)
