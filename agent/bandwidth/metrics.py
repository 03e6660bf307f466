"""Metrics of limits, per pod and direction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.bandwidth.meters import MeasuredTraffic
from agent.bandwidth.state import BandwidthPlan, Key, LimitStatus

MAX_LIMITS_SHOWN = 2000
_UNKNOWN = MeasuredTraffic()
_LABELS = ("namespace", "pod", "direction")


class BandwidthMetrics:
    """A collector over the latest statuses."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._statuses: Sequence[LimitStatus] = ()
        self._unlocated, self._programs_unknown = 0, False
        self._traffic: Mapping[Key, MeasuredTraffic] = {}
        self.repairs = Counter(
            "netaware_pod_bandwidth_repairs", "Limits set or removed, by outcome.", ["outcome"], registry=registry
        )
        registry.register(self)

    def show(self, plan: BandwidthPlan, traffic: Mapping[Key, MeasuredTraffic]) -> None:
        """Set the statuses to export."""
        self._statuses, self._unlocated = plan.statuses[:MAX_LIMITS_SHOWN], len(plan.unlocated)
        self._traffic, self._programs_unknown = traffic, bool(plan.programs_unknown)

    def show_traffic(self, traffic: Mapping[Key, MeasuredTraffic]) -> None:
        """Set the measured traffic to export."""
        self._traffic = traffic

    def collect(self) -> Iterator[Metric]:
        """The families of this node."""
        verdict = GaugeMetricFamily(
            "netaware_pod_bandwidth_verdict",
            "Always 1: verdict on the pod's bandwidth annotation, and the device with the limit.",
            labels=(*_LABELS, "verdict", "device"),
        )
        wanted = _gauge("wanted_bytes_per_second", "The annotation's rate.")
        rate = _gauge("effective_rate_bytes_per_second", "Limit that the kernel enforces; 0 if all packets are lost.")
        burst = _gauge("effective_burst_bytes", "Burst that the kernel allows.")
        queue = _gauge("queue_seconds", "Longest time that a packet can wait in the limit's queue.")
        used = _gauge("used_bytes_per_second", "Traffic, mean of the last 12 seconds.")
        backlog = _gauge("backlog_bytes", "Bytes in the limit's queue.")
        dropped = _counter("dropped_packets", "Packets dropped by the limit's queue.")
        overlimits = _counter("overlimits", "Packets delayed by the limit.")
        for status in self._statuses:
            labels = (status.pod.namespace, status.pod.name, status.direction)
            verdict.add_metric((*labels, status.verdict, status.device), 1)
            traffic = self._traffic.get(status.key, _UNKNOWN)
            for family, value in (
                (wanted, None if status.wanted_bps is None else status.wanted_bps / 8),
                (rate, status.rate_bytes_per_s),
                (burst, status.burst_bytes),
                (queue, status.queue_s),
                (used, traffic.bytes_per_s),
            ):
                if value is not None and math.isfinite(value):
                    family.add_metric(labels, value)
            if traffic.bucket is not None:
                backlog.add_metric(labels, traffic.bucket.backlog_bytes)
                dropped.add_metric(labels, traffic.bucket.dropped_packets)
                overlimits.add_metric(labels, traffic.bucket.overlimits)
        yield from (verdict, wanted, rate, burst, queue, used, backlog, dropped, overlimits)
        yield GaugeMetricFamily(
            "netaware_pod_bandwidth_unlocated", "Annotated pods whose device was not found.", self._unlocated
        )
        yield GaugeMetricFamily(
            "netaware_pod_bandwidth_programs_unknown",
            "1 if tcx and netkit programs on pods' devices, which may bypass a limit, cannot be listed.",
            float(self._programs_unknown),
        )


def _counter(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"netaware_pod_bandwidth_{name}", text, labels=_LABELS)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"netaware_pod_bandwidth_{name}", text, labels=_LABELS)
