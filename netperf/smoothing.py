"""Smooths the latencies of a pair of nodes over its runs.

The smoothed latency is the median of the last few runs, so that one outlier among them moves nothing. A run that is far off does not
count at first; when the next run confirms it, both set the new latency at once. The percentile smoothed is the one that is priced.
A new pair of nodes starts from the latency of its zones.
"""

from __future__ import annotations

import statistics

import msgspec

WINDOW_RUNS = 5
JUMP_RATIO = 0.15
MIN_JUMP_US = 100.0
"""A smaller distance is never a jump: schedulers and interrupts cause as much."""
JUMP_DEVIATIONS = 5.0
"""A jump is larger than the noise times this, once three runs show the noise."""


class SmoothedLatency(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The smoothed latency of one pair of nodes, and the runs it rests on.

    Attributes:
        estimate_us: the smoothed latency.
        deviation_us: median distance of the remembered runs from it: the noise.
        recent_us: the runs that it is the median of, oldest first; empty until the first own run counts. The estimate is then the
            zones' latency.
        pending_us: the newest run, if it was too far off to count without a second one.
        runs: how many runs it rests on since it last jumped.
    """

    estimate_us: float
    deviation_us: float = 0.0
    recent_us: tuple[float, ...] = ()
    pending_us: float | None = None
    runs: int = 0


def add_run(smoothed: SmoothedLatency | None, value_us: float, expected_us: float | None = None) -> SmoothedLatency:
    """The smoothed latency after one more run.

    Args:
        smoothed: before; None for a new pair of nodes.
        value_us: latency of the run.
        expected_us: latency of the zones, if known; a new pair of nodes starts from it.
    """
    if smoothed is None:
        if expected_us is None:
            return _median_of((value_us,), 1)
        smoothed = SmoothedLatency(estimate_us=expected_us)
    if not is_far(value_us, smoothed):
        return _median_of((*smoothed.recent_us, value_us)[-WINDOW_RUNS:], smoothed.runs + 1)
    pending_us = smoothed.pending_us
    if pending_us is not None and not _differ(value_us, pending_us):
        return _median_of((pending_us, value_us), 2)
    return msgspec.structs.replace(smoothed, pending_us=value_us)


def replace_newest_run(smoothed: SmoothedLatency, value_us: float) -> SmoothedLatency:
    """The smoothed latency with its newest run replaced, for a sample that is written again within a round."""
    if is_far(value_us, smoothed):
        return msgspec.structs.replace(smoothed, pending_us=value_us)
    if smoothed.pending_us is not None or not smoothed.recent_us:
        return msgspec.structs.replace(smoothed, pending_us=None)
    return _median_of((*smoothed.recent_us[:-1], value_us), smoothed.runs)


def is_far(value_us: float, smoothed: SmoothedLatency) -> bool:
    """Whether a run is too far from the smoothed latency to belong to it."""
    noise_us = JUMP_DEVIATIONS * smoothed.deviation_us if len(smoothed.recent_us) > 2 else 0.0
    bound_us = max(JUMP_RATIO * smoothed.estimate_us, min(noise_us, smoothed.estimate_us / 2), MIN_JUMP_US)
    return abs(value_us - smoothed.estimate_us) > bound_us


def _differ(value_us: float, other_us: float) -> bool:
    return abs(value_us - other_us) > max(JUMP_RATIO * max(value_us, other_us), MIN_JUMP_US)


def _median_of(recent_us: tuple[float, ...], runs: int) -> SmoothedLatency:
    estimate_us = statistics.median(recent_us)
    deviation_us = statistics.median(abs(value - estimate_us) for value in recent_us)
    return SmoothedLatency(estimate_us=estimate_us, deviation_us=deviation_us, recent_us=recent_us, runs=runs)
