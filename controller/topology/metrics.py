"""Metrics of NetworkTopologies: gauges, computed from the last decision at each scrape, and a counter of writes.

Cardinality: about five series for each directed pair of zones of a NetworkTopology.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.topology.decision import TopologyDecision
from controller.topology.status import count_pairs_by_basis
from kubekit import quantity

_COST = "netaware_network_cost"
_LATENCY = "netaware_zone_latency_seconds"
_AGE = "netaware_zone_measurement_age_seconds"
_ZONE_PAIRS = "netaware_zone_pairs"
_REFUSED_KEYS = "netaware_results_refused_keys"
_CAPACITY = "netaware_bandwidth_capacity_bytes_per_second"
_ALLOCATED = "netaware_bandwidth_allocated_bytes_per_second"
_PAIR = ("origin", "destination")
_GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    _COST: ("Cost as written to NetperfCosts; level: zone, region.", ("level", *_PAIR)),
    _LATENCY: (
        "Agreed or inferred latency behind a cost, with the effect of loss; basis: measured, mirrored, stale, inferred.",
        (*_PAIR, "basis"),
    ),
    _AGE: ("Age of the measurement behind a cost.", _PAIR),
    _ZONE_PAIRS: (
        "Directed pairs of zones; basis of the cost: measured, mirrored, stale, inferred, unreachable, absent.",
        ("basis",),
    ),
    _REFUSED_KEYS: (
        "Keys in results ConfigMaps that were refused; the condition InputValid explains them.",
        ("reason",),
    ),
    _CAPACITY: ("Capacity of a path, as users' weights declare it; level: zone, region.", ("level", *_PAIR)),
    _ALLOCATED: ("minBandwidth of placed pods on a path; level: zone, region.", ("level", *_PAIR)),
}
"""Help text, and labels after ``topology``, by the name of the gauge."""


def _gauge_values(decision: TopologyDecision) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Name of a gauge, values of its labels after ``topology``, and its value."""
    for pair, entry in decision.costs.by_zone_pair.items():
        yield _COST, ("zone", *pair), entry.cost
        if entry.basis != "unreachable":
            yield _LATENCY, (*pair, entry.basis), entry.latency_us / 1e6
        if entry.basis != "inferred":
            yield _AGE, pair, entry.age_s
    for pair, cost in decision.costs.cost_by_region_pair.items():
        yield _COST, ("region", *pair), cost
    for basis, count in count_pairs_by_basis(decision.pairs_by_basis, decision.costs).items():
        yield _ZONE_PAIRS, (basis,), count
    for reason, count in decision.results.refusal_counts.items():
        yield _REFUSED_KEYS, (reason,), count
    for level, bandwidths in (("zone", decision.zone_bandwidths), ("region", decision.region_bandwidths)):
        for pair, capacity in bandwidths.capacities.items():
            yield _CAPACITY, (level, *pair), float(quantity.parse(capacity)) / 8
        for pair, allocated_bps in bandwidths.allocations_bps.items():
            yield _ALLOCATED, (level, *pair), allocated_bps / 8


class TopologyMetrics(Collector):
    """Gauges from decisions about NetworkTopologies, and a counter of writes.

    Attributes:
        decisions: ``namespace/name`` of a NetworkTopology -> last decision; empty on replicas that do not lead.
        writes: the counter; its label ``field`` is weights (latencies included) or status.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.decisions: dict[str, TopologyDecision] = {}
        self.writes = Counter(
            "netaware_topology_writes", "Writes to NetworkTopologies: weights, status.", ["field"], registry=registry
        )
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Metrics of all NetworkTopologies."""
        families = {
            name: GaugeMetricFamily(name, help_text, labels=["topology", *labels])
            for name, (help_text, labels) in _GAUGES.items()
        }
        for key, decision in tuple(self.decisions.items()):  # A copy, because metrics are collected in a thread.
            for name, labels, value in _gauge_values(decision):
                families[name].add_metric([key, *labels], value)
        yield from families.values()
