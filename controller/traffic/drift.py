"""Compares AppGroups with measured traffic, and weighs their dependencies by it, without I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from controller.cluster.crds import AppGroup
from controller.cluster.dependency_graph import build_graph
from controller.cluster.membership import Membership
from controller.traffic.bill import TrafficBill, compute_bill, map_workloads_to_groups
from controller.traffic.graph import Flow, ObservedDependency, TrafficGraph, build_traffic_graph
from controller.traffic.prices import PriceTable
from controller.traffic.weights import Weights
from controller.traffic.workloads import Workloads

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
    key_by_position = [local_keys.get(selector) for selector in declared.selectors]
    min_bps_by_pair = {
        (client, server): edge.min_bandwidth_bps
        for edge in declared.edges
        if (client := key_by_position[edge.caller]) and (server := key_by_position[edge.callee])
    }
    keys = set(local_keys.values())
    observed = {(d.client.key, d.server.key): d for d in graph.dependencies if {d.client.key, d.server.key} <= keys}
    if not observed:
        return []
    drifts: list[Drift] = []
    for pair, dependency in observed.items():
        rate_bps, min_bps = dependency.bytes_per_s * 8, min_bps_by_pair.get(pair)
        if min_bps is None:
            detail = "calls that the AppGroup does not declare"
            drifts.append(Drift("new", *pair, dependency.bytes_per_s, detail))
        elif min_bps and rate_bps > DRIFT_FACTOR * min_bps:
            detail = f"moves {rate_bps:.0f} bit/s, {rate_bps / min_bps:.0f} times its minBandwidth"
            drifts.append(Drift("grown", *pair, dependency.bytes_per_s, detail))
    unobserved = min_bps_by_pair.keys() - observed.keys()
    drifts += [Drift("gone", *pair, 0.0, "declared, but no calls were seen") for pair in unobserved]
    return sorted(drifts, key=lambda drift: (drift.kind, drift.client, drift.server))


def compute_weights(group: AppGroup, graph: TrafficGraph) -> dict[str, dict[str, float]]:
    """Caller's selector -> callee's selector -> bytes per second, between the group's workloads in its own namespace, declared or not."""
    selector_by_key = {key: selector for selector, key in local_keys_by_selector(group).items()}
    weights: dict[str, dict[str, float]] = defaultdict(dict)
    for dependency in graph.dependencies:
        client, server = (selector_by_key.get(end.key) for end in (dependency.client, dependency.server))
        if client and server:
            weights[client][server] = round(dependency.bytes_per_s, 3)
    return dict(weights)


class Comparison(msgspec.Struct, frozen=True):
    """The bill of all traffic, and drift and measured weights of each AppGroup by ``namespace/name``."""

    bill: TrafficBill
    drift_by_group: Mapping[str, Sequence[Drift]]
    weights_by_group: Mapping[str, Weights]


def compare_groups(
    flows: Iterable[Flow],
    workloads: Workloads,
    groups: Sequence[AppGroup],
    prices: PriceTable | None,
    *,
    membership: Membership,
    netaware_namespace: str,
) -> Comparison:
    """Compare AppGroups with flows; ``membership`` decides to which AppGroup a workload's price belongs."""
    resolved_flows, _ = workloads.resolve(flows)
    graph = build_traffic_graph(resolved_flows, netaware_namespace)
    # The index by client avoids a scan of all traffic for each group.
    dependencies_by_client: dict[str, list[ObservedDependency]] = defaultdict(list)
    for dependency in graph.dependencies:
        dependencies_by_client[dependency.client.key].append(dependency)
    drift_by_group: dict[str, Sequence[Drift]] = {}
    weights_by_group: dict[str, Weights] = {}
    for group in groups:
        clients = dict.fromkeys(local_keys_by_selector(group).values())
        calls = TrafficGraph(tuple(d for client in clients for d in dependencies_by_client.get(client, ())))
        drift_by_group[group.metadata.key] = find_drift(group, calls)
        weights_by_group[group.metadata.key] = compute_weights(group, calls)
    bill = compute_bill(graph, workloads, prices, map_workloads_to_groups(membership))
    return Comparison(bill, drift_by_group, weights_by_group)
