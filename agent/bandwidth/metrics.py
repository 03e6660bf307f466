"""Metrics of limits, per pod and direction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from agent.bandwidth.meters import MeasuredTraffic
from agent.bandwidth.state import Key, LimitStatus

MAX_LIMITS_SHOWN = 2000
_UNKNOWN = MeasuredTraffic()
_LABELS = ("namespace", "pod", "direction")


class BandwidthMetrics:
    """A collector over the latest statuses."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._statuses: Sequence[LimitStatus] = ()
        self._traffic: Mapping[Key, MeasuredTraffic] = {}
        registry.register(self)

    def set_statuses(self, statuses: Sequence[LimitStatus], traffic: Mapping[Key, MeasuredTraffic]) -> None:
        """Set the statuses to export."""
        self._statuses = statuses[:MAX_LIMITS_SHOWN]
        self.set_traffic(traffic)

    def set_traffic(self, traffic: Mapping[Key, MeasuredTraffic]) -> None:
        """Set the measured traffic to export."""
        self._traffic = traffic

    def collect(self) -> Iterator[Metric]:
        """The families of this node."""
        verdict = GaugeMetricFamily(
            "netaware_pod_bandwidth_verdict",
            "Always 1: verdict on the pod's bandwidth annotation, and the device with the limit.",
            labels=(*_LABELS, "verdict", "device"),
        )
        rate = _gauge("effective_rate_bytes_per_second", "Limit that the kernel enforces; 0 if all packets are lost.")
        queue = _gauge("queue_seconds", "Longest time that a packet can wait in the limit's queue.")
        used = _gauge("used_bytes_per_second", "Traffic, mean of the last 12 seconds.")
        for status in self._statuses:
            labels = (status.pod.namespace, status.pod.name, status.direction)
            verdict.add_metric((*labels, status.verdict, status.device), 1)
            used_bytes_per_s = self._traffic.get(status.key, _UNKNOWN).bytes_per_s
            for family, value in (
                (rate, status.rate_bytes_per_s),
                (queue, status.queue_s),
                (used, used_bytes_per_s),
            ):
                if value is not None and math.isfinite(value):
                    family.add_metric(labels, value)
        yield from (verdict, rate, queue, used)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"netaware_pod_bandwidth_{name}", text, labels=_LABELS)
