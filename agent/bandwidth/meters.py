"""Computes pods' traffic from counters, and finds traffic above the limits. No I/O; callers pass the time.

A configured limit may have no effect: its burst overflowed 32 bits, a program redirects around the bucket, or the bucket is on another
device. So traffic is measured by the counters of the pod's own device.

Ingress: the bytes that the device received. Egress: the bytes that left the ifb's token bucket, which may drop bytes, plus the bytes
that the pod sent and no filter redirected to the ifb. If there is no bucket, or the pod is not busy: all bytes that the pod sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from agent.bandwidth.state import CounterSource, LimitKey, LimitStatus
from agent.bandwidth.tbf import ETHERNET_BYTES

RATE_TOLERANCE_FACTOR = 1.05
"""Tolerance of rates, for imprecise timers and for headers."""
BURST_TOLERANCE_S = 0.25
MIN_BURST_TOLERANCE_BYTES = 131_072
"""Tolerance of bursts: `BURST_TOLERANCE_S` at the limit's rate, but at least `MIN_BURST_TOLERANCE_BYTES`, two segments of 64 KiB."""
EXCESS_SHOWN_S = 60.0
"""Time for which a limit counts as exceeded after the last excess."""
MEAN_WINDOW_S = 12.0
"""Rates are means over at least this time, except the first."""
_BUSY_RATIO = 0.9
"""A pod that sends more than this share of its limit is busy."""
BUSY_S = 60.0
"""Bucket and filter are read for this time after a pod was busy, because two readings are needed to measure the next busy interval."""


class DeviceCounters(NamedTuple):
    """Counters of a pod's own device."""

    received_bytes: int
    sent_bytes: int
    sent_packets: int


class TcCounters(NamedTuple):
    """Bytes that root qdiscs sent, and bytes that filters redirected, without Ethernet headers; both by device index."""

    bucket_bytes: Mapping[int, int]
    redirected_bytes: Mapping[int, int]


class LimitTcBytes(NamedTuple):
    """Bytes that one limit's bucket sent, and bytes that the filter redirected to its ifb."""

    bucket_bytes: int
    redirected_bytes: int


class TrafficMeter(msgspec.Struct):
    """Measured traffic of one direction of one pod.

    Attributes:
        wanted_bytes_per_s: the annotation's limit.
        read_at_s: time of the latest reading.
        device_counters: the latest counters of the pod's own device.
        counter_source: location of the counters.
        busy_at_s: time of the latest reading at which the pod was busy; None before.
        tc_bytes: the latest counters of bucket and filter; None if one was not read.
        excess_level_bytes: bytes above the limit: passed bytes raise it, and the limit's rate, with tolerance, lowers it.
        passed_bytes: bytes passed since the first reading, except in intervals without counters.
        window_start_s: start of the window of the mean rate, moved forward by the intervals without counters.
        window_start_bytes: ``passed_bytes`` at that time.
        bytes_per_s: mean rate of the last window; None before the second reading.
        excess: description of the latest excess; empty after ``excess_until_s``.
        excess_until_s: time until which the excess is shown.
    """

    wanted_bytes_per_s: float
    read_at_s: float
    device_counters: DeviceCounters
    counter_source: CounterSource
    busy_at_s: float | None = None
    tc_bytes: LimitTcBytes | None = None
    excess_level_bytes: float = 0.0
    passed_bytes: int = 0
    window_start_s: float = 0.0
    window_start_bytes: int = 0
    bytes_per_s: float | None = None
    excess: str = ""
    excess_until_s: float = 0.0


class TrafficMeters:
    """Measured traffic of a node's limited pods: a meter for each limit in the latest readings, and descriptions of current excesses."""

    def __init__(self) -> None:
        self.meter_by_key: dict[LimitKey, TrafficMeter] = {}
        self.excess_by_key: dict[LimitKey, str] = {}

    def find_busy_devices(
        self, statuses: Sequence[LimitStatus], counters_by_pid: Mapping[int, DeviceCounters], now_s: float
    ) -> set[int]:
        """Find the pods that are busy, or were within `BUSY_S`, so that counters of bucket and filter are needed.

        Returns indexes of their host devices.
        """
        busy_indexes: set[int] = set()
        for status in statuses:
            meter, source = self.meter_by_key.get(status.key), status.counter_source
            if meter is None or source is None or source.bucket_device_index is None or status.direction != "egress":
                continue
            counters = counters_by_pid.get(source.pid)
            if counters is None:
                continue
            if _is_busy(meter, counters, now_s):
                meter.busy_at_s = now_s
            if meter.busy_at_s is not None and now_s - meter.busy_at_s <= BUSY_S:
                busy_indexes.add(source.host_device_index)
        return busy_indexes

    def add_readings(
        self,
        statuses: Sequence[LimitStatus],
        counters_by_pid: Mapping[int, DeviceCounters],
        tc_counters: TcCounters | None,
        now_s: float,
        later_counters_by_pid: Mapping[int, DeviceCounters] = {},
    ) -> None:
        """Add readings for these limits; other limits are forgotten.

        ``counters_by_pid`` are of the pods' own devices, by a process of the pod. ``later_counters_by_pid`` are the same counters, read
        after ``tc_counters``; egress limits ignore the traffic in between, which could otherwise count as excess.
        """
        meter_by_key: dict[LimitKey, TrafficMeter] = {}
        for status in statuses:
            source, wanted_bps, key = status.counter_source, status.wanted_bps, status.key
            counters = counters_by_pid.get(source.pid) if source is not None else None
            if source is None or counters is None or wanted_bps is None:
                continue
            meter = self.meter_by_key.get(key)
            if meter is None or (meter.counter_source, meter.wanted_bytes_per_s) != (source, wanted_bps / 8):
                meter_by_key[key] = _start_meter(meter, wanted_bps / 8, now_s, counters, source)
                continue
            meter_by_key[key] = meter
            passed_bytes = _count_passed_bytes(meter, status, counters, tc_counters, now_s)
            if passed_bytes is None:
                meter.window_start_s += now_s - meter.read_at_s
            else:
                _update_rate_and_excess(meter, passed_bytes, status, now_s)
            later_counters = later_counters_by_pid.get(source.pid, counters)
            meter.read_at_s = now_s
            meter.device_counters = later_counters if status.direction == "egress" else counters
            meter.tc_bytes = _read_tc_bytes(tc_counters, source)
            if now_s > meter.excess_until_s:
                meter.excess = ""
        self.meter_by_key = meter_by_key
        self.excess_by_key = {key: meter.excess for key, meter in meter_by_key.items() if meter.excess}


def _start_meter(
    old: TrafficMeter | None, wanted_bytes_per_s: float, now_s: float, counters: DeviceCounters, source: CounterSource
) -> TrafficMeter:
    """A meter for a new, repaired or changed limit, which still shows the rate and an earlier excess of the ``old`` one."""
    meter = TrafficMeter(wanted_bytes_per_s, now_s, counters, source, window_start_s=now_s)
    if old is not None:
        meter.bytes_per_s, meter.excess, meter.excess_until_s = old.bytes_per_s, old.excess, old.excess_until_s
    return meter


def _is_busy(meter: TrafficMeter, counters: DeviceCounters, now_s: float) -> bool:
    """Whether a pod was busy since its previous reading."""
    allowed_bytes = meter.wanted_bytes_per_s * (now_s - meter.read_at_s)
    return counters.sent_bytes - meter.device_counters.sent_bytes > _BUSY_RATIO * allowed_bytes


def _count_passed_bytes(
    meter: TrafficMeter, status: LimitStatus, counters: DeviceCounters, tc_counters: TcCounters | None, now_s: float
) -> int | None:
    """Count the bytes passed since the previous reading; None if a counter of this or the previous reading is missing."""
    if status.direction == "ingress":
        return max(0, counters.received_bytes - meter.device_counters.received_bytes)
    sent_bytes = max(0, counters.sent_bytes - meter.device_counters.sent_bytes)
    source = status.counter_source
    if source is None or source.bucket_device_index is None or not _is_busy(meter, counters, now_s):
        return sent_bytes
    tc_bytes = _read_tc_bytes(tc_counters, source)
    if tc_bytes is None or meter.tc_bytes is None:
        return None
    bucket_bytes, redirected_bytes = (max(0, new - old) for new, old in zip(tc_bytes, meter.tc_bytes, strict=True))
    # Filters do not count the Ethernet header of a packet.
    sent_bytes -= ETHERNET_BYTES * max(0, counters.sent_packets - meter.device_counters.sent_packets)
    return bucket_bytes + max(0, sent_bytes - redirected_bytes)


def _read_tc_bytes(tc_counters: TcCounters | None, source: CounterSource) -> LimitTcBytes | None:
    """The counters of one limit; None if one was not read."""
    if tc_counters is None or source.bucket_device_index is None:
        return None
    bucket_bytes = tc_counters.bucket_bytes.get(source.bucket_device_index)
    redirected_bytes = tc_counters.redirected_bytes.get(source.host_device_index)
    return None if bucket_bytes is None or redirected_bytes is None else LimitTcBytes(bucket_bytes, redirected_bytes)


def _update_rate_and_excess(meter: TrafficMeter, passed_bytes: int, status: LimitStatus, now_s: float) -> None:
    """Add the bytes since the previous reading to the mean rate and to the excess level; too high a level is an excess."""
    elapsed_s, window_s = now_s - meter.read_at_s, now_s - meter.window_start_s
    if elapsed_s <= 0:
        return
    meter.passed_bytes += passed_bytes
    if window_s >= MEAN_WINDOW_S or meter.bytes_per_s is None:
        meter.bytes_per_s = (meter.passed_bytes - meter.window_start_bytes) / window_s
    if window_s >= MEAN_WINDOW_S:
        meter.window_start_s, meter.window_start_bytes = now_s, meter.passed_bytes
    allowed_bytes = RATE_TOLERANCE_FACTOR * meter.wanted_bytes_per_s * elapsed_s
    meter.excess_level_bytes = max(0.0, meter.excess_level_bytes + passed_bytes - allowed_bytes)
    if not status.is_measurable:
        meter.excess_level_bytes = 0.0
    elif meter.excess_level_bytes > max(BURST_TOLERANCE_S * meter.wanted_bytes_per_s, MIN_BURST_TOLERANCE_BYTES):
        meter.excess_until_s, meter.excess_level_bytes = now_s + EXCESS_SHOWN_S, 0.0
        meter.excess = f"{8 * passed_bytes / elapsed_s:.0f} bit/s went through for {elapsed_s:.0f} s"
