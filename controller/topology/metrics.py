"""Metrics of NetworkTopologies: gauges, computed from the last decision at each scrape, and a counter of writes.

Cardinality: about five series for each directed pair of zones of a NetworkTopology, and of regions.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.topology.decision import TopologyDecision
from controller.topology.status import count_pairs_by_basis
from kubekit import quantity


def _gauge(name: str, help_text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, labels=("topology", *labels))


class _Gauges:
    """The gauges of one scrape, for all NetworkTopologies."""

    def __init__(self) -> None:
        pair, path = ("origin", "destination"), ("level", "origin", "destination")
        self.cost = _gauge("netaware_network_cost", "Cost as written to NetperfCosts; level: zone, region.", *path)
        bases = "measured, mirrored, stale, inferred"
        latency = f"Agreed or inferred latency behind a cost, with the effect of loss; basis: {bases}."
        self.latency = _gauge("netaware_zone_latency_seconds", latency, *pair, "basis")
        self.age = _gauge("netaware_zone_measurement_age_seconds", "Age of the measurement behind a cost.", *pair)
        zone_pairs = f"Directed pairs of zones; basis of the cost: {bases}, unreachable, absent."
        self.zone_pairs = _gauge("netaware_zone_pairs", zone_pairs, "basis")
        refused_keys = "Keys in results ConfigMaps that were refused; the condition InputValid explains them."
        self.refused_keys = _gauge("netaware_results_refused_keys", refused_keys, "reason")
        capacity = "Capacity of a path, as users' weights declare it; level: zone, region."
        self.capacity = _gauge("netaware_bandwidth_capacity_bytes_per_second", capacity, *path)
        allocated = "minBandwidth of placed pods on a path; level: zone, region."
        self.allocated = _gauge("netaware_bandwidth_allocated_bytes_per_second", allocated, *path)

    def add(self, key: str, decision: TopologyDecision) -> None:
        """Add the series of a NetworkTopology."""
        for pair, entry in decision.costs.by_zone_pair.items():
            self.cost.add_metric((key, "zone", *pair), entry.cost)
            if entry.basis != "unreachable":
                self.latency.add_metric((key, *pair, entry.basis), entry.latency_us / 1e6)
            # No measurement is behind a cost of these, so a pair that was never measured must not have the age 0.
            if entry.basis not in {"unreachable", "inferred"}:
                self.age.add_metric((key, *pair), entry.age_s)
        for pair, cost in decision.costs.cost_by_region_pair.items():
            self.cost.add_metric((key, "region", *pair), cost)
        for basis, count in count_pairs_by_basis(decision.pairs_by_basis, decision.costs).items():
            self.zone_pairs.add_metric((key, basis), count)
        for reason, count in decision.results.refusal_counts.items():
            self.refused_keys.add_metric((key, reason), count)
        for level, bandwidths in (("zone", decision.zone_bandwidths), ("region", decision.region_bandwidths)):
            for pair, capacity in bandwidths.capacities.items():
                self.capacity.add_metric((key, level, *pair), float(quantity.parse(capacity)) / 8)
            for pair, allocated_bps in bandwidths.allocations_bps.items():
                self.allocated.add_metric((key, level, *pair), allocated_bps / 8)


class TopologyMetrics(Collector):
    """Gauges from decisions about NetworkTopologies, and a counter of writes; label ``field``: weights (with latencies), status.

    ``decisions`` has the last decision by ``namespace/name`` of a NetworkTopology; it is empty on replicas that do not lead.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.decisions: dict[str, TopologyDecision] = {}
        self.writes = Counter(
            "netaware_topology_writes", "Writes to NetworkTopologies: weights, status.", ["field"], registry=registry
        )
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Metrics of all NetworkTopologies."""
        gauges = _Gauges()
        for key, decision in tuple(self.decisions.items()):  # A copy, because metrics are collected in a thread.
            gauges.add(key, decision)
        yield from vars(gauges).values()
