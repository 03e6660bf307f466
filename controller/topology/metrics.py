"""Metrics of costs, computed from the last decision at each scrape.

Cardinality: a handful of series per topology, eight per directed pair of zones, and one for each node that others contradict (50 at most).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.cluster.zones import ZoneMap
from controller.topology.bandwidth import Quantity
from controller.topology.status import PairsByBasis, count_bases
from controller.topology.weights import Bandwidths
from kubekit import quantity
from netperf.costs import ZoneCosts
from netperf.latencies import ZonePair
from netperf.results import Results

_PAIR = ["topology", "level", "origin", "destination"]
_ZONES = ["topology", "origin", "destination"]
SHOWN_OUTLIERS = 50


class MetricsView(msgspec.Struct, frozen=True):
    """What there is to show of one topology."""

    table: ZoneCosts
    counts: PairsByBasis
    bandwidths: Bandwidths
    results: Results
    zone_map: ZoneMap


class TopologyMetrics(Collector):
    """Gauges of all topologies, and counters of what was done.

    Attributes:
        writes: writes by what was written (``weights``, ``status``).
        conflicts: writes that met a newer version of the object.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._views: dict[str, MetricsView] = {}
        self.writes = Counter("netaware_topology_writes", "Writes to NetworkTopologies.", ["what"], registry=registry)
        self.conflicts = Counter(
            "netaware_topology_conflicts", "Writes that conflicted with a change of the object.", registry=registry
        )
        registry.register(self)

    def show(self, key: str, view: MetricsView) -> None:
        """Show this from now on for ``namespace/name``."""
        self._views[key] = view

    def drop(self, key: str) -> None:
        """Show nothing for it any more."""
        self._views.pop(key, None)

    def clear(self) -> None:
        """Show nothing: this replica does not lead."""
        self._views.clear()

    def _shown(self) -> tuple[tuple[str, MetricsView], ...]:
        """A copy, since metrics are collected in a thread; views do not change."""
        return tuple(self._views.items())

    def describe(self) -> Iterator[Metric]:
        """No names in advance: registering must not collect."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """One family after the other, over all topologies."""
        yield self._costs()
        yield self._latencies()
        yield self._errors()
        yield self._outliers()
        yield self._ages()
        yield self._pairs()
        yield self._refused()
        yield self._nodes()
        yield from self._bandwidths()

    def _costs(self) -> Metric:
        family = GaugeMetricFamily("netaware_network_cost", "Cost as written to NetperfCosts.", labels=_PAIR)
        for key, view in self._shown():
            for (origin, destination), entry in view.table.zones.items():
                family.add_metric([key, "zone", origin, destination], entry.cost)
            for (origin, destination), cost in view.table.regions.items():
                family.add_metric([key, "region", origin, destination], cost)
        return family

    def _latencies(self) -> Metric:
        family = GaugeMetricFamily(
            "netaware_zone_latency_seconds",
            "Latency that was priced, smoothed, penalties included.",
            labels=[*_ZONES, "basis"],
        )
        for key, view in self._shown():
            for (origin, destination), entry in view.table.zones.items():
                if entry.basis != "unreachable":
                    family.add_metric([key, origin, destination, entry.basis], entry.latency_us / 1e6)
        return family

    def _errors(self) -> Metric:
        family = GaugeMetricFamily(
            "netaware_zone_latency_error_seconds", "Error bar of the priced latency.", labels=_ZONES
        )
        for key, view in self._shown():
            for (origin, destination), entry in view.table.zones.items():
                if entry.basis != "unreachable":
                    family.add_metric([key, origin, destination], entry.error_us / 1e6)
        return family

    def _outliers(self) -> Metric:
        family = GaugeMetricFamily(
            "netaware_outlier_node_offset_seconds",
            "Error of the readings of an outlier node.",
            labels=["topology", "node"],
        )
        for key, view in self._shown():
            for node, off_us in list(view.table.outliers_us.items())[:SHOWN_OUTLIERS]:
                family.add_metric([key, node], off_us / 1e6)
        return family

    def _ages(self) -> Metric:
        family = GaugeMetricFamily(
            "netaware_zone_measurement_age_seconds", "Age of the measurement behind a cost.", labels=_ZONES
        )
        for key, view in self._shown():
            for (origin, destination), entry in view.table.zones.items():
                if entry.basis != "inferred":
                    family.add_metric([key, origin, destination], entry.age_s)
        return family

    def _pairs(self) -> Metric:
        family = GaugeMetricFamily(
            "netaware_zone_pairs", "Directed pairs of zones, by the basis of their cost.", labels=["topology", "basis"]
        )
        for key, view in self._shown():
            for basis, count in count_bases(view.counts, view.table).items():
                family.add_metric([key, basis], count)
        return family

    def _refused(self) -> Metric:
        family = GaugeMetricFamily(
            "netaware_results_refused_keys", "Keys of results that could not be used.", labels=["topology", "reason"]
        )
        for key, view in self._shown():
            for reason, count in view.results.refused.items():
                family.add_metric([key, reason], count)
        return family

    def _nodes(self) -> Metric:
        family = GaugeMetricFamily("netaware_topology_nodes", "Nodes of the cluster.", labels=["topology", "has_zone"])
        for key, view in self._shown():
            unzoned = len(view.zone_map.unzoned)
            family.add_metric([key, "true"], len(view.zone_map.places) - unzoned)
            family.add_metric([key, "false"], unzoned)
        return family

    def _bandwidths(self) -> Iterator[Metric]:
        capacity = GaugeMetricFamily(
            "netaware_bandwidth_capacity_bytes_per_second", "Capacity of a path, if known.", labels=_PAIR
        )
        allocated = GaugeMetricFamily(
            "netaware_bandwidth_allocated_bytes_per_second", "minBandwidth of placed pods on a path.", labels=_PAIR
        )
        for key, view in self._shown():
            levels = (
                ("zone", view.bandwidths.zone_capacity, view.bandwidths.zone_allocated),
                ("region", view.bandwidths.region_capacity, view.bandwidths.region_allocated),
            )
            for level, capacities, allocations in levels:
                _add(capacity, key, level, capacities)
                _add(allocated, key, level, allocations)
        yield capacity
        yield allocated


def _add(family: GaugeMetricFamily, key: str, level: str, values: Mapping[ZonePair, Quantity]) -> None:
    """Objects have bits per second, as users write them; metrics have bytes, Prometheus' base unit."""
    for (origin, destination), value in values.items():
        family.add_metric([key, level, origin, destination], float(quantity.parse(value)) / 8)
