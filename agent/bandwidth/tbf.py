"""Arithmetic of token buckets: the CNI bandwidth plugin's parameters, their 32-bit overflow, and our own parameters.

A tick is 64 ns (15.625 per microsecond, /proc/net/psched). The plugin's formulas are in docs/contracts.md, section 9,
the kernel's in net/sched/sch_tbf.c.
"""

from __future__ import annotations

import math

from agent.rtnetlink import TbfParams

TICKS_PER_US = 15.625
UINT32_RANGE = 1 << 32
"""Number of values of the kernel's 32-bit fields."""
ETHERNET_BYTES = 14
"""The Ethernet header, which the MTU does not include."""
PLUGIN_LATENCY_S = 0.025
"""Queueing time that the plugin adds to the burst for the length of its queue."""

BURST_S = 0.010
"""Duration of our burst at the limit's rate, unless `MIN_BURST_FRAMES` need more; long enough for late timers of a busy machine."""
QUEUE_S = 0.040
"""Longest duration of our queue at the limit's rate, unless `MIN_QUEUE_FRAMES` need more."""
MIN_QUEUE_FRAMES = 16
"""TCP needs some segments in flight; fewer would cost throughput at rates below 5 Mbit/s."""
MIN_BURST_FRAMES = 2
"""A burst smaller than a frame blocks everything."""

MAX_BURST_S = 0.25
"""A burst that lasts longer lets more than 105 % through in the first five seconds, so it is too large."""
MAX_QUEUE_S = 0.5
"""A queue that lasts longer delays packets too much."""
GSO_BYTES = 65536
"""Any queue may hold one segment of this size, so smaller bursts are never too large."""
_TICK_TOLERANCE = 32
"""Tolerance for differences of rounding between the plugin, the kernel and this module."""


def compute_plugin_buffer_ticks(rate_bytes_per_s: int, burst_bytes: int) -> tuple[int, int]:
    """Compute the ticks that the CNI plugin sets: on amd64, where conversions wrap, and on arm64, where they saturate.

    ``uint32(uint32(burst * 1e6 / rate) * 15.625)``; in Go, conversions out of range depend on the processor.
    """
    time_us = int(burst_bytes * 1e6 / rate_bytes_per_s)
    wrapped_ticks = int((time_us % UINT32_RANGE) * TICKS_PER_US) % UINT32_RANGE
    saturated_ticks = min(int(min(time_us, UINT32_RANGE - 1) * TICKS_PER_US), UINT32_RANGE - 1)
    return wrapped_ticks, saturated_ticks


def find_overflowed_burst_bytes(params: TbfParams) -> int | None:
    """Find the requested burst whose ticks overflowed 32 bits and gave these parameters; None if none overflowed.

    `TbfParams.limit_bytes` contains the burst too, and may have overflowed as well (CRI-O asks for nearly 4 GiB).
    """
    rate_bytes_per_s = params.rate_bytes_per_s
    if rate_bytes_per_s <= 0:
        return None
    limit_without_latency_bytes = params.limit_bytes - int(rate_bytes_per_s * PLUGIN_LATENCY_S)
    for burst_bytes in (limit_without_latency_bytes, limit_without_latency_bytes + UINT32_RANGE):
        if burst_bytes <= 0:
            continue
        plugin_ticks = compute_plugin_buffer_ticks(rate_bytes_per_s, burst_bytes)
        if any(abs(params.buffer_ticks - ticks) <= _TICK_TOLERANCE for ticks in plugin_ticks):
            return burst_bytes if burst_bytes / rate_bytes_per_s * 1e6 * TICKS_PER_US >= UINT32_RANGE else None
    return None


def choose_params(rate_bps: int, mtu: int) -> TbfParams:
    """Choose our parameters for a rate of at least 1000 bit/s and an MTU in bytes: they limit from the first second, with a short queue."""
    rate_bytes_per_s = rate_bps // 8
    frame_bytes = mtu + ETHERNET_BYTES
    burst_bytes = max(math.ceil(rate_bytes_per_s * BURST_S), MIN_BURST_FRAMES * frame_bytes)
    limit_bytes = max(math.ceil(rate_bytes_per_s * QUEUE_S), MIN_QUEUE_FRAMES * frame_bytes)
    # At the lowest rates two frames exceed the bucket's 32 bits of ticks (274.9 s).
    ticks = min(int(burst_bytes * 1e6 / rate_bytes_per_s * TICKS_PER_US), UINT32_RANGE - 1)
    return TbfParams(
        rate_bytes_per_s=rate_bytes_per_s, buffer_ticks=ticks, limit_bytes=min(limit_bytes, UINT32_RANGE - 1)
    )


def has_excessive_burst_or_queue(params: TbfParams, mtu: int) -> bool:
    """Whether burst or queue last longer than `MAX_BURST_S` or `MAX_QUEUE_S`, and exceed the bytes that are always tolerated."""
    tolerated_bytes = max(GSO_BYTES, MIN_QUEUE_FRAMES * (mtu + ETHERNET_BYTES))
    has_large_burst = params.burst_s > MAX_BURST_S and params.burst_bytes > tolerated_bytes
    has_long_queue = params.queue_s > MAX_QUEUE_S and params.limit_bytes > 2 * tolerated_bytes
    return has_large_burst or has_long_queue


def blocks_everything(params: TbfParams, mtu: int) -> bool:
    """Whether the bucket is smaller than a frame, so full-sized packets are dropped; False at the maximum of ticks (unknown burst)."""
    return params.burst_bytes < mtu + ETHERNET_BYTES and params.buffer_ticks < UINT32_RANGE - 1
