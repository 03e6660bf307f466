"""Computes the costs of zone pairs: consensus, age, hysteresis, and inference of missing pairs.

`netperf.cost_state.update_state` adds samples and failures to the state of each pair of zones. `compute_costs` turns the state into
costs, and keeps a cost if its latency changed only within the noise. After a restart the state is rebuilt from the samples and from
the costs that were written last, so that a restart changes no cost.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from netperf.consensus import Consensus, Link, NodePairLatency, find_consensus, link_of
from netperf.cost_state import (
    INFERRED_ERROR,
    CostState,
    NodePairState,
    ZonePairState,
    prober_rank,
    representative_node_pair,
    starting_latency_us,
)
from netperf.histogram import nearest_rank
from netperf.latencies import Latencies, ZonePair, infer_latencies_us, round_up_error
from netperf.policy import MAX_NETWORK_COST, MIN_ZONE_COST, CostPolicy
from netperf.smoothing import WINDOW_SAMPLES

Basis = Literal["measured", "mirrored", "stale", "inferred", "unreachable"]
_FreshNodePairs = Mapping[ZonePair, tuple[NodePairState, ...]]
"""See `_fresh_node_pairs`."""

MISSED_ROUNDS = 3
"""No sample is stale before this many rounds."""
UNREACHABLE_FAILURES, UNREACHABLE_FAILURES_SINGLE_REPORTER = 2, 3
"""Failures in a row of every pair of nodes after which a path is unreachable; and the same if one node reports all of them."""
STALE_ERROR, MIN_ERROR_US = 0.1, 5.0
"""Smallest error bar of a stale latency, as a share of it, and of a measured one."""
OUTLIER_REPORT_ROUNDS = 1.5
"""Rounds for which latencies must contradict each other before a node is reported."""


class ZoneCost(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One entry of the cost table.

    Attributes:
        cost: the cost, as in the NetworkTopology.
        latency_us: the latency of the cost, with the effect of loss; for an unreachable pair the last good one, or 0.
        basis: ``measured``; ``mirrored``, measured in the other direction; ``stale``, the last good latency; ``inferred``, from paths
            over other zones; ``unreachable``.
        age_s: age of the newest sample, by our clock; 0 for an inferred latency.
        error_us: error bar of the latency.
        node_pairs: number of pairs of nodes that measured the latency.
    """

    cost: int
    latency_us: float
    basis: Basis
    age_s: float
    error_us: float = 0.0
    node_pairs: int = 0


class ZoneCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of zone pairs and of region pairs.

    Attributes:
        zones: entries by directed pair of zones.
        regions: costs by directed pair of regions.
        absent: pairs without a cost; do not write 0 for them.
        outliers_us: outlier nodes as in `Consensus`, if they were outliers for longer than a round.
        disputed: links whose two reporters contradicted each other for longer than a round.
    """

    zones: dict[ZonePair, ZoneCost]
    regions: dict[ZonePair, int]
    absent: tuple[ZonePair, ...]
    outliers_us: dict[str, float] = {}
    disputed: frozenset[Link] = frozenset()

    def latencies(self) -> Latencies:
        """The latencies of the costs, in whole microseconds."""
        reachable = {pair: entry for pair, entry in self.zones.items() if entry.basis != "unreachable"}
        return Latencies(
            {pair: max(1, round(entry.latency_us)) for pair, entry in reachable.items()},
            {pair: round_up_error(entry.error_us) for pair, entry in reachable.items()},
            frozenset(pair for pair, entry in self.zones.items() if entry.basis == "unreachable"),
        )


class _ZonePairLatency(msgspec.Struct, frozen=True):
    """The latency of a directed pair of zones; ``mad_us`` is its noise, ``seen_s`` the time of the newest sample by our clock."""

    latency_us: float
    mad_us: float
    basis: Basis
    seen_s: float
    error_us: float = 0.0
    node_pairs: int = 0
    has_full_window: bool = False


def compute_costs(
    state: CostState, zones: Mapping[str, str], policy: CostPolicy, now_s: float, *, interval_s: float = 60.0
) -> tuple[ZoneCosts, CostState]:
    """Costs of every directed pair of ``zones``, and the state for the next call.

    Args:
        state: the result of `update_state` or `restore_state`.
        zones: zone -> region (may be empty), of all present zones. Pairs of other zones are forgotten.
        policy: the cost policy.
        now_s: the clock that `update_state` used.
        interval_s: length of a probing round.
    """
    stale_s = max(policy.stale_after_s, MISSED_ROUNDS * interval_s)
    oldest_s = now_s - max(policy.expire_after_s, stale_s)
    pairs = [(a, b) for a in sorted(zones) for b in sorted(zones) if a != b]
    state = {pair: state.get(pair, ZonePairState()) for pair in pairs}
    fresh = {pair: _fresh_node_pairs(state[pair], policy, now_s, stale_s) for pair in pairs}
    unreachable = {link for link in {link_of(*p) for p in pairs} if _is_unreachable(link, state, fresh)}
    consensus = _find_consensus(fresh, state, unreachable)
    measured_latencies = {p: latency for p in pairs if (latency := _measured_latency(p, fresh, consensus)) is not None}
    reachable = [p for p in pairs if link_of(*p) not in unreachable]
    latencies = _choose_latencies(reachable, measured_latencies, state, fresh, oldest_s)
    for pair in pairs:
        if link_of(*pair) in unreachable:
            latencies[pair] = _unreachable_latency(state[pair], now_s)
    table: dict[ZonePair, ZoneCost] = {}
    new_state: CostState = {}
    for pair in pairs:
        old, latency, measured = state[pair], latencies.get(pair), measured_latencies.get(pair)
        cost = None if latency is None else _cost(latency, measured, old, policy)
        if latency is not None and cost is not None:
            table[pair] = ZoneCost(
                cost=cost,
                latency_us=latency.latency_us,
                basis=latency.basis,
                age_s=max(0.0, now_s - latency.seen_s),
                error_us=latency.error_us,
                node_pairs=latency.node_pairs,
            )
        new_state[pair] = msgspec.structs.replace(
            _update_pair(old, latency, measured, cost),
            node_pairs=_mark_ignored(old.node_pairs, consensus, now_s),
            is_disputed=link_of(*pair) in consensus.disputed,
        )
    outliers_us, disputed = _persistent_outliers(consensus, new_state, now_s - OUTLIER_REPORT_ROUNDS * interval_s)
    absent = tuple(pair for pair in pairs if pair not in table)
    regions = region_costs(table, zones)
    return ZoneCosts(zones=table, regions=regions, absent=absent, outliers_us=outliers_us, disputed=disputed), new_state


def _choose_latencies(
    pairs: Sequence[ZonePair],
    measured: Mapping[ZonePair, _ZonePairLatency],
    state: CostState,
    fresh: _FreshNodePairs,
    oldest_s: float,
) -> dict[ZonePair, _ZonePairLatency]:
    """The measured latency of each pair, else the last good one, else an inferred one, else an unverified one."""
    latencies: dict[ZonePair, _ZonePairLatency] = {}
    for pair in pairs:
        if (latency := measured.get(pair) or _last_good(pair, state, fresh, oldest_s)) is not None:
            latencies[pair] = latency
    if len(latencies) < len(pairs):
        zones = sorted({zone for pair in pairs for zone in pair})
        inferred = infer_latencies_us(zones, {pair: latency.latency_us for pair, latency in latencies.items()})
        latencies |= {
            p: _ZonePairLatency(inferred[p], 0.0, "inferred", math.inf, INFERRED_ERROR * inferred[p])
            for p in pairs
            if p in inferred
        }
    for pair in pairs:
        if pair not in latencies and (latency := _last_good(pair, state, fresh, oldest_s, unverified=True)) is not None:
            latencies[pair] = latency
    return latencies


def _unreachable_latency(old: ZonePairState, now_s: float) -> _ZonePairLatency:
    """The last good latency of an unreachable pair, or 0."""
    seen_s = now_s if old.last_good_us is None else old.last_good_s
    return _ZonePairLatency(old.last_good_us or 0.0, 0.0, "unreachable", seen_s)


def _cost(latency: _ZonePairLatency, measured: _ZonePairLatency | None, old: ZonePairState, policy: CostPolicy) -> int:
    """The cost of a latency; a cost that was inferred or rests on the first few samples is replaced without hysteresis."""
    if latency.basis == "unreachable":
        return policy.unreachable_cost
    replaces = measured is not None and (old.is_inferred or (measured.has_full_window and not old.has_full_window))
    return cost_with_hysteresis(None if replaces else old.cost, latency.latency_us, latency.mad_us, policy)


def _update_pair(
    old: ZonePairState, latency: _ZonePairLatency | None, measured: _ZonePairLatency | None, cost: int | None
) -> ZonePairState:
    """The pair's state with its cost and its measured latency."""
    basis = None if latency is None else latency.basis
    is_unreachable = basis == "unreachable"
    is_inferred = basis == "inferred" or (old.is_inferred and measured is None)
    if measured is not None:
        old = msgspec.structs.replace(
            old,
            last_good_us=measured.latency_us,
            last_good_s=measured.seen_s,
            error_us=measured.error_us,
            is_unverified=False,
            has_full_window=old.has_full_window or measured.has_full_window,
        )
    return msgspec.structs.replace(
        old,
        cost=old.cost if is_unreachable else cost,
        is_unreachable=is_unreachable,
        is_inferred=is_inferred and basis not in {None, "unreachable"},
    )


def _persistent_outliers(
    consensus: Consensus, state: CostState, since_s: float
) -> tuple[dict[str, float], frozenset[Link]]:
    """The outliers and the disputed links whose latencies have been ignored since before a time.

    Nodes measure at different times, so after a change they contradict each other for a round.
    """
    ignored = [
        (link_of(*pair), {p.origin.node, p.destination.node})
        for pair, entry in state.items()
        for p in entry.node_pairs
        if p.ignored_since_s is not None and p.ignored_since_s < since_s
    ]
    nodes = {node for _, ends in ignored for node in ends}
    outliers_us = {node: us for node, us in consensus.outliers_us.items() if node in nodes}
    return outliers_us, consensus.disputed & {link for link, _ in ignored}


def _fresh_node_pairs(
    pair: ZonePairState, policy: CostPolicy, now_s: float, stale_s: float
) -> tuple[NodePairState, ...]:
    """The state of each pair of nodes with a sample that is not stale; of several probers the one with the best `prober_rank`."""

    def is_fresh(node_pair: NodePairState) -> bool:
        limit_s = policy.external_stale_after_s if node_pair.prober == "external" else stale_s
        return limit_s is None or now_s - node_pair.sighting.first_seen_s <= limit_s

    chosen: dict[tuple[str, str], NodePairState] = {}
    for node_pair in sorted(filter(is_fresh, pair.node_pairs), key=prober_rank):
        chosen.setdefault((node_pair.origin.node, node_pair.destination.node), node_pair)
    return tuple(chosen.values())


def _is_unreachable(link: Link, state: CostState, fresh: _FreshNodePairs) -> bool:
    """Whether every pair of nodes has failed several times in a row.

    Without samples and failures the result is the last one, because missing results are no recovery.
    """
    directions = (link, link[::-1])
    failures = [failure for pair in directions for failure in state[pair].failures]
    failed_pairs = {(failure.origin.node, failure.destination.node) for failure in failures}
    measured = (p for pair in directions for p in fresh[pair] if p.prober != "external")
    if any((p.origin.node, p.destination.node) not in failed_pairs for p in measured):
        return False
    if not failures:
        return any(state[pair].is_unreachable for pair in directions)
    has_several_reporters = len({failure.origin.node for failure in failures}) > 1
    required = UNREACHABLE_FAILURES if has_several_reporters else UNREACHABLE_FAILURES_SINGLE_REPORTER
    return all(not failure.alive and failure.in_a_row >= required for failure in failures)


def _find_consensus(fresh: _FreshNodePairs, state: CostState, unreachable: set[Link]) -> Consensus:
    latencies = [
        NodePairLatency(p.origin.node, p.destination.node, link_of(*pair), p.smoothed.latency_us)
        for pair, node_pairs in fresh.items()
        if link_of(*pair) not in unreachable
        for p in node_pairs
        if p.prober != "external"
    ]
    links = {link_of(*pair) for pair in fresh}
    agreed_us = {link: us for link in links if (us := starting_latency_us(state[link], state[link[::-1]]))}
    return find_consensus(latencies, agreed_us, {link for link in links if state[link].is_disputed})


def _mark_ignored(node_pairs: Iterable[NodePairState], consensus: Consensus, now_s: float) -> tuple[NodePairState, ...]:
    """The pairs of nodes, with the time since which their latencies are ignored."""
    marked: list[NodePairState] = []
    for node_pair in node_pairs:
        since_s = now_s if node_pair.ignored_since_s is None else node_pair.ignored_since_s
        is_ignored = (node_pair.origin.node, node_pair.destination.node) in consensus.ignored
        marked.append(msgspec.structs.replace(node_pair, ignored_since_s=since_s if is_ignored else None))
    return tuple(marked)


def _measured_latency(pair: ZonePair, fresh: _FreshNodePairs, consensus: Consensus) -> _ZonePairLatency | None:
    """The latency that the pairs of nodes of both directions agree on, else one of another component; None without either."""
    link = link_of(*pair)
    latency_us = consensus.latencies_us.get(link)
    if latency_us is None:
        return _external_latency(pair, fresh)
    measured = [
        p
        for p in (*fresh[pair], *fresh[pair[::-1]])
        if p.prober != "external" and (p.origin.node, p.destination.node) not in consensus.ignored
    ]
    fewest_samples = min(p.smoothed.count for p in measured)
    mad_us = min(p.smoothed.mad_us for p in measured)
    noise_us = 2 * mad_us / math.sqrt(max(1, fewest_samples))
    spread_us = consensus.spread_us.get(link) or 0.0
    error_us = max(noise_us, spread_us * 1.5 / math.sqrt(len(measured)), MIN_ERROR_US)
    if link in consensus.disputed:
        error_us = max(error_us, INFERRED_ERROR * latency_us)
    return _ZonePairLatency(
        latency_us=latency_us,
        mad_us=mad_us,
        basis="measured" if any(p in measured for p in fresh[pair]) else "mirrored",
        seen_s=max(p.sighting.first_seen_s for p in measured),
        error_us=error_us,
        node_pairs=len(measured),
        has_full_window=fewest_samples >= WINDOW_SAMPLES,
    )


def _external_latency(pair: ZonePair, fresh: _FreshNodePairs) -> _ZonePairLatency | None:
    """The latency of another component: of this direction, else of the other one."""
    bases: dict[ZonePair, Basis] = {pair: "measured", pair[::-1]: "mirrored"}
    for direction, basis in bases.items():
        best = representative_node_pair(p for p in fresh[direction] if p.prober == "external")
        if best is not None:
            us = best.smoothed.latency_us
            return _ZonePairLatency(us, 0.0, basis, best.sighting.first_seen_s, STALE_ERROR * us, 1)
    return None


def _last_good(
    pair: ZonePair, state: CostState, fresh: _FreshNodePairs, not_before_s: float, *, unverified: bool = False
) -> _ZonePairLatency | None:
    """The newer one of the last good latencies of both directions, unless it has expired.

    Unverified latencies, which may have been inferred, and ignored ones are used only as a last resort.
    """
    candidates: list[_ZonePairLatency] = []
    for direction, pair_state in ((pair, state[pair]), (pair[::-1], state[pair[::-1]])):
        if pair_state.last_good_us is not None and pair_state.is_unverified == unverified:
            us = pair_state.last_good_us
            candidates.append(
                _ZonePairLatency(us, 0.0, "stale", pair_state.last_good_s, max(pair_state.error_us, STALE_ERROR * us))
            )
        # After a restart, samples may be old already.
        candidates += [
            _ZonePairLatency(us := p.smoothed.latency_us, 0.0, "stale", p.sighting.first_seen_s, STALE_ERROR * us)
            for p in pair_state.node_pairs
            if (p in fresh[direction]) == unverified
        ]
    newest = max(candidates, key=lambda latency: (latency.seen_s, latency.latency_us), default=None)
    return newest if newest is not None and newest.seen_s >= not_before_s else None


def cost_of(latency_us: float, policy: CostPolicy) -> int:
    """The latency in units of the policy, rounded up, from `MIN_ZONE_COST` to `MAX_NETWORK_COST`."""
    units = math.ceil(latency_us / policy.unit_us - 1e-9)  # 5000.000001 us is 5 ms, not 6
    return min(max(units, MIN_ZONE_COST), MAX_NETWORK_COST)


def cost_with_hysteresis(current_cost: int | None, latency_us: float, mad_us: float, policy: CostPolicy) -> int:
    """The current cost while the latency stays near the range of that cost, else `cost_of` the latency.

    The range of cost c is ((c - 1) * unit, c * unit]. It is widened at both ends by `hysteresis` times its upper end. If twice the noise
    (at most half of the upper end) is more, it is widened by that.
    """
    cost = cost_of(latency_us, policy)
    if current_cost is None or current_cost == cost:
        return cost
    upper_us = current_cost * policy.unit_us
    margin_us = max(policy.hysteresis * upper_us, min(2 * mad_us, upper_us / 2))
    low_us = -math.inf if current_cost <= MIN_ZONE_COST else upper_us - policy.unit_us - margin_us
    high_us = math.inf if current_cost >= MAX_NETWORK_COST else upper_us + margin_us
    return current_cost if low_us < latency_us <= high_us else cost


def region_costs(table: Mapping[ZonePair, ZoneCost], zones: Mapping[str, str]) -> dict[ZonePair, int]:
    """Directed pair of regions -> median (nearest rank) of the costs between their zones.

    The median of costs and not of latencies, because hysteresis keeps costs stable. Zones without a region do not count.
    """
    between: dict[ZonePair, list[int]] = defaultdict(list)
    for (origin, destination), entry in table.items():
        regions = (zones.get(origin, ""), zones.get(destination, ""))
        if all(regions) and regions[0] != regions[1]:
            between[regions].append(entry.cost)
    return {pair: sorted(costs)[nearest_rank(50.0, len(costs)) - 1] for pair, costs in sorted(between.items())}
