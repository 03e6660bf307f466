"""Smooths the latencies of a pair of nodes over its samples.

The smoothed latency is the median of a window of samples, so that one odd sample in it changes little. An outlier enters the window
only if the next sample confirms it; the window then restarts from these two. A new pair of nodes starts from the latency of its zones,
if that is known. `CostPolicy.percentile` names the percentile that is smoothed.
"""

from __future__ import annotations

import statistics

import msgspec

WINDOW_SAMPLES = 5
"""The median of five samples ignores two odd ones. A change that is no outlier shows after three."""
OUTLIER_RATIO, MIN_OUTLIER_US = 0.15, 100.0
"""An outlier differs by more than this share, and by more than this time; smaller differences are noise of schedulers and interrupts."""
OUTLIER_DEVIATIONS = 5.0
"""An outlier also differs by more than this many median absolute deviations (at most half of the latency), with three samples or more."""


class SmoothedLatency(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The smoothed latency of one pair of nodes, and the window of samples from which it is computed.

    Attributes:
        latency_us: the smoothed latency.
        mad_us: median absolute deviation of the window's samples from it: the noise.
        recent_us: the window, oldest sample first; empty before the first sample counts, when the latency is that of the zones.
        pending_us: the newest sample, if it is an outlier that the next sample must confirm; else None.
        count: number of samples since the window last restarted.
        before_restart: the state before the newest sample confirmed an outlier and the window restarted; else None.
    """

    latency_us: float
    mad_us: float = 0.0
    recent_us: tuple[float, ...] = ()
    pending_us: float | None = None
    count: int = 0
    before_restart: SmoothedLatency | None = None


def add_sample(smoothed: SmoothedLatency | None, value_us: float, expected_us: float | None = None) -> SmoothedLatency:
    """The smoothed latency after one more sample.

    Args:
        smoothed: the smoothed latency before the sample; None for a new pair of nodes.
        value_us: latency of the sample.
        expected_us: latency of the zones, if known; a new pair of nodes starts from it.
    """
    if smoothed is None:
        if expected_us is None:
            return _smooth_window((value_us,), 1)
        smoothed = SmoothedLatency(latency_us=expected_us)
    if not _is_outlier(value_us, smoothed):
        return _smooth_window((*smoothed.recent_us, value_us)[-WINDOW_SAMPLES:], smoothed.count + 1)
    pending_us = smoothed.pending_us
    # Two samples near each other confirm a new latency. Its noise is unknown, so only the ratio and the minimum count.
    max_us = max(OUTLIER_RATIO * max(value_us, pending_us or 0.0), MIN_OUTLIER_US)
    if pending_us is not None and abs(value_us - pending_us) <= max_us:
        return msgspec.structs.replace(_smooth_window((pending_us, value_us), 2), before_restart=smoothed)
    return msgspec.structs.replace(smoothed, pending_us=value_us, before_restart=None)


def replace_newest_sample(
    smoothed: SmoothedLatency, value_us: float, expected_us: float | None = None
) -> SmoothedLatency:
    """The smoothed latency with its newest sample replaced, also if that is a pending outlier. Arguments as in `add_sample`."""
    without_newest: SmoothedLatency | None = None
    if smoothed.pending_us is not None:
        without_newest = msgspec.structs.replace(smoothed, pending_us=None)
    elif smoothed.before_restart is not None:
        without_newest = smoothed.before_restart  # its outlier is unconfirmed again
    elif len(smoothed.recent_us) > 1:
        without_newest = _smooth_window(smoothed.recent_us[:-1], smoothed.count - 1)
    return add_sample(without_newest, value_us, expected_us)


def _is_outlier(value_us: float, smoothed: SmoothedLatency) -> bool:
    """Whether a sample is too far from the smoothed latency for the noise of the pair."""
    noise_us = OUTLIER_DEVIATIONS * smoothed.mad_us if len(smoothed.recent_us) > 2 else 0.0
    bound_us = max(OUTLIER_RATIO * smoothed.latency_us, min(noise_us, smoothed.latency_us / 2), MIN_OUTLIER_US)
    return abs(value_us - smoothed.latency_us) > bound_us


def _smooth_window(recent_us: tuple[float, ...], count: int) -> SmoothedLatency:
    latency_us = statistics.median(recent_us)
    mad_us = statistics.median(abs(value - latency_us) for value in recent_us)
    return SmoothedLatency(latency_us=latency_us, mad_us=mad_us, recent_us=recent_us, count=count)
