"""Compares traffic with limits: counters in, rates and excesses out. Pure.

A configured limit may have no effect: its burst wrapped, a program redirects around the bucket, or it is on another device. So
traffic is measured by the counters of the pod's own device.

Ingress: the bytes that the device received. Egress: the bytes that left the ifb's token bucket, plus the bytes that the pod sent and
no filter redirected to the ifb. If there is no bucket: all bytes that the pod sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from agent.bandwidth.state import CounterSource, Key, LimitStatus
from agent.bandwidth.tbf import ETHERNET_BYTES

SLACK_RATIO = 1.05
"""Tolerance of rates, for timers and headers."""
SLACK_S = 0.25
SLACK_BYTES = 131_072
"""Tolerance of bursts: a quarter of a second at the limit's rate, at least two segments of 64 KiB."""
HOLD_S = 60.0
"""How long a limit counts as exceeded after the last excess."""
MEAN_S = 12.0
"""Rates are means over at least this long."""
_BUSY_RATIO = 0.9


class DeviceCount(NamedTuple):
    """Counters of a pod's own device."""

    received_bytes: int
    sent_bytes: int
    sent_packets: int


class KernelCount(NamedTuple):
    """Bytes that buckets sent, and that filters redirected, without Ethernet headers; both by device."""

    bucket_bytes: Mapping[int, int]
    redirected_bytes: Mapping[int, int]


class MeasuredTraffic(msgspec.Struct):
    """Measured traffic of one direction of one pod.

    Attributes:
        bytes_per_s: measured rate; None before two readings.
        excess: description of the latest excess; empty if it is older than `HOLD_S`.
    """

    bytes_per_s: float | None = None
    excess: str = ""


class _Meter(msgspec.Struct):
    """One direction of one pod between readings.

    Attributes:
        wanted_bytes_per_s: the annotation's limit.
        counted_at_s: time of the latest reading.
        device: the latest counters of the pod's own device.
        counter_source: where they were read.
        bucket_bytes, redirected_bytes: the latest of bucket and filter; None if they were not read.
        passed_bytes: bytes passed since the start.
        level_bytes: level of a leaky bucket that traffic fills and the limit's rate drains.
        mean_start: an earlier time and ``passed_bytes``, for the mean.
        exceeded_at_s: time of the latest excess.
    """

    wanted_bytes_per_s: float
    counted_at_s: float
    device: DeviceCount
    counter_source: CounterSource
    bucket_bytes: int | None = None
    redirected_bytes: int | None = None
    level_bytes: float = 0.0
    passed_bytes: int = 0
    mean_start: tuple[float, int] = (0.0, 0)
    exceeded_at_s: float | None = None


class TrafficMeters:
    """Measured traffic of the limited pods of a node.

    Attributes:
        by_limit: by pod and direction.
        current_excesses: descriptions of current excesses, by pod and direction.
    """

    def __init__(self) -> None:
        self._meters: dict[Key, _Meter] = {}
        self.by_limit: dict[Key, MeasuredTraffic] = {}
        self.current_excesses: dict[Key, str] = {}

    def busy_devices(
        self, statuses: Sequence[LimitStatus], devices: Mapping[int, DeviceCount], now_s: float
    ) -> set[int]:
        """Devices of pods that sent so much that counters of bucket and filter are needed."""
        busy: set[int] = set()
        for status in statuses:
            meter, source = self._meters.get(status.key), status.counter_source
            if meter is None or source is None or source.bucket is None or status.direction != "egress":
                continue
            counters = devices.get(source.pid)
            if counters is not None and _sent_much(meter, counters, now_s):
                busy.add(source.device)
        return busy

    def add_readings(
        self,
        statuses: Sequence[LimitStatus],
        devices: Mapping[int, DeviceCount],
        kernel: KernelCount | None,
        now_s: float,
        devices_reread: Mapping[int, DeviceCount] | None = None,
    ) -> None:
        """Add readings.

        Args:
            statuses: the limits to measure; others are forgotten.
            devices: counters of the pods' own devices, by process.
            kernel: counters of buckets and filters; None if they were not read this time.
            now_s: monotonic time.
            devices_reread: the devices' counters read again after the kernel's, so that traffic in between does not count as excess.
        """
        devices_reread = devices_reread or {}
        meters: dict[Key, _Meter] = {}
        by_limit: dict[Key, MeasuredTraffic] = {}
        for status in statuses:
            counter_source, wanted_bps = status.counter_source, status.wanted_bps
            counters = devices.get(counter_source.pid) if counter_source is not None else None
            if counter_source is None or counters is None or wanted_bps is None:
                continue
            key = status.key
            meter = self._meters.get(key)
            traffic = self.by_limit.get(key, MeasuredTraffic())
            if meter is None or (meter.counter_source, meter.wanted_bytes_per_s) != (counter_source, wanted_bps / 8):
                begun = _Meter(wanted_bps / 8, now_s, counters, counter_source, mean_start=(now_s, 0))
                # A repaired limit or another annotation; an earlier excess stays for a while.
                begun.exceeded_at_s = meter.exceeded_at_s if meter is not None else None
                meters[key], by_limit[key] = begun, traffic
                continue
            meters[key], by_limit[key] = meter, traffic
            passed = _passed(meter, status, counters, kernel, now_s)
            if passed is not None:
                _update_rate_and_excess(meter, traffic, passed, status, now_s)
            meter.counted_at_s, meter.device = now_s, devices_reread.get(counter_source.pid, counters)
            meter.bucket_bytes, meter.redirected_bytes = _kernel_counts(kernel, counter_source)
            if meter.exceeded_at_s is not None and now_s - meter.exceeded_at_s > HOLD_S:
                traffic.excess, meter.exceeded_at_s = "", None
        self._meters, self.by_limit = meters, by_limit
        self.current_excesses = {key: traffic.excess for key, traffic in by_limit.items() if traffic.excess}

    def excess_of(self, status: LimitStatus) -> str:
        """Description of the limit's current excess; empty if it is kept."""
        return self.current_excesses.get(status.key, "")


def _sent_much(meter: _Meter, counters: DeviceCount, now_s: float) -> bool:
    """Whether a pod sent about as much as its limit allows, so that it may have exceeded it."""
    allowed = meter.wanted_bytes_per_s * (now_s - meter.counted_at_s)
    return counters.sent_bytes - meter.device.sent_bytes > _BUSY_RATIO * allowed


def _passed(
    meter: _Meter, status: LimitStatus, counters: DeviceCount, kernel: KernelCount | None, now_s: float
) -> int | None:
    """Bytes passed since the previous reading; None if this reading does not suffice."""
    if status.direction == "ingress":
        return max(0, counters.received_bytes - meter.device.received_bytes)
    sent = max(0, counters.sent_bytes - meter.device.sent_bytes)
    counter_source = status.counter_source
    if counter_source is None or counter_source.bucket is None or not _sent_much(meter, counters, now_s):
        return sent
    through_bucket, redirected = _kernel_counts(kernel, counter_source)
    if through_bucket is None or redirected is None or meter.bucket_bytes is None or meter.redirected_bytes is None:
        return None
    # Filters count packets without their Ethernet header, one for each that the device sent.
    sent -= ETHERNET_BYTES * max(0, counters.sent_packets - meter.device.sent_packets)
    not_redirected = sent - max(0, redirected - meter.redirected_bytes)
    return max(0, through_bucket - meter.bucket_bytes) + max(0, not_redirected)


def _kernel_counts(kernel: KernelCount | None, source: CounterSource) -> tuple[int | None, int | None]:
    """Bytes of a limit's bucket and of the filter that redirects to it; None for each that was not read."""
    if kernel is None or source.bucket is None:
        return None, None
    return kernel.bucket_bytes.get(source.bucket), kernel.redirected_bytes.get(source.device)


def _update_rate_and_excess(
    meter: _Meter, traffic: MeasuredTraffic, passed: int, status: LimitStatus, now_s: float
) -> None:
    """Add the bytes that passed since the previous reading to the mean rate and to the leaky bucket, which overflows on an excess."""
    seconds = now_s - meter.counted_at_s
    if seconds <= 0:
        return
    wanted = meter.wanted_bytes_per_s
    meter.passed_bytes += passed
    if now_s - meter.mean_start[0] >= MEAN_S or traffic.bytes_per_s is None:
        traffic.bytes_per_s = (meter.passed_bytes - meter.mean_start[1]) / (now_s - meter.mean_start[0])
    if now_s - meter.mean_start[0] >= MEAN_S:
        meter.mean_start = (now_s, meter.passed_bytes)
    meter.level_bytes = max(0.0, meter.level_bytes + passed - SLACK_RATIO * wanted * seconds)
    if not status.is_measurable:
        meter.level_bytes = 0.0
    elif meter.level_bytes > max(SLACK_S * wanted, SLACK_BYTES):
        meter.exceeded_at_s, meter.level_bytes = now_s, 0.0
        traffic.excess = f"{8 * passed / seconds:.0f} bit/s went through for {seconds:.0f} s"
