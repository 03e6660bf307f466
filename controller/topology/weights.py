"""Builds the weight NetperfCosts, and the JSON patch that writes it.

In upstream's CRD `spec.weights` is an atomic list: a server-side apply would delete the user's weights. A JSON patch replaces one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import msgspec

from controller.cluster.costs import cost_entries_of
from controller.cluster.crds import NETPERF_COSTS, CostInfo, NetworkTopology, OriginInfo, TopologyInfo, WeightInfo
from controller.topology.bandwidth import QuantityValue
from kubekit import patches
from kubekit.patches import Operation
from netperf.contract import REGION_LABEL, ZONE_LABEL
from netperf.costs import ZoneCosts
from netperf.latencies import LATENCY_ANNOTATION, Latencies, ZonePair, encode_latencies


class Bandwidths(msgspec.Struct, frozen=True):
    """Capacities as users wrote them and allocations in bits per second, by directed pair of zones or of regions."""

    capacities: Mapping[ZonePair, QuantityValue] = {}
    allocations_bps: Mapping[ZonePair, int] = {}


def build_weight(costs: ZoneCosts, zone_bandwidths: Bandwidths, region_bandwidths: Bandwidths) -> WeightInfo:
    """The weight NetperfCosts, sorted bytewise for upstream's binary search.

    Pairs without a cost have no entry: schedulers have a default for unknown costs, and would read 0 as the best cost.
    """
    zone_costs = {pair: entry.cost for pair, entry in costs.by_zone_pair.items()}
    regions = _build_topology_info(REGION_LABEL, costs.cost_by_region_pair, region_bandwidths)
    return WeightInfo(NETPERF_COSTS, [regions, _build_topology_info(ZONE_LABEL, zone_costs, zone_bandwidths)])


def _build_topology_info(
    topology_key: str, cost_by_pair: Mapping[ZonePair, int], bandwidths: Bandwidths
) -> TopologyInfo:
    entries_by_origin: dict[str, list[CostInfo]] = defaultdict(list)
    # Python compares code points, which is the bytewise order of UTF-8.
    for pair in sorted(cost_by_pair):
        origin, destination = pair
        allocated_bps = bandwidths.allocations_bps.get(pair, 0)
        # An allocation of 0 is omitted to keep the object small: most pairs of a large cluster have none.
        allocated = str(allocated_bps) if allocated_bps else None
        entry = CostInfo(destination, cost_by_pair[pair], bandwidths.capacities.get(pair), allocated)
        entries_by_origin[origin].append(entry)
    return TopologyInfo(topology_key, [OriginInfo(origin, entries) for origin, entries in entries_by_origin.items()])


def zone_costs_of(weight: WeightInfo | None) -> dict[ZonePair, int]:
    """Costs between zones in a weight, by directed pair; empty without a weight."""
    return {pair: entry.network_cost for pair, entry in cost_entries_of(weight).items()}


def build_topology_patch(topology: NetworkTopology, weight: WeightInfo, latencies: Latencies) -> list[Operation] | None:
    """The JSON patch that writes a weight and its latencies; None if both are up to date."""
    changes = _build_weight_patch(topology, weight) + _build_latency_patch(topology, latencies)
    if not changes:
        return None
    # Replacing the resourceVersion makes the API server answer with a conflict if the object has changed since this version.
    version_check = patches.replace(patches.pointer("metadata", "resourceVersion"), topology.metadata.resource_version)
    return [version_check, *changes]


def _build_latency_patch(topology: NetworkTopology, latencies: Latencies) -> list[Operation]:
    annotations = topology.metadata.annotations
    text = encode_latencies(latencies) if latencies else ""
    if text == (annotations or {}).get(LATENCY_ANNOTATION, ""):
        return []
    path = patches.pointer("metadata", "annotations", LATENCY_ANNOTATION)
    if not text:
        return [patches.remove(path)]
    if annotations is None:
        return [patches.add(patches.pointer("metadata", "annotations"), {LATENCY_ANNOTATION: text})]
    return [patches.add(path, text)]


def _build_weight_patch(topology: NetworkTopology, weight: WeightInfo) -> list[Operation]:
    """Operations that replace the weight of the same name if it differs, or add the weight if it has entries."""
    weights = topology.spec.weights
    index, written = next(((i, w) for i, w in enumerate(weights or ()) if w.name == weight.name), (-1, None))
    if written == weight or (written is None and not any(info.origin_list for info in weight.topology_list)):
        return []
    value = _without_null(msgspec.to_builtins(weight))
    if weights is None:
        return [patches.add(patches.pointer("spec", "weights"), [value])]
    if written is not None:
        return [patches.replace(patches.pointer("spec", "weights", index), value)]
    return [patches.add(patches.pointer("spec", "weights", "-"), value)]


def _without_null(value: Any) -> Any:
    """The value without keys whose value is None, because the CRD does not allow null."""
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value] if isinstance(value, list) else value
