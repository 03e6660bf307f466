"""Samples to costs: estimate, age, price, and fill what was not measured, without ever inventing a 0.

Two pure steps, both from state to state. `fold` takes samples into per-pair estimates; `price` turns estimates into
costs, holding a cost that only moved within the noise. The state is a cache: lost, it is rebuilt from the samples and
from the costs that were written last (`restore`), and nothing is written anew.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from netperf.policy import GREATEST_COST, LEAST_ZONE_COST, CostPolicy
from netperf.routes import infer_us
from netperf.sample import Measurement, Place, ProberName, Sample, Sighting, Test, sight

ZonePair = tuple[str, str]
Basis = Literal["measured", "mirrored", "stale", "inferred"]

MISSED_ROUNDS = 3
_PREFERENCE: dict[tuple[ProberName, Test], int] = {
    ("netperf", "TCP_RR"): 0,
    ("netperf", "UDP_RR"): 1,
    ("echo", "TCP_RR"): 2,
    ("echo", "UDP_RR"): 3,
    ("external", "TCP_RR"): 4,
}


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one pair of nodes by one prober and test, smoothed.

    Attributes:
        estimate_us: exponentially weighted average of the policy's percentile. Percentiles of several runs are not a
            percentile; as an estimate of where it lies their average is fair, as a claim about a longer run it is not.
        deviation_us: average distance of runs from the estimate: the noise.
        spread_us: p99 - p50 of the runs, smoothed; 0 while unknown.
        loss_ratio: smoothed; 0 while unknown.
        runs: how many the estimate rests on, since it was last taken as it is.
    """

    origin: Place
    destination: Place
    prober: ProberName
    test: Test
    estimate_us: float
    deviation_us: float = 0.0
    spread_us: float = 0.0
    loss_ratio: float = 0.0
    runs: int = 1
    sighting: Sighting


class PairState(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a directed pair of zones: its streams, the cost in force, the last good latency and when.

    The last good value outlives its stream, which goes when its key goes, as when a node leaves.
    """

    streams: tuple[Stream, ...] = ()
    cost: int | None = None
    last_good_us: float | None = None
    last_good_s: float = 0.0


CostState = dict[ZonePair, PairState]


class ZoneCost(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the cost table.

    Attributes:
        latency_us: what was priced, penalties included.
        basis: ``measured``; ``mirrored``, from the way back; ``stale``, the last good value; ``inferred``, a path.
        age_s: of the measurement behind it, by our clock; 0 for an inferred one.
    """

    cost: int
    latency_us: float
    basis: Basis
    age_s: float


class CostTable(msgspec.Struct, frozen=True, kw_only=True):
    """Costs by directed pair of zones and of regions; ``absent`` pairs have none, and must not be written as 0."""

    zones: dict[ZonePair, ZoneCost]
    regions: dict[ZonePair, int]
    absent: tuple[ZonePair, ...]

    def count(self, basis: Basis) -> int:
        """How many zone pairs rest on this."""
        return sum(entry.basis == basis for entry in self.zones.values())


def restore(written: Mapping[ZonePair, int]) -> CostState:
    """A state that knows only the costs written last, so that a restart does not move a cost within its hysteresis."""
    return {pair: PairState(cost=cost) for pair, cost in written.items() if cost >= LEAST_ZONE_COST}


# --- samples to estimates ------------------------------------------------------------------------------------------


def fold(samples: Iterable[Sample], state: CostState, policy: CostPolicy, now_s: float, wall_s: float) -> CostState:
    """Take samples into the state. A sample that was seen before changes nothing; a doubtful one is left out.

    Args:
        samples: all samples there are now, new or not; streams without one are forgotten, last good values are not.
        state: what this function, `price` or `restore` returned last.
        policy: the rules.
        now_s: our clock, always the same one.
        wall_s: wall clock, seconds since 1970; only used for samples met for the first time.
    """
    by_pair: dict[ZonePair, list[Stream]] = defaultdict(list)
    for sample in samples:
        if sample.origin.zone == sample.destination.zone or sample.measurement.test == "TCP_STREAM":
            continue
        before = _stream_of(sample, state.get(sample.zones, PairState()).streams)
        stream = _fold_one(sample, before, policy, now_s, wall_s)
        if stream is not None:
            by_pair[sample.zones].append(stream)
    return {
        pair: msgspec.structs.replace(state.get(pair, PairState()), streams=tuple(by_pair.get(pair, ())))
        for pair in state.keys() | by_pair.keys()
    }


def _stream_of(sample: Sample, streams: Iterable[Stream]) -> Stream | None:
    wanted = (sample.origin.node, sample.destination.node, sample.measurement.prober, sample.measurement.test)
    return next((s for s in streams if (s.origin.node, s.destination.node, s.prober, s.test) == wanted), None)


def _fold_one(sample: Sample, before: Stream | None, policy: CostPolicy, now_s: float, wall_s: float) -> Stream | None:
    measurement = sample.measurement
    value_us = measurement.percentile_us(policy.percentile)
    if value_us is None or not set(sample.doubts) <= set(policy.accept_doubts):
        return before
    sighting = sight(before.sighting if before else None, sample, now_s, wall_s)
    if before is None:
        return Stream(
            origin=sample.origin,
            destination=sample.destination,
            prober=measurement.prober,
            test=measurement.test,
            estimate_us=value_us,
            spread_us=_spread_us(measurement),
            loss_ratio=measurement.loss_ratio or 0.0,
            sighting=sighting,
        )
    if measurement.prober == "external" and value_us != before.estimate_us:
        # No time in that format: a changed number is the only sign of a new run, and is taken as it is.
        return msgspec.structs.replace(before, estimate_us=value_us, sighting=Sighting(0, 0.0, now_s))
    return before if sighting == before.sighting else _smooth(before, measurement, value_us, sighting, policy)


def _smooth(
    before: Stream, measurement: Measurement, value_us: float, sighting: Sighting, policy: CostPolicy
) -> Stream:
    # The first runs count alike, as in a plain mean: the very first would otherwise weigh most for a long time.
    weight, away_us = max(policy.smoothing, 1 / (before.runs + 1)), abs(value_us - before.estimate_us)
    jump = away_us > max(policy.jump_ratio * before.estimate_us, 4 * before.deviation_us, policy.unit_us / 2)
    return msgspec.structs.replace(
        before,
        estimate_us=value_us if jump else before.estimate_us + weight * (value_us - before.estimate_us),
        deviation_us=before.deviation_us if jump else before.deviation_us + weight * (away_us - before.deviation_us),
        spread_us=before.spread_us + weight * (_spread_us(measurement) - before.spread_us),
        loss_ratio=before.loss_ratio + weight * ((measurement.loss_ratio or 0.0) - before.loss_ratio),
        runs=1 if jump else before.runs + 1,
        sighting=sighting,
    )


def _spread_us(measurement: Measurement) -> float:
    """Jitter as p99 - p50: both probers give it, and a single late packet does not make it, as it would a stddev."""
    if measurement.p99_us is None or measurement.p50_us is None:
        return 0.0
    return max(0.0, measurement.p99_us - measurement.p50_us)


def priced_us(stream: Stream, policy: CostPolicy) -> float:
    """The estimate and its penalties, in microseconds."""
    return (
        stream.estimate_us + policy.jitter_weight * stream.spread_us + policy.loss_penalty_us * 100 * stream.loss_ratio
    )


def best_stream(streams: Iterable[Stream], policy: CostPolicy) -> Stream | None:
    """The stream to believe: netperf before echo before others' numbers; of two node pairs the faster one.

    A path cannot be faster than itself, so the slower of two node pairs tells of a bad node.
    """
    return min(
        streams,
        key=lambda s: (_PREFERENCE.get((s.prober, s.test), 9), priced_us(s, policy), s.origin, s.destination),
        default=None,
    )


# --- estimates to costs --------------------------------------------------------------------------------------------


class _Known(msgspec.Struct, frozen=True):
    latency_us: float
    deviation_us: float
    basis: Basis
    seen_s: float


def price(
    state: CostState, zones: Mapping[str, str], policy: CostPolicy, now_s: float, *, interval_s: float = 60.0
) -> tuple[CostTable, CostState]:
    """Costs for every directed pair of ``zones``, and the state that remembers them.

    Args:
        state: from `fold` or `restore`.
        zones: zone -> region, empty where unlabelled; the zones that exist now. Pairs of other zones are forgotten.
        policy: the rules.
        now_s: the clock given to `fold`.
        interval_s: length of a probing round; nothing is stale before three of them.
    """
    stale_s = max(policy.stale_after_s, MISSED_ROUNDS * interval_s)
    expire_s = max(policy.expire_after_s, stale_s)
    names = sorted(zones)
    pairs = [(a, b) for a in names for b in names if a != b]
    fresh = {p: found for p in pairs if p in state and (found := _freshest(state[p], policy, now_s, stale_s))}
    known = {p: found for p in pairs if (found := _known(p, state, fresh, policy, now_s - expire_s)) is not None}
    if policy.infer and len(known) < len(pairs):
        inferred = infer_us(names, {pair: entry.latency_us for pair, entry in known.items()})
        known |= {pair: _Known(us, 0.0, "inferred", now_s) for pair, us in inferred.items()}
    table: dict[ZonePair, ZoneCost] = {}
    after: CostState = {}
    for pair in pairs:
        old = state.get(pair, PairState())
        entry = known.get(pair)
        cost = None if entry is None else held_cost(old.cost, entry.latency_us, entry.deviation_us, policy)
        if entry is not None and cost is not None:
            age_s = max(0.0, now_s - entry.seen_s)
            table[pair] = ZoneCost(cost=cost, latency_us=entry.latency_us, basis=entry.basis, age_s=age_s)
        own = fresh.get(pair)
        last_good = (old.last_good_us, old.last_good_s) if own is None else (own.latency_us, own.seen_s)
        after[pair] = msgspec.structs.replace(old, cost=cost, last_good_us=last_good[0], last_good_s=last_good[1])
    absent = tuple(pair for pair in pairs if pair not in table)
    return CostTable(zones=table, regions=region_costs(table, zones, policy), absent=absent), after


def _freshest(pair: PairState, policy: CostPolicy, now_s: float, stale_s: float) -> _Known | None:
    """The best stream that is not stale."""

    def is_fresh(stream: Stream) -> bool:
        limit_s = policy.external_stale_after_s if stream.prober == "external" else stale_s
        return limit_s is None or now_s - stream.sighting.first_seen_s <= limit_s

    best = best_stream((s for s in pair.streams if is_fresh(s)), policy)
    if best is None:
        return None
    return _Known(priced_us(best, policy), best.deviation_us, "measured", best.sighting.first_seen_s)


def _known(
    pair: ZonePair, state: CostState, fresh: Mapping[ZonePair, _Known], policy: CostPolicy, not_before_s: float
) -> _Known | None:
    """The pair's own measurement, else the way back (a round trip has both in it), else the last good value."""
    back = (pair[1], pair[0])
    own = fresh.get(pair)
    if own is not None:
        return own
    mirrored = fresh.get(back)
    if mirrored is not None:
        return msgspec.structs.replace(mirrored, basis="mirrored")
    newest: _Known | None = None
    for there in (state.get(pair), state.get(back)):
        if there is None:
            continue
        last = [_Known(priced_us(s, policy), 0.0, "stale", s.sighting.first_seen_s) for s in there.streams]
        if there.last_good_us is not None:
            last.append(_Known(there.last_good_us, 0.0, "stale", there.last_good_s))
        newest = max((newest, *last) if newest else last, key=lambda k: k.seen_s, default=None)
    return newest if newest is not None and newest.seen_s >= not_before_s else None


def cost_of(latency_us: float, policy: CostPolicy) -> int:
    """Latency in units, rounded up, at least 2 and at most 10,000. Never decreases with latency."""
    units = math.ceil(latency_us / policy.unit_us - 1e-9)  # 5000.000001 us is 5 ms, not 6
    return min(max(units, LEAST_ZONE_COST), GREATEST_COST)


def held_cost(in_force: int | None, latency_us: float, deviation_us: float, policy: CostPolicy) -> int:
    """The cost in force while the latency stays near the latencies it stands for, else the latency's own cost.

    Cost c stands for ((c - 1) * unit, c * unit]. Near means within `hysteresis` of its upper end, or twice the link's
    own noise where that is more, but never more than half of it.
    """
    cost = cost_of(latency_us, policy)
    if in_force is None or in_force == cost:
        return cost
    upper_us = in_force * policy.unit_us
    margin_us = max(policy.hysteresis * upper_us, min(2 * deviation_us, upper_us / 2))
    low_us = -math.inf if in_force <= LEAST_ZONE_COST else upper_us - policy.unit_us - margin_us
    high_us = math.inf if in_force >= GREATEST_COST else upper_us + margin_us
    return in_force if low_us < latency_us <= high_us else cost


def region_costs(
    table: Mapping[ZonePair, ZoneCost], zones: Mapping[str, str], policy: CostPolicy
) -> dict[ZonePair, int]:
    """Directed pair of regions -> percentile (nearest rank) of the costs between their zones.

    Costs, not latencies: they already hold still within the noise, so these do as well. Zones without a region, and
    pairs without a cost, do not take part.
    """
    between: dict[ZonePair, list[int]] = defaultdict(list)
    for (origin, destination), entry in table.items():
        regions = (zones.get(origin, ""), zones.get(destination, ""))
        if all(regions) and regions[0] != regions[1]:
            between[regions].append(entry.cost)
    return {
        pair: sorted(costs)[max(1, math.ceil(policy.region_percentile / 100 * len(costs))) - 1]
        for pair, costs in sorted(between.items())
    }
