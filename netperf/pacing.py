"""Computes the start and the test of each run, and limits the bandwidth of TCP_STREAM.

Agents do not coordinate: rounds follow the wall clock, slots come from the plan, and jitter comes from a hash. If clocks differ by more
than the slack of a slot, runs may overlap. The overlap delays processes, so the samples get the quality flag ``run-queue``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from netperf.measurement import Test
from netperf.plans import Probe, ProbeSettings, ZonePlan

CONNECT_ALLOWANCE_S = 2.0
"""Time that a run takes in addition to its test: process start, control connection, and one or two long round trips."""
STREAM_WINDOW_S = 600.0
"""Length of the sliding window over which the mean bandwidth of streams is limited."""


class ScheduledRun(msgspec.Struct, frozen=True):
    """One run of a probe: its start by the wall clock, the number of its round since 1970, and the netperf test."""

    probe: Probe
    starts_at_s: float
    round_number: int
    test: Test


def find_next_run(plan: ZonePlan, node: str, now_s: float) -> ScheduledRun | None:
    """The node's first run at or after ``now_s`` (wall clock); None if the plan has no run of the node."""
    current_round = math.floor(now_s / plan.interval_s)
    # Every probe runs once a round, so the next run is in this round or the next one.
    runs = (
        ScheduledRun(probe, probe_start_s(plan, probe, round_), round_, choose_test(plan.settings, probe, round_))
        for round_ in (current_round, current_round + 1)
        for probe in plan.probes_from(node)
        if probe.pair_index == 0  # other pairs are measured by datagrams only
    )
    return min((run for run in runs if run.starts_at_s >= now_s), key=lambda run: run.starts_at_s, default=None)


def slot_width_s(plan: ZonePlan) -> float:
    """Length of a slot."""
    return plan.interval_s / plan.slot_count


def choose_test(settings: ProbeSettings, probe: Probe, round_number: int) -> Test:
    """The test that a probe runs in a round: the usual one, or in every ``rounds_per_extra_test``-th round an extra one.

    An extra test replaces the usual one, because a slot has time for one run.
    """
    if not settings.extra_tests:
        return settings.test
    # The hash spreads the extra tests of different pairs over the rounds.
    phase = hash_to_int(f"{probe.origin.node}\0{probe.destination.node}", digest_size=4)
    cycle, position = divmod(round_number + phase, settings.rounds_per_extra_test)
    return settings.test if position else settings.extra_tests[cycle % len(settings.extra_tests)]


def probe_start_s(plan: ZonePlan, probe: Probe, round_number: int) -> float:
    """Start of a probe in a round, wall clock in seconds: its slot, plus jitter.

    Jitter differs from round to round, so that a probe does not coincide with a periodic job of its node every time.
    """
    width_s = slot_width_s(plan)
    slack_s = max(0.0, width_s - plan.settings.duration_s - CONNECT_ALLOWANCE_S)
    seed = f"{round_number}\0{probe.origin.node}\0{probe.destination.node}\0{probe.slot}"
    fraction = hash_to_int(seed, digest_size=6) / 2**48
    return round_number * plan.interval_s + probe.slot * width_s + fraction * slack_s


def hash_to_int(text: str, *, digest_size: int = 8) -> int:
    """A hash of ``digest_size`` bytes as an unsigned integer; equal in all programs."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=digest_size).digest(), "big")


class StreamRun(NamedTuple):
    """A past run of TCP_STREAM: the time of its end (by a monotonic clock), and the bytes that it sent."""

    ended_at_s: float
    sent_bytes: float


def select_recent_streams(runs: Iterable[StreamRun], now_s: float) -> tuple[StreamRun, ...]:
    """The runs that ended within the last `STREAM_WINDOW_S`."""
    return tuple(run for run in runs if now_s - run.ended_at_s < STREAM_WINDOW_S)


def may_stream(runs: Iterable[StreamRun], now_s: float, max_mean_bps: float) -> bool:
    """Whether another stream may start: the mean over the last `STREAM_WINDOW_S` is below ``max_mean_bps``. The stream may then exceed it."""
    sent_bits = 8 * sum(run.sent_bytes for run in select_recent_streams(runs, now_s))
    return sent_bits < max_mean_bps * STREAM_WINDOW_S
