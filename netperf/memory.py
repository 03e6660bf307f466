"""The state of each pair of zones: smoothed latencies, failures, last good latency, current cost.

`update_state` takes samples and failures in; `restore` starts from what was written last, `resume` from an earlier leadership as well.
All are pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from netperf.latencies import Latencies, ZonePair
from netperf.policy import MIN_ZONE_COST, CostPolicy
from netperf.sample import Failure, Place, ProberName, Sample, Sighting, Test, update_sighting
from netperf.smoothing import SmoothedLatency, add_run, replace_newest_run

INFERRED_ERROR = 0.5
"""Error bar of an inferred latency, as a share of it; after a restart it distinguishes inferred from measured latencies."""


class Stream(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The runs of one pair of nodes by one prober and test.

    Attributes:
        smoothed: of the policy's percentile; the median over runs is an estimate of it, not the percentile of a longer run.
        counted_s: time of the newest run, by our clock; a sample within half a round after it replaces the run.
        ignored_since_s: since when others contradict its reading, which is then ignored; None while it counts.
    """

    origin: Place
    destination: Place
    prober: ProberName
    test: Test
    smoothed: SmoothedLatency
    sighting: Sighting
    counted_s: float = 0.0
    ignored_since_s: float | None = None


class PairState(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The state of a directed pair of zones, kept while its pairs of nodes change.

    Attributes:
        streams: runs of its pairs of nodes.
        failures: pairs of nodes that could not be measured.
        cost: the current cost.
        last_good_us: the last latency from fresh measurements; ``last_good_s``: its time.
        error_us: error bar of that latency.
        unreachable: its path is dead.
        unverified: the last good value was read from the NetworkTopology, and may have been inferred.
        is_inferred: the current cost is inferred; the first measurement replaces it, however near it is.
        full_window: the current cost rests on `WINDOW_RUNS` runs.
        disputed: its two reporters contradict each other.
    """

    streams: tuple[Stream, ...] = ()
    failures: tuple[Failure, ...] = ()
    cost: int | None = None
    last_good_us: float | None = None
    last_good_s: float = 0.0
    error_us: float = 0.0
    unreachable: bool = False
    unverified: bool = False
    is_inferred: bool = False
    full_window: bool = False
    disputed: bool = False


CostState = dict[ZonePair, PairState]


def restore(
    written: Mapping[ZonePair, int], policy: CostPolicy, now_s: float, latencies: Latencies | None = None
) -> CostState:
    """The state from the written costs, after a restart: costs stay within their hysteresis, and unmeasured pairs keep
    theirs, stale from the start, until they expire.
    """
    latencies = latencies or Latencies()
    state: CostState = {}
    for pair, cost in written.items():
        if cost < MIN_ZONE_COST:
            continue
        # A dead pair has no latency; where there is one, a long path costs as much as a dead one under this policy.
        dead = latencies.is_unreachable(*pair) or (
            cost >= policy.unreachable_cost and latencies.latency_us(*pair) is None
        )
        us, error_us = latencies.latency_us(*pair), latencies.error_us(*pair) or 0
        unsure = us is not None and error_us >= INFERRED_ERROR * us
        state[pair] = PairState(
            cost=None if dead else cost,
            last_good_us=None if dead else us if us is not None else cost * policy.unit_us,
            last_good_s=now_s - policy.stale_after_s - 1,
            error_us=error_us,
            unreachable=dead,
            unverified=us is None or unsure,
            is_inferred=unsure,
            full_window=not unsure,
        )
    return state


def resume(earlier: CostState, restored: CostState) -> CostState:
    """The state of an earlier leadership of this process, corrected by the costs written since.

    Times come from the earlier state, so that each new leadership does not give an old value a new lifetime.

    Args:
        earlier: from `price`, by the same clock.
        restored: from `restore`.
    """
    resumed: CostState = {}
    for pair, found in restored.items():
        old = earlier.get(pair, found)
        resumed[pair] = msgspec.structs.replace(
            found,
            streams=old.streams,
            failures=old.failures,
            last_good_s=found.last_good_s if old.last_good_us is None else min(found.last_good_s, old.last_good_s),
        )
    return resumed


def update_state(
    samples: Iterable[Sample],
    state: CostState,
    policy: CostPolicy,
    now_s: float,
    wall_s: float,
    *,
    failures: Iterable[Failure] = (),
    interval_s: float = 60.0,
) -> CostState:
    """Add samples to the state. A sample that was added before changes nothing; a flagged one is left out.

    Args:
        samples: all present samples, new or not; streams without one are forgotten, last good values are not.
        state: what this function, `price` or `restore` returned last.
        policy: the rules.
        now_s: our clock, always the same one.
        wall_s: wall clock, seconds since 1970; only used for samples met for the first time.
        failures: all present failures without a newer sample.
        interval_s: length of a probing round; two samples of a pair of nodes within half of it are one run.
    """
    by_pair: dict[ZonePair, list[Stream]] = defaultdict(list)
    for sample in samples:
        if sample.origin.zone == sample.destination.zone or sample.measurement.test == "TCP_STREAM":
            continue
        pair = state.get(sample.zones, PairState())
        expected_us = starting_latency_us(pair, state.get((sample.zones[1], sample.zones[0])))
        clocks = _Clocks(now_s, wall_s, interval_s / 2)
        stream = _update_stream(sample, _stream_of(sample, pair.streams), policy, expected_us, clocks)
        if stream is not None:
            by_pair[sample.zones].append(stream)
    failed: dict[ZonePair, list[Failure]] = defaultdict(list)
    for failure in failures:
        failed[failure.origin.zone, failure.destination.zone].append(failure)
    return {
        pair: msgspec.structs.replace(
            state.get(pair, PairState()), streams=tuple(by_pair.get(pair, ())), failures=tuple(failed.get(pair, ()))
        )
        for pair in state.keys() | by_pair.keys() | failed.keys()
    }


def starting_latency_us(pair: PairState, back: PairState | None) -> float | None:
    """The latency that a new pair of nodes starts from."""
    return next((p.last_good_us for p in (pair, back) if p is not None and p.last_good_us and not p.unverified), None)


def _stream_of(sample: Sample, streams: Iterable[Stream]) -> Stream | None:
    wanted = (sample.origin.node, sample.destination.node, sample.measurement.test)
    external = sample.measurement.prober == "external"
    return next(
        (
            s
            for s in streams
            if (s.origin.node, s.destination.node, s.test) == wanted and (s.prober == "external") == external
        ),
        None,
    )


class _Clocks(NamedTuple):
    now_s: float
    wall_s: float
    run_s: float


def _update_stream(
    sample: Sample, before: Stream | None, policy: CostPolicy, expected_us: float | None, clocks: _Clocks
) -> Stream | None:
    value_us = sample.percentile_us(policy.percentile)
    if value_us is None or not set(sample.quality_flags) <= set(policy.accept_quality_flags):
        return before
    sighting = update_sighting(before.sighting if before else None, sample, clocks.now_s, clocks.wall_s)
    counted_s = clocks.now_s
    if sample.priced_measurement.prober == "external":
        # That format has no time: a changed number is the only sign of a new run.
        if before is not None and value_us != before.smoothed.estimate_us:
            sighting = Sighting(0, 0.0, clocks.now_s)
        smoothed = SmoothedLatency(estimate_us=value_us, recent_us=(value_us,), runs=1)
    elif before is None:
        smoothed = add_run(None, value_us, expected_us)
    elif sighting == before.sighting:
        return before
    elif clocks.now_s - before.counted_s < clocks.run_s:
        smoothed, counted_s = replace_newest_run(before.smoothed, value_us), before.counted_s
    else:
        smoothed = add_run(before.smoothed, value_us, expected_us)
    return Stream(
        origin=sample.origin,
        destination=sample.destination,
        prober=sample.priced_measurement.prober,
        test=sample.measurement.test,
        smoothed=smoothed,
        sighting=sighting,
        counted_s=counted_s,
        ignored_since_s=before.ignored_since_s if before else None,
    )


def preference(stream: Stream) -> int:
    """Rank of a stream, lower is better: our TCP runs, our UDP runs, numbers of other components."""
    return 2 if stream.prober == "external" else int(stream.test == "UDP_RR")


def best_stream(streams: Iterable[Stream]) -> Stream | None:
    """The stream to show for a pair: the median of those with the best rank."""
    ranked = sorted(streams, key=lambda s: (preference(s), s.smoothed.estimate_us, s.origin, s.destination))
    best = [s for s in ranked if preference(s) == preference(ranked[0])]
    return best[(len(best) - 1) // 2] if best else None
