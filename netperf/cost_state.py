"""The state of each pair of zones: smoothed latencies, failures, last good latency, current cost.

`update_state` adds samples and failures. `restore_state` starts from the costs that were written last, `resume_state` from an earlier leadership
as well. All are pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from netperf.latencies import Latencies, ZonePair
from netperf.policy import MIN_ZONE_COST, CostPolicy
from netperf.sample import Failure, NodeLocation, ProberName, Sample, Sighting, Test, update_sighting
from netperf.smoothing import SmoothedLatency, add_sample, replace_newest_sample

INFERRED_ERROR = 0.5
"""Error bar of an inferred latency, as a share of it; after a restart it distinguishes inferred from measured latencies."""


class NodePairState(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The smoothed latency of one pair of nodes by one prober and test.

    Attributes:
        smoothed: of the policy's percentile.
        added_s: our clock when the newest sample was added; another sample within half a round replaces it.
        ignored_since_s: since when its latency is ignored, because others contradict it; None while it counts.
    """

    origin: NodeLocation
    destination: NodeLocation
    prober: ProberName
    test: Test
    smoothed: SmoothedLatency
    sighting: Sighting
    added_s: float = 0.0
    ignored_since_s: float | None = None


class ZonePairState(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The state of a directed pair of zones, kept while its pairs of nodes change.

    Attributes:
        node_pairs: its pairs of nodes.
        failures: pairs of nodes that could not be measured.
        cost: the current cost.
        last_good_us: the last latency from fresh samples.
        last_good_s: time of that latency, by our clock.
        error_us: error bar of that latency.
        is_unreachable: whether no node of one zone reaches the other.
        is_unverified: whether the last good latency was read from the NetworkTopology, and may have been inferred.
        is_inferred: whether the current cost is inferred; the first measured one replaces it without hysteresis.
        has_full_window: whether the current cost rests on `WINDOW_SAMPLES` samples of each pair of nodes.
        is_disputed: whether its two reporters contradict each other.
    """

    node_pairs: tuple[NodePairState, ...] = ()
    failures: tuple[Failure, ...] = ()
    cost: int | None = None
    last_good_us: float | None = None
    last_good_s: float = 0.0
    error_us: float = 0.0
    is_unreachable: bool = False
    is_unverified: bool = False
    is_inferred: bool = False
    has_full_window: bool = False
    is_disputed: bool = False


CostState = dict[ZonePair, ZonePairState]


def restore_state(
    written: Mapping[ZonePair, int], policy: CostPolicy, now_s: float, latencies: Latencies | None = None
) -> CostState:
    """The state from the written costs, after a restart.

    Hysteresis applies to these costs. Those of unmeasured pairs are stale from the start and stay until they expire.
    """
    latencies = latencies or Latencies()
    state: CostState = {}
    for pair, cost in written.items():
        if cost < MIN_ZONE_COST:
            continue
        # An unreachable pair has no latency; with one, the path is only so long that it costs as much.
        is_unreachable = latencies.is_unreachable(*pair) or (
            cost >= policy.unreachable_cost and latencies.latency_us(*pair) is None
        )
        us, error_us = latencies.latency_us(*pair), latencies.error_us(*pair) or 0
        is_inferred = us is not None and error_us >= INFERRED_ERROR * us
        state[pair] = ZonePairState(
            cost=None if is_unreachable else cost,
            last_good_us=None if is_unreachable else us if us is not None else cost * policy.unit_us,
            last_good_s=now_s - policy.stale_after_s - 1,
            error_us=error_us,
            is_unreachable=is_unreachable,
            is_unverified=us is None or is_inferred,
            is_inferred=is_inferred,
            has_full_window=not is_inferred,
        )
    return state


def resume_state(earlier: CostState, restored: CostState) -> CostState:
    """The state of an earlier leadership of this process, with the costs that were written since.

    Times come from the earlier state, because a new leadership must not make an old latency younger.

    Args:
        earlier: from `compute_costs`, by the same clock.
        restored: from `restore_state`.
    """
    resumed: CostState = {}
    for pair, entry in restored.items():
        old = earlier.get(pair, entry)
        resumed[pair] = msgspec.structs.replace(
            entry,
            node_pairs=old.node_pairs,
            failures=old.failures,
            last_good_s=entry.last_good_s if old.last_good_us is None else min(entry.last_good_s, old.last_good_s),
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
    """Add samples and failures to the state. A sample that was added before changes nothing; a flagged one is left out.

    Args:
        samples: all present samples, new or not; pairs of nodes without one are forgotten, last good latencies are not.
        state: what this function, `compute_costs` or `restore_state` returned last.
        policy: the rules.
        now_s: our clock, always the same one.
        wall_s: wall clock, seconds since 1970; used for the age of samples that are seen for the first time.
        failures: all present failures without a newer sample.
        interval_s: length of a probing round; of two samples of a pair of nodes within half of it the newer counts.
    """
    by_pair: dict[ZonePair, list[NodePairState]] = defaultdict(list)
    for sample in samples:
        if sample.origin.zone == sample.destination.zone or sample.measurement.test == "TCP_STREAM":
            continue
        pair = state.get(sample.zones, ZonePairState())
        expected_us = starting_latency_us(pair, state.get((sample.zones[1], sample.zones[0])))
        before = _find_node_pair(sample, pair.node_pairs)
        sighting = update_sighting(before.sighting if before else None, sample, now_s, wall_s)
        times = {"now_s": now_s, "replace_within_s": interval_s / 2}
        node_pair = _update_node_pair(sample, before, sighting, policy, expected_us=expected_us, **times)
        if node_pair is not None:
            by_pair[sample.zones].append(node_pair)
    failed: dict[ZonePair, list[Failure]] = defaultdict(list)
    for failure in failures:
        failed[failure.origin.zone, failure.destination.zone].append(failure)
    return {
        pair: msgspec.structs.replace(
            state.get(pair, ZonePairState()),
            node_pairs=tuple(by_pair.get(pair, ())),
            failures=tuple(failed.get(pair, ())),
        )
        for pair in state.keys() | by_pair.keys() | failed.keys()
    }


def starting_latency_us(pair: ZonePairState, back: ZonePairState | None) -> float | None:
    """The latency that a new pair of nodes starts from."""
    return next(
        (p.last_good_us for p in (pair, back) if p is not None and p.last_good_us and not p.is_unverified), None
    )


def _find_node_pair(sample: Sample, node_pairs: Iterable[NodePairState]) -> NodePairState | None:
    key = (sample.origin.node, sample.destination.node, sample.measurement.test)
    external = sample.measurement.prober == "external"
    return next(
        (
            s
            for s in node_pairs
            if (s.origin.node, s.destination.node, s.test) == key and (s.prober == "external") == external
        ),
        None,
    )


def _update_node_pair(
    sample: Sample,
    before: NodePairState | None,
    sighting: Sighting,
    policy: CostPolicy,
    *,
    expected_us: float | None,
    now_s: float,
    replace_within_s: float,
) -> NodePairState | None:
    """The state after a sample; unchanged if it is flagged, lacks the percentile, or was added before."""
    value_us = sample.percentile_us(policy.percentile)
    if value_us is None or not set(sample.quality_flags) <= set(policy.accept_quality_flags):
        return before
    added_s = now_s
    if sample.cost_measurement.prober == "external":
        # That format has no time: only a changed number shows a new sample.
        if before is not None and value_us != before.smoothed.latency_us:
            sighting = Sighting(0, 0.0, now_s)
        smoothed = SmoothedLatency(latency_us=value_us, recent_us=(value_us,), count=1)
    elif before is None:
        smoothed = add_sample(None, value_us, expected_us)
    elif sighting == before.sighting:
        return before
    elif now_s - before.added_s < replace_within_s:
        smoothed, added_s = replace_newest_sample(before.smoothed, value_us), before.added_s
    else:
        smoothed = add_sample(before.smoothed, value_us, expected_us)
    return NodePairState(
        origin=sample.origin,
        destination=sample.destination,
        prober=sample.cost_measurement.prober,
        test=sample.measurement.test,
        smoothed=smoothed,
        sighting=sighting,
        added_s=added_s,
        ignored_since_s=before.ignored_since_s if before else None,
    )


def prober_rank(node_pair: NodePairState) -> int:
    """Order of trust, lower is better: TCP_RR by our agents, UDP_RR by our agents, numbers of other components."""
    return 2 if node_pair.prober == "external" else int(node_pair.test == "UDP_RR")


def representative_node_pair(node_pairs: Iterable[NodePairState]) -> NodePairState | None:
    """The pair of nodes to show for two zones: the median of those with the best `prober_rank`."""
    ranked = sorted(node_pairs, key=lambda s: (prober_rank(s), s.smoothed.latency_us, s.origin, s.destination))
    best = [s for s in ranked if prober_rank(s) == prober_rank(ranked[0])]
    return best[(len(best) - 1) // 2] if best else None
