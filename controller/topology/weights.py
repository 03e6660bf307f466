"""Builds the weight NetperfCosts from a cost table, and its JSON patch.

Under upstream's CRD `spec.weights` is an atomic list, so a server-side apply would delete the user's weights. A JSON patch replaces
one weight only. It contains the resourceVersion, so it fails if the object has changed since it was read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import msgspec

from controller.cluster.costs import cost_entries_of
from controller.cluster.crds import NETPERF_COSTS, CostInfo, NetworkTopology, OriginInfo, TopologyInfo, WeightInfo
from controller.topology.bandwidth import Quantity
from kubekit import patches
from kubekit.patches import Operation
from netperf.contract import REGION_LABEL, ZONE_LABEL
from netperf.costs import ZoneCosts
from netperf.latencies import LATENCY_ANNOTATION, Latencies, ZonePair, encode_latencies


class Bandwidths(msgspec.Struct, frozen=True):
    """Capacity as a quantity and allocation in bits per second, by directed pair, between zones and between regions."""

    zone_capacity: Mapping[ZonePair, Quantity] = {}
    region_capacity: Mapping[ZonePair, Quantity] = {}
    zone_allocated: Mapping[ZonePair, int] = {}
    region_allocated: Mapping[ZonePair, int] = {}


def build_weight(table: ZoneCosts, bandwidths: Bandwidths) -> WeightInfo:
    """The weight NetperfCosts, sorted bytewise for upstream's binary search.

    Pairs without a cost have no entry, because schedulers have a default for unknown costs and would read 0 as the best cost.
    """
    zone_costs = {pair: entry.cost for pair, entry in table.by_zone_pair.items()}
    return WeightInfo(
        name=NETPERF_COSTS,
        topology_list=[
            _level(REGION_LABEL, table.cost_by_region_pair, bandwidths.region_capacity, bandwidths.region_allocated),
            _level(ZONE_LABEL, zone_costs, bandwidths.zone_capacity, bandwidths.zone_allocated),
        ],
    )


def _level(
    key: str, costs: Mapping[ZonePair, int], capacity: Mapping[ZonePair, Quantity], allocated: Mapping[ZonePair, int]
) -> TopologyInfo:
    origins: dict[str, list[CostInfo]] = defaultdict(list)
    # Python compares code points, which is the bytewise order of UTF-8.
    for origin, destination in sorted(costs):
        pair = (origin, destination)
        origins[origin].append(
            CostInfo(
                destination=destination,
                network_cost=costs[pair],
                bandwidth_capacity=capacity.get(pair),
                # Omitted if 0, as for most pairs of a large cluster, to keep the object small.
                bandwidth_allocated=str(allocated[pair]) if allocated.get(pair) else None,
            )
        )
    return TopologyInfo(topology_key=key, origin_list=[OriginInfo(o, entries) for o, entries in origins.items()])


def zone_costs_in(weight: WeightInfo | None) -> dict[ZonePair, int]:
    """Costs between zones in a weight, by directed pair; empty without a weight."""
    return {pair: entry.network_cost for pair, entry in cost_entries_of(weight).items()}


def patch_topology(topology: NetworkTopology, weight: WeightInfo, latencies: Latencies) -> list[Operation] | None:
    """JSON patch that writes the weight and its latencies; None if both are up to date."""
    changes = _change_weight(topology, weight) + _change_latencies(topology, latencies)
    if not changes:
        return None
    # Writing the version that was read makes the API server reject the patch with a conflict if there is a newer one.
    version_check = patches.replace(patches.pointer("metadata", "resourceVersion"), topology.metadata.resource_version)
    return [version_check, *changes]


def _change_latencies(topology: NetworkTopology, latencies: Latencies) -> list[Operation]:
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


def _change_weight(topology: NetworkTopology, weight: WeightInfo) -> list[Operation]:
    """Replace the weight of the same name if it differs, or add it if it has entries."""
    weights = topology.spec.weights
    names = [w.name for w in weights or ()]
    if weight.name in names:
        if (weights or [])[names.index(weight.name)] == weight:
            return []
    elif not any(level.origin_list for level in weight.topology_list):
        return []
    value = _without_null(msgspec.to_builtins(weight))
    if weights is None:
        return [patches.add(patches.pointer("spec", "weights"), [value])]
    if weight.name in names:
        return [patches.replace(patches.pointer("spec", "weights", names.index(weight.name)), value)]
    return [patches.add(patches.pointer("spec", "weights", "-"), value)]


def _without_null(value: Any) -> Any:
    """Plain data without None, because the CRD does not allow null."""
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value] if isinstance(value, list) else value
