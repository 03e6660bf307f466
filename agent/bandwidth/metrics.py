"""Metrics of bandwidth limits, by pod and direction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from agent.bandwidth.meters import MEAN_WINDOW_S, TrafficMeter
from agent.bandwidth.state import LimitKey, LimitStatus

_LABELS = ("namespace", "pod", "direction")


class BandwidthMetrics:
    """A collector over the latest statuses and measured traffic.

    Attributes:
        statuses, meter_by_key: the latest statuses and measured traffic; set by `LimitReporter`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.statuses: Sequence[LimitStatus] = ()
        self.meter_by_key: Mapping[LimitKey, TrafficMeter] = {}
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families of this node's limits."""
        verdict = GaugeMetricFamily(
            "netaware_pod_bandwidth_verdict",
            "Always 1; the labels are the verdict on the pod's limit (docs/bandwidth.md), and the device with the limit.",
            labels=(*_LABELS, "verdict", "device"),
        )
        rate = _make_gauge(
            "netaware_pod_bandwidth_effective_rate_bytes_per_second",
            "Limit that the kernel enforces; 0 if all packets are lost.",
        )
        queue = _make_gauge(
            "netaware_pod_bandwidth_queue_seconds", "Longest time that a packet can wait in the limit's queue."
        )
        used = _make_gauge(
            "netaware_pod_bandwidth_used_bytes_per_second", f"Traffic, mean of the last {MEAN_WINDOW_S:g} seconds."
        )
        for status in self.statuses:
            labels = (status.pod.namespace, status.pod.name, status.direction)
            verdict.add_metric((*labels, status.verdict, status.device_name), 1)
            meter = self.meter_by_key.get(status.key)
            for family, value in (
                (rate, status.rate_bytes_per_s),
                (queue, status.queue_s),
                (used, meter.bytes_per_s if meter is not None else None),
            ):
                if value is not None and math.isfinite(value):
                    family.add_metric(labels, value)
        yield from (verdict, rate, queue, used)


def _make_gauge(name: str, help_text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, labels=_LABELS)
