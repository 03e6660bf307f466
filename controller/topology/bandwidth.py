"""Bandwidth between zones: allocated by placed pods, and capacity.

Each placed pod of a workload asks ``minBandwidth`` of each dependency in total, spread evenly over the dependency's placed
pods, as a Service spreads its calls. The sum over all groups is computed again from the caches
instead of being updated by events, so it is right after restarts and repeated or reordered events.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from fractions import Fraction

from controller.cluster.costs import entries_of
from controller.cluster.membership import Membership
from controller.cluster.pods import GroupPod
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL, NetworkTopology
from kubekit import quantity
from kubekit.errors import QuantityError
from netperf.contract import REGION_LABEL, ZONE_LABEL
from netperf.latencies import ZonePair
from netperf.sample import Place, Sample

Quantity = str | int
PodKey = tuple[str, str, str]
"""Namespace, group, workload selector."""


def placed_by_zone(pods: Iterable[GroupPod], places: Mapping[str, Place]) -> dict[PodKey, Counter[str]]:
    """Placed pods counted by zone; pods on nodes that are gone, or that have no zone, do not count."""
    counts: dict[PodKey, Counter[str]] = defaultdict(Counter)
    for pod in pods:
        place = places.get(pod.spec.node_name)
        if place is not None and place.zone and pod.bound:
            meta = pod.metadata
            counts[meta.namespace, meta.label(APPGROUP_LABEL), meta.label(WORKLOAD_LABEL)][place.zone] += 1
    return counts


def allocated_bps(membership: Membership, placed: Mapping[PodKey, Counter[str]]) -> dict[ZonePair, int]:
    """Directed pair of zones -> bits per second that placed pods have asked of it, rounded up.

    Args:
        membership: every AppGroup, and which pods belong to it.
        placed: from `placed_by_zone`.
    """
    members: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for (namespace, name, selector), zones in placed.items():
        members[membership.group_of(namespace, name), selector].update(zones)
    # Grouped by the number of replicas, so that fractions are added once for each number.
    total: dict[ZonePair, Counter[int]] = defaultdict(Counter)
    for key in membership.groups:
        graph = membership.graph(key)
        for edge in graph.edges:
            callers, called = (members.get((key, graph.selectors[end])) for end in (edge.dependant, edge.dependency))
            if not edge.min_bandwidth_bps or not callers or not called:
                continue
            replicas = called.total()
            for origin, callers_there in callers.items():
                for destination, called_there in called.items():
                    if origin != destination:
                        total[origin, destination][replicas] += edge.min_bandwidth_bps * callers_there * called_there
    return {
        pair: math.ceil(sum((Fraction(bps, replicas) for replicas, bps in parts.items()), Fraction()))
        for pair, parts in sorted(total.items())
    }


def between_regions(by_zone: Mapping[ZonePair, int], zones: Mapping[str, str]) -> dict[ZonePair, int]:
    """Sums between regions, over their zone pairs."""
    total: dict[ZonePair, int] = defaultdict(int)
    for regions, rate_bps in _joining(by_zone, zones):
        total[regions] += rate_bps
    return dict(sorted(total.items()))


def _joining(by_zone: Mapping[ZonePair, int], zones: Mapping[str, str]) -> Iterator[tuple[ZonePair, int]]:
    """Regions that zone pairs join, each with the pair's rate."""
    for (origin, destination), rate_bps in by_zone.items():
        regions = zones.get(origin, ""), zones.get(destination, "")
        if all(regions) and regions[0] != regions[1]:
            yield regions, rate_bps


def declared_capacities(
    topology: NetworkTopology, ours: str
) -> tuple[dict[ZonePair, Quantity], dict[ZonePair, Quantity]]:
    """Capacities that the user wrote into any weight but ``ours``, by zone pair and by region pair, spelled as written.

    Invalid quantities are omitted, because the API server would refuse them.
    """
    found: dict[str, dict[ZonePair, Quantity]] = {ZONE_LABEL: {}, REGION_LABEL: {}}
    for weight in topology.spec.weights or ():
        for level, capacities in found.items() if weight.name != ours else ():
            for pair, entry in entries_of(weight, level).items():
                if entry.bandwidth_capacity is not None and _is_quantity(entry.bandwidth_capacity):
                    capacities.setdefault(pair, entry.bandwidth_capacity)
    return found[ZONE_LABEL], found[REGION_LABEL]


def _is_quantity(value: Quantity) -> bool:
    try:
        return quantity.parse(value) >= 0
    except QuantityError:
        return False


def measured_capacities(samples: Iterable[Sample]) -> dict[ZonePair, int]:
    """Directed pair of zones -> bits per second of its fastest trusted stream, to two significant figures.

    The fastest counts, because runs beside other traffic read less.
    """
    fastest: dict[ZonePair, float] = {}
    for sample in samples:
        rate_bps = sample.measurement.throughput_bps
        if sample.measurement.test == "TCP_STREAM" and sample.trusted and rate_bps and len(set(sample.zones)) == 2:
            fastest[sample.zones] = max(rate_bps, fastest.get(sample.zones, 0.0))
    return {pair: _two_figures(rate_bps) for pair, rate_bps in sorted(fastest.items())}


def region_capacities(by_zone: Mapping[ZonePair, int], zones: Mapping[str, str]) -> dict[ZonePair, int]:
    """Measured capacity between regions: that of the best zone pair, because zone pairs may share the path."""
    best: dict[ZonePair, int] = {}
    for regions, rate_bps in _joining(by_zone, zones):
        best[regions] = max(rate_bps, best.get(regions, 0))
    return best


def remembered_capacities(
    written: Mapping[ZonePair, Quantity], measured: Mapping[ZonePair, int], zones: Container[str]
) -> dict[ZonePair, int]:
    """Measured capacities; the written ones for pairs whose new nodes have run no stream yet."""
    written_bps = {
        pair: quantity.parse_int(rate)
        for pair, rate in written.items()
        if pair[0] in zones and pair[1] in zones and _is_quantity(rate)
    }
    return written_bps | dict(measured)


def spell(rate_bps: Quantity) -> Quantity:
    """The shortest exact quantity of a rate in bits per second; 100 zones have 9,900 of them."""
    if not isinstance(rate_bps, int) or rate_bps == 0:
        return rate_bps
    for suffix, factor in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if rate_bps % factor == 0:
            return f"{rate_bps // factor}{suffix}"
    return rate_bps


def held_capacities(
    written: Mapping[ZonePair, Quantity], measured: Mapping[ZonePair, int], hysteresis: float
) -> dict[ZonePair, Quantity]:
    """Measured capacities; the written value while the new one is within ``hysteresis`` (a share) of it."""
    capacities: dict[ZonePair, Quantity] = {}
    for pair, rate_bps in measured.items():
        before = written.get(pair)
        near = (
            before is not None
            and _is_quantity(before)
            and abs(quantity.parse_int(before) - rate_bps) <= hysteresis * quantity.parse_int(before)
        )
        capacities[pair] = before if before is not None and near else rate_bps
    return capacities


def _two_figures(rate_bps: float) -> int:
    whole = round(rate_bps)
    return round(whole, 2 - len(str(whole)))
