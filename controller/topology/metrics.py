"""Metrics of NetworkTopologies, computed from the last decision at each scrape.

Cardinality: about five series for each directed pair of zones of a NetworkTopology.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.topology.bandwidth import Quantity
from controller.topology.decision import TopologyDecision
from controller.topology.status import count_pairs_by_basis
from kubekit import quantity
from netperf.latencies import ZonePair

LabeledValues = Iterator[tuple[tuple[str, ...], float]]
"""Values of the labels after ``topology``, and the value of the metric."""


def _cost_values(decision: TopologyDecision) -> LabeledValues:
    yield from ((("zone", *pair), entry.cost) for pair, entry in decision.costs.by_zone_pair.items())
    yield from ((("region", *pair), cost) for pair, cost in decision.costs.cost_by_region_pair.items())


def _latency_values(decision: TopologyDecision) -> LabeledValues:
    reached = ((pair, entry) for pair, entry in decision.costs.by_zone_pair.items() if entry.basis != "unreachable")
    return (((*pair, entry.basis), entry.latency_us / 1e6) for pair, entry in reached)


def _age_values(decision: TopologyDecision) -> LabeledValues:
    return ((pair, entry.age_s) for pair, entry in decision.costs.by_zone_pair.items() if entry.basis != "inferred")


def _pair_counts(decision: TopologyDecision) -> LabeledValues:
    return (((basis,), count) for basis, count in count_pairs_by_basis(decision.pairs_by_basis, decision.costs).items())


def _refusal_counts(decision: TopologyDecision) -> LabeledValues:
    return (((reason,), count) for reason, count in decision.results.refusal_counts.items())


def _capacity_values(decision: TopologyDecision) -> LabeledValues:
    yield from _to_bytes_per_s("zone", decision.bandwidths.zone_capacities)
    yield from _to_bytes_per_s("region", decision.bandwidths.region_capacities)


def _allocation_values(decision: TopologyDecision) -> LabeledValues:
    yield from _to_bytes_per_s("zone", decision.bandwidths.zone_allocations_bps)
    yield from _to_bytes_per_s("region", decision.bandwidths.region_allocations_bps)


def _to_bytes_per_s(level: str, rates_bps: Mapping[ZonePair, Quantity]) -> LabeledValues:
    """Convert bits per second to bytes per second, the base unit of Prometheus."""
    return (((level, *pair), float(quantity.parse(value)) / 8) for pair, value in rates_bps.items())


_PAIR_LABELS = ("origin", "destination")
_FAMILIES: tuple[tuple[str, str, tuple[str, ...], Callable[[TopologyDecision], LabeledValues]], ...] = (
    (
        "netaware_network_cost",
        "Cost as written to NetperfCosts; level: zone, region.",
        ("level", *_PAIR_LABELS),
        _cost_values,
    ),
    (
        "netaware_zone_latency_seconds",
        "Smoothed latency behind a cost, with the effect of loss; basis as for netaware_zone_pairs.",
        (*_PAIR_LABELS, "basis"),
        _latency_values,
    ),
    ("netaware_zone_measurement_age_seconds", "Age of the measurement behind a cost.", _PAIR_LABELS, _age_values),
    (
        "netaware_zone_pairs",
        "Directed pairs of zones; basis of the cost: measured, mirrored, stale, inferred, unreachable, absent.",
        ("basis",),
        _pair_counts,
    ),
    (
        "netaware_results_refused_keys",
        "Keys in results ConfigMaps that were refused; the condition InputValid explains them.",
        ("reason",),
        _refusal_counts,
    ),
    (
        "netaware_bandwidth_capacity_bytes_per_second",
        "Capacity of a path, from users' weights; level: zone, region.",
        ("level", *_PAIR_LABELS),
        _capacity_values,
    ),
    (
        "netaware_bandwidth_allocated_bytes_per_second",
        "minBandwidth of placed pods on a path; level: zone, region.",
        ("level", *_PAIR_LABELS),
        _allocation_values,
    ),
)
"""Name, help text, labels after ``topology``, and values of each gauge."""


class TopologyMetrics(Collector):
    """Gauges from decisions about NetworkTopologies, and a counter of writes.

    Attributes:
        decisions: ``namespace/name`` of a NetworkTopology -> last decision; empty on replicas that do not lead.
        writes: the counter; its label ``field`` is weights or status.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.decisions: dict[str, TopologyDecision] = {}
        self.writes = Counter(
            "netaware_topology_writes", "Writes to NetworkTopologies: weights, status.", ["field"], registry=registry
        )
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Metrics of all NetworkTopologies."""
        decisions = tuple(self.decisions.items())  # A copy, because metrics are collected in a thread.
        for name, help_text, label_names, values_of in _FAMILIES:
            family = GaugeMetricFamily(name, help_text, labels=["topology", *label_names])
            for key, decision in decisions:
                for labels, value in values_of(decision):
                    family.add_metric([key, *labels], value)
            yield family
