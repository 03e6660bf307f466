"""Bandwidth between zones: allocated by placed pods, and the capacities that users wrote.

Each placed pod of a workload asks ``minBandwidth`` of each dependency in total, spread evenly over the dependency's placed
pods, as a Service spreads its calls. The sum over all groups is computed again from the caches
instead of being updated by events, so it is right after restarts and repeated or reordered events.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction

from controller.cluster.costs import entries_of
from controller.cluster.membership import Membership
from controller.cluster.pods import GroupPod
from controller.cluster.resources import NetworkTopology
from kubekit import quantity
from kubekit.errors import QuantityError
from netperf.contract import REGION_LABEL, ZONE_LABEL
from netperf.latencies import ZonePair
from netperf.sample import Place

Quantity = str | int


def allocated_bps(membership: Membership, pods: Iterable[GroupPod], places: Mapping[str, Place]) -> dict[ZonePair, int]:
    """Directed pair of zones -> bits per second that placed pods have asked of it, rounded up.

    Args:
        membership: every AppGroup, and which pods belong to it.
        pods: of AppGroups; those on nodes that are gone, or that have no zone, do not count.
        places: node name -> place.
    """
    members: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for pod in pods:
        place = places.get(pod.spec.node_name)
        if place is not None and place.zone and pod.is_bound:
            members[membership.group_of(pod.metadata.namespace, pod.group), pod.workload][place.zone] += 1
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
    for (origin, destination), rate_bps in by_zone.items():
        regions = zones.get(origin, ""), zones.get(destination, "")
        if all(regions) and regions[0] != regions[1]:
            total[regions] += rate_bps
    return dict(sorted(total.items()))


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
