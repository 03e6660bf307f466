"""Metrics of traffic: gauges, computed at each scrape from the last comparison of AppGroups with their traffic."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.traffic.bill import TrafficBill
from controller.traffic.drift import Comparison, DriftKind
from kubekit.wire import split_key


class TrafficMetrics(Collector):
    """Gauges of traffic, its drift and its price.

    Attributes:
        result: the last comparison, and when its traffic was read (unix seconds); None before the first one, after repeated failures,
            and on replicas that do not lead.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.result: tuple[Comparison, float] | None = None
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The metric families; without samples if there is no result."""
        drift_help = "Dependencies that differ from traffic: new, gone, grown beyond ten times minBandwidth."
        group = ("namespace", "appgroup")
        drift = GaugeMetricFamily("netaware_appgroup_traffic_drift", drift_help, labels=(*group, "kind"))
        rates_help = "Bytes per second of the group's calls; crossing is true between zones, else false."
        rates = GaugeMetricFamily("netaware_appgroup_traffic_bytes_per_second", rates_help, labels=(*group, "crossing"))
        prices_help = "Price of the traffic of the group's calls in a month of 730 hours."
        price_labels = (*group, "currency")
        prices = GaugeMetricFamily("netaware_appgroup_traffic_price_per_month", prices_help, labels=price_labels)
        zone_pairs_help = "Bytes per second of requests and responses, by the zones of caller and callee."
        zones = ("client_zone", "server_zone")
        zone_pairs = GaugeMetricFamily("netaware_zone_pair_traffic_bytes_per_second", zone_pairs_help, labels=zones)
        read_at_help = "When traffic was last read from Prometheus."
        read_at = GaugeMetricFamily("netaware_traffic_read_timestamp_seconds", read_at_help, labels=())
        result = self.result  # Metrics are collected in a thread, and the next result may come meanwhile.
        if result is not None:
            comparison, read_at_s = result
            read_at.add_metric((), read_at_s)
            _add_drift(drift, comparison)
            _add_group_rates(rates, comparison.bill)
            for key, price in comparison.bill.monthly_price_by_group.items():
                if key:
                    prices.add_metric((*split_key(key), comparison.bill.currency), price)
            for pair in comparison.bill.zone_pairs:
                zone_pairs.add_metric((pair.client_zone, pair.server_zone), pair.bytes_per_s)
        yield from (drift, rates, prices, zone_pairs, read_at)


def _add_drift(family: GaugeMetricFamily, comparison: Comparison) -> None:
    """Add the number of differences of each kind, 0 included, for each group."""
    for key, drifts in comparison.drift_by_group.items():
        counts = Counter(drift.kind for drift in drifts)
        for kind in get_args(DriftKind):
            family.add_metric((*split_key(key), kind), counts[kind])


def _add_group_rates(family: GaugeMetricFamily, bill: TrafficBill) -> None:
    """Add each group's bytes per second within zones and between zones."""
    total: dict[str, float] = defaultdict(float)
    crossing: dict[str, float] = defaultdict(float)
    for dependency in bill.dependencies:
        if dependency.group:
            total[dependency.group] += dependency.bytes_per_s
            crossing[dependency.group] += dependency.crossing_bytes_per_s
    for key, bytes_per_s in total.items():
        family.add_metric((*split_key(key), "false"), bytes_per_s - crossing[key])
        family.add_metric((*split_key(key), "true"), crossing[key])
