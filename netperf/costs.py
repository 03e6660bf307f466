"""Prices zone pairs: consensus, age, hysteresis, and inference of missing pairs.

`netperf.memory.update_state` adds samples and failures to the state of each pair of zones; `price` turns that into costs, and
keeps a cost whose latency moved only within the noise. The state is a cache: lost, it is rebuilt from the samples and from what was
written last, so that a restart rewrites nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from netperf.consensus import Consensus, Link, NodePairReading, find_consensus, link_of
from netperf.histogram import rank_of
from netperf.latencies import Latencies, ZonePair, infer_us, two_figures
from netperf.memory import (
    INFERRED_ERROR,
    CostState,
    PairState,
    Stream,
    best_stream,
    preference,
    starting_latency_us,
)
from netperf.policy import GREATEST_COST, MIN_ZONE_COST, CostPolicy
from netperf.smoothing import WINDOW_RUNS

Basis = Literal["measured", "mirrored", "stale", "inferred", "unreachable"]

MISSED_ROUNDS = 3
UNREACHABLE_FAILURES = 2
"""Failures in a row of every failing pair of nodes that make a path dead."""
UNREACHABLE_FAILURES_SINGLE_REPORTER = 3
"""The same if only one node reports them."""
STALE_ERROR, MIN_ERROR_US = 0.1, 5.0
OUTLIER_REPORT_ROUNDS = 1.5
"""Rounds for which readings must contradict each other before a node is named."""


class ZoneCost(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One entry of the cost table.

    Attributes:
        latency_us: the priced latency, penalties included; of an unreachable pair the last known one, or 0.
        basis: ``measured``; ``mirrored``, from the other direction; ``stale``, the last good value; ``inferred``, a path over
            other zones; ``unreachable``, a dead path.
        age_s: age of the measurement, by our clock; 0 for an inferred one.
        error_us: error bar of the latency.
        readings: number of pairs of nodes that measured it.
    """

    cost: int
    latency_us: float
    basis: Basis
    age_s: float
    error_us: float = 0.0
    readings: int = 0


class ZoneCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs by directed pair of zones and of regions; ``absent`` pairs have none, and must not be written as 0.

    Attributes:
        outliers_us: see `Consensus`; only nodes that were outliers for longer than a round.
        disputed: links with two contradicting reporters for longer than a round.
    """

    zones: dict[ZonePair, ZoneCost]
    regions: dict[ZonePair, int]
    absent: tuple[ZonePair, ...]
    outliers_us: dict[str, float] = {}
    disputed: frozenset[Link] = frozenset()

    def count(self, basis: Basis) -> int:
        """Number of zone pairs with this basis."""
        return sum(entry.basis == basis for entry in self.zones.values())

    def latencies(self) -> Latencies:
        """The priced latencies, in whole microseconds."""
        known = {pair: entry for pair, entry in self.zones.items() if entry.basis != "unreachable"}
        return Latencies(
            {pair: max(1, round(entry.latency_us)) for pair, entry in known.items()},
            {pair: two_figures(entry.error_us) for pair, entry in known.items()},
            frozenset(pair for pair, entry in self.zones.items() if entry.basis == "unreachable"),
        )


class _LatencyEstimate(msgspec.Struct, frozen=True):
    """The latency of a directed pair of zones, with its basis and its error bar."""

    latency_us: float
    deviation_us: float
    basis: Basis
    seen_s: float
    error_us: float = 0.0
    readings: int = 0
    full_window: bool = False


def price(
    state: CostState, zones: Mapping[str, str], policy: CostPolicy, now_s: float, *, interval_s: float = 60.0
) -> tuple[ZoneCosts, CostState]:
    """Costs for every directed pair of ``zones``, and the state that remembers them.

    Args:
        state: from `update_state` or `restore`.
        zones: zone -> region (may be empty), of all present zones. Pairs of other zones are forgotten.
        policy: the rules.
        now_s: the clock given to `update_state`.
        interval_s: length of a probing round; nothing is stale before three of them.
    """
    stale_s = max(policy.stale_after_s, MISSED_ROUNDS * interval_s)
    oldest_s = now_s - max(policy.expire_after_s, stale_s)
    pairs = [(a, b) for a in sorted(zones) for b in sorted(zones) if a != b]
    fresh = {p: _fresh_streams(state[p], policy, now_s, stale_s) for p in pairs if p in state}
    dead = {link for link in {link_of(*p) for p in pairs} if _is_dead(link, state, fresh)}
    consensus = _compare_readings(fresh, state, dead)
    good = {p: latency for p in pairs if (latency := _measured_estimate(p, fresh, consensus)) is not None}
    known = _known_latencies([p for p in pairs if link_of(*p) not in dead], good, state, fresh, oldest_s)
    known |= {p: _unreachable_estimate(state.get(p, PairState()), now_s) for p in pairs if link_of(*p) in dead}
    table: dict[ZonePair, ZoneCost] = {}
    after: CostState = {}
    for pair in pairs:
        old, estimate, measured = state.get(pair, PairState()), known.get(pair), good.get(pair)
        cost = None if estimate is None else _cost(estimate, measured, old, policy)
        if estimate is not None and cost is not None:
            table[pair] = ZoneCost(
                cost=cost,
                latency_us=estimate.latency_us,
                basis=estimate.basis,
                age_s=max(0.0, now_s - estimate.seen_s),
                error_us=estimate.error_us,
                readings=estimate.readings,
            )
        after[pair] = msgspec.structs.replace(
            _update_pair(old, estimate, measured, cost),
            streams=_mark_ignored(old.streams, consensus, now_s),
            disputed=link_of(*pair) in consensus.disputed,
        )
    outliers_us, disputed = _persistent_outliers(consensus, after, now_s - OUTLIER_REPORT_ROUNDS * interval_s)
    absent = tuple(pair for pair in pairs if pair not in table)
    regions = region_costs(table, zones)
    return ZoneCosts(zones=table, regions=regions, absent=absent, outliers_us=outliers_us, disputed=disputed), after


def _known_latencies(
    alive: Sequence[ZonePair],
    good: Mapping[ZonePair, _LatencyEstimate],
    state: CostState,
    fresh: Mapping[ZonePair, tuple[Stream, ...]],
    oldest_s: float,
) -> dict[ZonePair, _LatencyEstimate]:
    """The measured latency of each pair, else the last good one, else an inferred one, else an unverified one."""
    known = {p: latency for p in alive if (latency := good.get(p) or _last_good(p, state, fresh, oldest_s)) is not None}
    if len(known) < len(alive):
        zones = sorted({zone for pair in alive for zone in pair})
        inferred = infer_us(zones, {pair: entry.latency_us for pair, entry in known.items()})
        known |= {
            p: _LatencyEstimate(inferred[p], 0.0, "inferred", math.inf, INFERRED_ERROR * inferred[p])
            for p in alive
            if p in inferred
        }
    for pair in (p for p in alive if p not in known):
        if (latency := _last_good(pair, state, fresh, oldest_s, unverified=True)) is not None:
            known[pair] = latency
    return known


def _unreachable_estimate(old: PairState, now_s: float) -> _LatencyEstimate:
    """The entry of a pair whose path is dead."""
    if old.last_good_us is None:
        return _LatencyEstimate(0.0, 0.0, "unreachable", now_s)
    return _LatencyEstimate(old.last_good_us, 0.0, "unreachable", old.last_good_s)


def _cost(estimate: _LatencyEstimate, measured: _LatencyEstimate | None, old: PairState, policy: CostPolicy) -> int:
    """The cost of a latency; hysteresis does not keep a cost that was inferred or rests on the first few runs."""
    if estimate.basis == "unreachable":
        return policy.unreachable_cost
    replaces = measured is not None and (old.is_inferred or (measured.full_window and not old.full_window))
    return held_cost(None if replaces else old.cost, estimate.latency_us, estimate.deviation_us, policy)


def _update_pair(
    old: PairState, estimate: _LatencyEstimate | None, measured: _LatencyEstimate | None, cost: int | None
) -> PairState:
    """The pair's state with its cost and its measured latency."""
    dead = estimate is not None and estimate.basis == "unreachable"
    still_inferred = (estimate is not None and estimate.basis == "inferred") or (old.is_inferred and measured is None)
    if measured is not None:
        old = msgspec.structs.replace(
            old,
            last_good_us=measured.latency_us,
            last_good_s=measured.seen_s,
            error_us=measured.error_us,
            unverified=False,
            full_window=old.full_window or measured.full_window,
        )
    return msgspec.structs.replace(
        old,
        cost=old.cost if dead else cost,
        unreachable=dead,
        is_inferred=still_inferred and estimate is not None and not dead,
    )


def _persistent_outliers(
    consensus: Consensus, state: CostState, since_s: float
) -> tuple[dict[str, float], frozenset[Link]]:
    """The outliers and the disputed links whose readings are ignored since before a time.

    Nodes write at different times, so those that have not seen a change yet contradict those that have.
    """
    ignored = [
        (link_of(*pair), {s.origin.node, s.destination.node})
        for pair, entry in state.items()
        for s in entry.streams
        if s.ignored_since_s is not None and s.ignored_since_s < since_s
    ]
    nodes = {node for _, ends in ignored for node in ends}
    outliers_us = {node: us for node, us in consensus.outliers_us.items() if node in nodes}
    return outliers_us, consensus.disputed & {link for link, _ in ignored}


def _fresh_streams(pair: PairState, policy: CostPolicy, now_s: float, stale_s: float) -> tuple[Stream, ...]:
    """The streams that are not stale, one per pair of nodes: that of the preferred prober."""

    def is_fresh(stream: Stream) -> bool:
        limit_s = policy.external_stale_after_s if stream.prober == "external" else stale_s
        return limit_s is None or now_s - stream.sighting.first_seen_s <= limit_s

    chosen: dict[tuple[str, str], Stream] = {}
    for stream in sorted(filter(is_fresh, pair.streams), key=preference):
        chosen.setdefault((stream.origin.node, stream.destination.node), stream)
    return tuple(chosen.values())


def _is_dead(link: Link, state: CostState, fresh: Mapping[ZonePair, tuple[Stream, ...]]) -> bool:
    """Whether every pair of nodes has failed several times in a row, so that the path is dead.

    Without samples and failures the last state stays, because missing results are no recovery.
    """
    both = (link, (link[1], link[0]))
    failures = [f for pair in both for f in (state[pair].failures if pair in state else ())]
    failing = {(f.origin.node, f.destination.node) for f in failures}
    answering = [
        s
        for pair in both
        for s in fresh.get(pair, ())
        if s.prober != "external" and (s.origin.node, s.destination.node) not in failing
    ]
    if answering:
        return False
    if not failures:
        return any(state[pair].unreachable for pair in both if pair in state)
    runs = UNREACHABLE_FAILURES if len({f.origin.node for f in failures}) > 1 else UNREACHABLE_FAILURES_SINGLE_REPORTER
    return all(not f.alive and f.in_a_row >= runs for f in failures)


def _compare_readings(fresh: Mapping[ZonePair, tuple[Stream, ...]], state: CostState, dead: set[Link]) -> Consensus:
    by_link: dict[Link, list[Stream]] = defaultdict(list)
    for pair, streams in fresh.items():
        by_link[link_of(*pair)] += [s for s in streams if s.prober != "external"]
    readings = [
        NodePairReading(s.origin.node, s.destination.node, link, s.smoothed.estimate_us)
        for link, found in by_link.items()
        if link not in dead
        for s in found
    ]
    agreed_us = {
        link: us for link in by_link if (us := starting_latency_us(state.get(link, PairState()), state.get(link[::-1])))
    }
    return find_consensus(readings, agreed_us, {link for link in by_link if state.get(link, PairState()).disputed})


def _mark_ignored(streams: Iterable[Stream], consensus: Consensus, now_s: float) -> tuple[Stream, ...]:
    """The streams with the time since which their readings are ignored."""
    marked: list[Stream] = []
    for stream in streams:
        is_ignored = (stream.origin.node, stream.destination.node) in consensus.ignored
        since_s = (now_s if stream.ignored_since_s is None else stream.ignored_since_s) if is_ignored else None
        marked.append(msgspec.structs.replace(stream, ignored_since_s=since_s))
    return tuple(marked)


def _measured_estimate(
    pair: ZonePair, fresh: Mapping[ZonePair, tuple[Stream, ...]], consensus: Consensus
) -> _LatencyEstimate | None:
    """The latency that trusted readings of both directions agree on, else numbers of other components."""
    back = (pair[1], pair[0])
    link = link_of(*pair)
    value_us = consensus.values_us.get(link)
    both = (*fresh.get(pair, ()), *fresh.get(back, ()))
    if value_us is None:
        own = [s for s in fresh.get(pair, ()) if s.prober == "external"]
        best = best_stream(own or [s for s in both if s.prober == "external"])
        if best is None:
            return None
        us = best.smoothed.estimate_us
        return _LatencyEstimate(
            us, 0.0, "measured" if own else "mirrored", best.sighting.first_seen_s, STALE_ERROR * us, 1
        )
    measured = [
        s for s in both if s.prober != "external" and (s.origin.node, s.destination.node) not in consensus.ignored
    ]
    deviation_us = min((s.smoothed.deviation_us for s in measured), default=0.0)
    spread_us = consensus.spread_us.get(link)
    noise_us = 2 * deviation_us / math.sqrt(max(1, min(s.smoothed.runs for s in measured) or 1))
    error_us = max(noise_us, (spread_us or 0.0) * 1.5 / math.sqrt(len(measured)), MIN_ERROR_US)
    if link in consensus.disputed:
        error_us = max(error_us, INFERRED_ERROR * value_us)
    basis: Basis = "measured" if any(s in measured for s in fresh.get(pair, ())) else "mirrored"
    return _LatencyEstimate(
        latency_us=value_us,
        deviation_us=deviation_us,
        basis=basis,
        seen_s=max(s.sighting.first_seen_s for s in measured),
        error_us=error_us,
        readings=len(measured),
        full_window=min(s.smoothed.runs for s in measured) >= WINDOW_RUNS,
    )


def _last_good(
    pair: ZonePair,
    state: CostState,
    fresh: Mapping[ZonePair, tuple[Stream, ...]],
    not_before_s: float,
    *,
    unverified: bool = False,
) -> _LatencyEstimate | None:
    """The last good value of the pair or of its other direction, whichever is newer, unless it has expired.

    Unverified values, which may have been inferred, and ignored readings are used only as a last resort.
    """
    known: list[_LatencyEstimate] = []
    for direction in (pair, (pair[1], pair[0])):
        pair_state = state.get(direction)
        if pair_state is None:
            continue
        if pair_state.last_good_us is not None and pair_state.unverified == unverified:
            us = pair_state.last_good_us
            known.append(
                _LatencyEstimate(us, 0.0, "stale", pair_state.last_good_s, max(pair_state.error_us, STALE_ERROR * us))
            )
        # After a restart, samples may be old already.
        known += [
            _LatencyEstimate(us := s.smoothed.estimate_us, 0.0, "stale", s.sighting.first_seen_s, STALE_ERROR * us)
            for s in pair_state.streams
            if (s in fresh.get(direction, ())) == unverified
        ]
    newest = max(known, key=lambda k: (k.seen_s, k.latency_us), default=None)
    return newest if newest is not None and newest.seen_s >= not_before_s else None


def cost_of(latency_us: float, policy: CostPolicy) -> int:
    """Latency in units, rounded up, at least 2 and at most 10,000. Never decreases with latency."""
    units = math.ceil(latency_us / policy.unit_us - 1e-9)  # 5000.000001 us is 5 ms, not 6
    return min(max(units, MIN_ZONE_COST), GREATEST_COST)


def held_cost(current_cost: int | None, latency_us: float, deviation_us: float, policy: CostPolicy) -> int:
    """The current cost while the latency stays near the interval of that cost, else the latency's own cost.

    Cost c has the interval ((c - 1) * unit, c * unit]. Near means within `hysteresis` of its upper end, or within twice the
    link's noise if that is more, but never more than half of it.
    """
    cost = cost_of(latency_us, policy)
    if current_cost is None or current_cost == cost:
        return cost
    upper_us = current_cost * policy.unit_us
    margin_us = max(policy.hysteresis * upper_us, min(2 * deviation_us, upper_us / 2))
    low_us = -math.inf if current_cost <= MIN_ZONE_COST else upper_us - policy.unit_us - margin_us
    high_us = math.inf if current_cost >= GREATEST_COST else upper_us + margin_us
    return current_cost if low_us < latency_us <= high_us else cost


def region_costs(table: Mapping[ZonePair, ZoneCost], zones: Mapping[str, str]) -> dict[ZonePair, int]:
    """Directed pair of regions -> median (nearest rank) of the costs between their zones.

    Costs, not latencies, because hysteresis keeps costs stable. Zones without a region, and pairs without a cost, do not count.
    """
    between: dict[ZonePair, list[int]] = defaultdict(list)
    for (origin, destination), entry in table.items():
        regions = (zones.get(origin, ""), zones.get(destination, ""))
        if all(regions) and regions[0] != regions[1]:
            between[regions].append(entry.cost)
    return {pair: sorted(costs)[rank_of(50.0, len(costs)) - 1] for pair, costs in sorted(between.items())}
