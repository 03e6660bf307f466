"""Bandwidth between zones: allocations to placed pods, and the capacities that users wrote.

Each placed pod needs ``minBandwidth`` for each dependency, spread evenly over the dependency's placed pods. Routing by Services is
ignored: it can only lower the rates between zones. The sum over all groups is computed from the stores, not from events.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import product

from controller.cluster.costs import cost_entries_of
from controller.cluster.crds import NETPERF_COSTS, NetworkTopology
from controller.cluster.membership import Membership
from controller.cluster.pods import Pod
from kubekit import quantity
from kubekit.errors import QuantityError
from netperf.latencies import ZonePair
from netperf.sample import NodeLocation

QuantityValue = str | int
"""A quantity as JSON has it."""


def compute_allocations(
    membership: Membership, pods: Iterable[Pod], locations: Mapping[str, NodeLocation]
) -> dict[ZonePair, int]:
    """Bits per second that placed pods need, rounded up, by directed pair of different zones.

    Args:
        membership: AppGroups and their dependencies, and the group of each pod.
        pods: pods of AppGroups; those on deleted nodes, or on nodes without a zone, do not count.
        locations: node name -> location.
    """
    zone_counts_by_workload: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)  # Keys: group, workload.
    for pod in pods:
        location = locations.get(pod.spec.node_name)
        if location is not None and location.zone and pod.is_bound:
            group = membership.group_key_of(pod.metadata.namespace, pod.group)
            zone_counts_by_workload[group, pod.workload][location.zone] += 1
    # Sums that are to be divided by the callee's number of replicas, by that number, so that few fractions are added.
    bps_by_replicas_by_pair: dict[ZonePair, Counter[int]] = defaultdict(Counter)
    for key in membership.groups:
        graph = membership.graph(key)
        for edge in graph.edges:
            workloads = (graph.selectors[edge.caller], graph.selectors[edge.callee])
            callers, callees = (zone_counts_by_workload.get((key, workload)) for workload in workloads)
            if not edge.min_bandwidth_bps or not callers or not callees:
                continue
            for (origin, caller_count), (destination, callee_count) in product(callers.items(), callees.items()):
                if origin != destination:
                    bps = edge.min_bandwidth_bps * caller_count * callee_count
                    bps_by_replicas_by_pair[origin, destination][callees.total()] += bps
    return {
        pair: math.ceil(sum((Fraction(bps, replicas) for replicas, bps in bps_by_replicas.items()), Fraction()))
        for pair, bps_by_replicas in sorted(bps_by_replicas_by_pair.items())
    }


def sum_by_region_pair(
    bps_by_zone_pair: Mapping[ZonePair, int], region_by_zone: Mapping[str, str]
) -> dict[tuple[str, str], int]:
    """Sums over the zone pairs of each directed pair of different regions; pairs with a zone without a region do not count."""
    totals: dict[tuple[str, str], int] = defaultdict(int)
    for (origin, destination), rate_bps in bps_by_zone_pair.items():
        regions = region_by_zone.get(origin, ""), region_by_zone.get(destination, "")
        if all(regions) and regions[0] != regions[1]:
            totals[regions] += rate_bps
    return dict(sorted(totals.items()))


def read_user_capacities(topology: NetworkTopology, topology_key: str) -> dict[ZonePair, QuantityValue]:
    """Capacities by directed pair of zones (or of regions, by ``topology_key``), as users wrote them into weights other than NetperfCosts.

    The first capacity of a pair counts. Invalid quantities are omitted, because the API server would reject them in NetperfCosts.
    """
    capacities: dict[ZonePair, QuantityValue] = {}
    for weight in topology.spec.weights or ():
        if weight.name == NETPERF_COSTS:
            continue
        for pair, entry in cost_entries_of(weight, topology_key).items():
            if entry.bandwidth_capacity is not None and _is_quantity(entry.bandwidth_capacity):
                capacities.setdefault(pair, entry.bandwidth_capacity)
    return capacities


def _is_quantity(value: QuantityValue) -> bool:
    try:
        return quantity.parse(value) >= 0
    except QuantityError:
        return False
