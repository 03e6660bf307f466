"""Computes the costs of zone pairs: consensus, age, hysteresis, and inference of missing pairs.

`netperf.cost_state.update_state` adds samples and failures to the state of each pair of zones. `compute_costs` converts this state to
costs, and keeps a cost while its latency changes only within the hysteresis. A restart changes no cost, because the state is restored from
the samples and from the costs that were written last.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from netperf.consensus import Consensus, NodePairLatency, ZoneLink, find_consensus, link_between
from netperf.cost_state import (
    INFERRED_ERROR_RATIO,
    CostState,
    NodePairState,
    ZonePairState,
    choose_representative,
    prober_rank,
    starting_latency_us,
)
from netperf.histogram import nearest_rank
from netperf.latencies import Latencies, ZonePair, infer_latencies_us, round_up_error
from netperf.policy import CostPolicy, cost_with_hysteresis
from netperf.smoothing import WINDOW_SAMPLES

Basis = Literal["measured", "mirrored", "stale", "inferred", "unreachable"]
_FreshNodePairs = Mapping[ZonePair, tuple[NodePairState, ...]]
"""The result of `_select_fresh_node_pairs` for each directed pair of zones."""

UNREACHABLE_FAILURES, UNREACHABLE_FAILURES_SINGLE_REPORTER = 2, 3
"""A link is unreachable after this many failures in a row of every pair of nodes; the second number is for a single reporter."""
STALE_ERROR_RATIO, MIN_ERROR_US = 0.1, 5.0
"""Smallest error bars: of a stale latency, as a share of the latency, and of a measured latency."""
OUTLIER_REPORT_ROUNDS = 1.5
"""Rounds for which latencies must contradict each other before a node is reported."""


class ZoneCost(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The cost of a directed pair of zones, and the latency behind it.

    Attributes:
        cost: the cost, as in the NetworkTopology.
        latency_us: the latency of the cost, with the delay by loss; of an unreachable pair the last good latency, or 0 without one.
        basis: ``measured``; ``mirrored``, measured in the other direction; ``stale``, the last good latency; ``inferred``, from paths
            over other zones; ``unreachable``.
        age_s: age of the newest sample, or of the last good latency, by our clock; 0 without either.
        error_us: error bar of the latency; 0 if unreachable.
        node_pair_count: number of pairs of nodes that measured the latency; 0 if it is neither ``measured`` nor ``mirrored``.
    """

    cost: int
    latency_us: float
    basis: Basis
    age_s: float
    error_us: float = 0.0
    node_pair_count: int = 0


class ZoneCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of zone pairs and of region pairs.

    Attributes:
        by_zone_pair: an entry for each directed pair of zones.
        cost_by_region_pair: costs of directed pairs of regions.
        absent_pairs: pairs without a cost; do not write 0 for them.
        error_us_by_outlier: as in `Consensus`, of nodes with latencies that are ignored for more than `OUTLIER_REPORT_ROUNDS`.
        disputed_links: as in `Consensus`, of links with such latencies.
    """

    by_zone_pair: dict[ZonePair, ZoneCost]
    cost_by_region_pair: dict[ZonePair, int]
    absent_pairs: tuple[ZonePair, ...]
    error_us_by_outlier: dict[str, float] = {}
    disputed_links: frozenset[ZoneLink] = frozenset()

    def latencies(self) -> Latencies:
        """The latencies of the costs in whole microseconds, with error bars, and the unreachable pairs."""
        reachable = {pair: cost for pair, cost in self.by_zone_pair.items() if cost.basis != "unreachable"}
        return Latencies(
            {pair: max(1, round(cost.latency_us)) for pair, cost in reachable.items()},
            {pair: round_up_error(cost.error_us) for pair, cost in reachable.items()},
            frozenset(self.by_zone_pair.keys() - reachable.keys()),
        )


class _ZonePairLatency(msgspec.Struct, frozen=True):
    """The latency of a directed pair of zones; see `ZoneCost` for common fields.

    Attributes:
        seen_at_s: time of the newest sample or of the last good latency, by our clock; infinite for an inferred latency.
        mad_us: noise of the latency, see `netperf.smoothing`.
        has_full_window: whether each pair of nodes has `WINDOW_SAMPLES` samples.
    """

    latency_us: float
    basis: Basis
    seen_at_s: float
    error_us: float = 0.0
    mad_us: float = 0.0
    node_pair_count: int = 0
    has_full_window: bool = False


def compute_costs(
    state: CostState, region_by_zone: Mapping[str, str], policy: CostPolicy, now_s: float, *, interval_s: float = 60.0
) -> tuple[ZoneCosts, CostState]:
    """Costs of every directed pair of zones, and the state for the next call.

    Args:
        state: the result of `update_state` or `restore_state`.
        region_by_zone: all present zones with their regions, which may be empty. Pairs of other zones are forgotten.
        policy: the cost policy.
        now_s: the clock that `update_state` used.
        interval_s: length of a probing round.
    """
    stale_s = policy.stale_s(interval_s)
    oldest_at_s = now_s - max(policy.expire_after_s, stale_s)
    pairs = [(a, b) for a in sorted(region_by_zone) for b in sorted(region_by_zone) if a != b]
    state = {pair: state.get(pair, ZonePairState()) for pair in pairs}
    fresh_node_pairs = {pair: _select_fresh_node_pairs(state[pair], policy, now_s, stale_s) for pair in pairs}
    links = {link_between(*pair) for pair in pairs}
    unreachable_links = {link for link in links if _is_unreachable(link, state, fresh_node_pairs)}
    consensus = _find_consensus(fresh_node_pairs, state, unreachable_links)
    measured_latencies = {
        p: latency for p in pairs if (latency := _find_measured_latency(p, fresh_node_pairs, consensus)) is not None
    }
    reachable_pairs = [p for p in pairs if link_between(*p) not in unreachable_links]
    latencies = _choose_latencies(reachable_pairs, measured_latencies, state, fresh_node_pairs, oldest_at_s)
    latencies |= {p: _unreachable_latency(state[p], now_s) for p in pairs if link_between(*p) in unreachable_links}
    cost_by_pair: dict[ZonePair, ZoneCost] = {}
    new_state: CostState = {}
    for pair in pairs:
        pair_state, latency, measured = state[pair], latencies.get(pair), measured_latencies.get(pair)
        if latency is not None:
            cost_by_pair[pair] = _compute_cost(latency, pair_state, policy, now_s)
        new_state[pair] = msgspec.structs.replace(
            _update_pair(pair_state, measured, cost_by_pair.get(pair)),
            node_pairs=_mark_ignored(pair_state.node_pairs, consensus, now_s),
            is_disputed=link_between(*pair) in consensus.disputed_links,
        )
    ignored_before_s = now_s - OUTLIER_REPORT_ROUNDS * interval_s
    error_us_by_outlier, disputed_links = _select_persistent_outliers(consensus, new_state, ignored_before_s)
    costs = ZoneCosts(
        by_zone_pair=cost_by_pair,
        cost_by_region_pair=compute_region_costs(cost_by_pair, region_by_zone),
        absent_pairs=tuple(pair for pair in pairs if pair not in cost_by_pair),
        error_us_by_outlier=error_us_by_outlier,
        disputed_links=disputed_links,
    )
    return costs, new_state


def _choose_latencies(
    pairs: Sequence[ZonePair],
    measured_latencies: Mapping[ZonePair, _ZonePairLatency],
    state: CostState,
    fresh_node_pairs: _FreshNodePairs,
    oldest_at_s: float,
) -> dict[ZonePair, _ZonePairLatency]:
    """Choose a latency for each pair: measured, else last good, else inferred, else the last resort of `_find_last_good_latency`."""
    latencies: dict[ZonePair, _ZonePairLatency] = {}
    for pair in pairs:
        latency = measured_latencies.get(pair) or _find_last_good_latency(pair, state, fresh_node_pairs, oldest_at_s)
        if latency is not None:
            latencies[pair] = latency
    if len(latencies) < len(pairs):
        zones = sorted({zone for pair in pairs for zone in pair})
        inferred = infer_latencies_us(zones, {pair: latency.latency_us for pair, latency in latencies.items()})
        latencies |= {
            p: _ZonePairLatency(inferred[p], "inferred", math.inf, INFERRED_ERROR_RATIO * inferred[p])
            for p in pairs
            if p in inferred
        }
    for pair in [pair for pair in pairs if pair not in latencies]:
        latency = _find_last_good_latency(pair, state, fresh_node_pairs, oldest_at_s, unverified=True)
        if latency is not None:
            latencies[pair] = latency
    return latencies


def _unreachable_latency(pair_state: ZonePairState, now_s: float) -> _ZonePairLatency:
    """The last good latency of an unreachable pair, or 0 without one."""
    seen_at_s = now_s if pair_state.last_good_us is None else pair_state.last_good_at_s
    return _ZonePairLatency(pair_state.last_good_us or 0.0, "unreachable", seen_at_s)


def _compute_cost(latency: _ZonePairLatency, pair_state: ZonePairState, policy: CostPolicy, now_s: float) -> ZoneCost:
    """The cost of a latency, with hysteresis against the current cost.

    A measured latency replaces an inferred cost without hysteresis, and so does a latency of full windows a cost from fewer samples.
    """
    is_measured = latency.basis in {"measured", "mirrored"}
    is_more_reliable = pair_state.is_inferred or (latency.has_full_window and not pair_state.has_full_window)
    current_cost = None if is_measured and is_more_reliable else pair_state.cost
    if latency.basis == "unreachable":
        cost = policy.unreachable_cost
    else:
        cost = cost_with_hysteresis(current_cost, latency.latency_us, latency.mad_us, policy)
    return ZoneCost(
        cost=cost,
        latency_us=latency.latency_us,
        basis=latency.basis,
        age_s=max(0.0, now_s - latency.seen_at_s),
        error_us=latency.error_us,
        node_pair_count=latency.node_pair_count,
    )


def _update_pair(pair_state: ZonePairState, measured: _ZonePairLatency | None, cost: ZoneCost | None) -> ZonePairState:
    """The pair's state with its new cost, and with its measured latency if there is one."""
    basis = None if cost is None else cost.basis
    if measured is not None:
        pair_state = msgspec.structs.replace(
            pair_state,
            last_good_us=measured.latency_us,
            last_good_at_s=measured.seen_at_s,
            error_us=measured.error_us,
            is_unverified=False,
            has_full_window=pair_state.has_full_window or measured.has_full_window,
        )
    if basis != "unreachable":  # An unreachable pair keeps its last cost.
        pair_state = msgspec.structs.replace(pair_state, cost=None if cost is None else cost.cost)
    return msgspec.structs.replace(
        pair_state,
        is_unreachable=basis == "unreachable",
        # A stale latency keeps an inferred cost inferred.
        is_inferred=basis == "inferred" or (basis == "stale" and pair_state.is_inferred),
    )


def _select_persistent_outliers(
    consensus: Consensus, state: CostState, ignored_before_s: float
) -> tuple[dict[str, float], frozenset[ZoneLink]]:
    """The outliers and the disputed links with latencies that are ignored since before ``ignored_before_s``.

    Nodes measure at different times, so after a change they contradict each other for a round.
    """
    nodes: set[str] = set()
    links: set[ZoneLink] = set()
    for pair, pair_state in state.items():
        for node_pair in pair_state.node_pairs:
            if node_pair.ignored_since_s is not None and node_pair.ignored_since_s < ignored_before_s:
                nodes.update(node_pair.nodes)
                links.add(link_between(*pair))
    error_us_by_outlier = {node: us for node, us in consensus.error_us_by_outlier.items() if node in nodes}
    return error_us_by_outlier, consensus.disputed_links & links


def _select_fresh_node_pairs(
    pair: ZonePairState, policy: CostPolicy, now_s: float, stale_s: float
) -> tuple[NodePairState, ...]:
    """The state of each pair of nodes with a fresh sample; if several probers have one, the state with the best `prober_rank`."""

    def is_fresh(node_pair: NodePairState) -> bool:
        limit_s = policy.external_stale_after_s if node_pair.prober == "external" else stale_s
        return limit_s is None or now_s - node_pair.sighting.first_seen_at_s <= limit_s

    state_by_nodes: dict[tuple[str, str], NodePairState] = {}
    for node_pair in sorted(filter(is_fresh, pair.node_pairs), key=prober_rank):
        state_by_nodes.setdefault(node_pair.nodes, node_pair)
    return tuple(state_by_nodes.values())


def _is_unreachable(link: ZoneLink, state: CostState, fresh_node_pairs: _FreshNodePairs) -> bool:
    """Whether every pair of nodes has failed several times in a row, without an answer.

    With neither samples of our agents nor failures a link stays as it was, because missing results are not a recovery.
    """
    directions = (link, link[::-1])
    failures = [failure for pair in directions for failure in state[pair].failures]
    failed_pairs = {(failure.origin.node, failure.destination.node) for failure in failures}
    measured_node_pairs = (p for pair in directions for p in fresh_node_pairs[pair] if p.prober != "external")
    if any(p.nodes not in failed_pairs for p in measured_node_pairs):
        return False
    if any(state[pair].is_unreachable for pair in directions):
        # Agents count failures from 1 again after a restart and for new nodes, which is no recovery either.
        return not any(failure.has_answered for failure in failures)
    has_several_reporters = len({failure.origin.node for failure in failures}) > 1
    required_failures = UNREACHABLE_FAILURES if has_several_reporters else UNREACHABLE_FAILURES_SINGLE_REPORTER
    lasting_failures = [f for f in failures if not f.has_answered and f.failures_in_a_row >= required_failures]
    return bool(failures) and lasting_failures == failures


def _find_consensus(fresh_node_pairs: _FreshNodePairs, state: CostState, unreachable_links: set[ZoneLink]) -> Consensus:
    """The consensus of our agents' fresh latencies of the reachable links."""
    latencies = [
        NodePairLatency(*p.nodes, link_between(*pair), p.smoothed.latency_us)
        for pair, node_pairs in fresh_node_pairs.items()
        if link_between(*pair) not in unreachable_links
        for p in node_pairs
        if p.prober != "external"
    ]
    links = {link_between(*pair) for pair in fresh_node_pairs}
    agreed_us_by_link = {link: us for link in links if (us := starting_latency_us(state[link], state[link[::-1]]))}
    return find_consensus(latencies, agreed_us_by_link, {link for link in links if state[link].is_disputed})


def _mark_ignored(node_pairs: Iterable[NodePairState], consensus: Consensus, now_s: float) -> tuple[NodePairState, ...]:
    """The pairs of nodes, with the time since which their latencies are ignored."""
    marked_node_pairs: list[NodePairState] = []
    for node_pair in node_pairs:
        since_s = now_s if node_pair.ignored_since_s is None else node_pair.ignored_since_s
        is_ignored = node_pair.nodes in consensus.ignored_pairs
        marked_node_pairs.append(msgspec.structs.replace(node_pair, ignored_since_s=since_s if is_ignored else None))
    return tuple(marked_node_pairs)


def _find_measured_latency(
    pair: ZonePair, fresh_node_pairs: _FreshNodePairs, consensus: Consensus
) -> _ZonePairLatency | None:
    """The latency that our pairs of nodes of both directions agree on, else that of another component; None if both are missing."""
    link = link_between(*pair)
    latency_us = consensus.latency_us_by_link.get(link)
    if latency_us is None:
        return _find_external_latency(pair, fresh_node_pairs)
    counted_node_pairs = [
        p
        for p in (*fresh_node_pairs[pair], *fresh_node_pairs[pair[::-1]])
        if p.prober != "external" and p.nodes not in consensus.ignored_pairs
    ]
    fewest_samples = min(p.smoothed.count for p in counted_node_pairs)
    mad_us = min(p.smoothed.mad_us for p in counted_node_pairs)
    noise_us = 2 * mad_us / math.sqrt(max(1, fewest_samples))
    # The standard deviation of a normal distribution is 1.5 times its median absolute deviation.
    standard_error_us = 1.5 * consensus.spread_us_by_link[link] / math.sqrt(len(counted_node_pairs))
    error_us = max(noise_us, standard_error_us, MIN_ERROR_US)
    if link in consensus.disputed_links:
        error_us = max(error_us, INFERRED_ERROR_RATIO * latency_us)
    return _ZonePairLatency(
        latency_us=latency_us,
        mad_us=mad_us,
        basis="measured" if any(p in counted_node_pairs for p in fresh_node_pairs[pair]) else "mirrored",
        seen_at_s=max(p.sighting.first_seen_at_s for p in counted_node_pairs),
        error_us=error_us,
        node_pair_count=len(counted_node_pairs),
        has_full_window=fewest_samples >= WINDOW_SAMPLES,
    )


def _find_external_latency(pair: ZonePair, fresh_node_pairs: _FreshNodePairs) -> _ZonePairLatency | None:
    """The latency of this direction by another component, else of the reverse direction; None if both are missing."""
    bases: dict[ZonePair, Basis] = {pair: "measured", pair[::-1]: "mirrored"}
    for direction, basis in bases.items():
        best = choose_representative(p for p in fresh_node_pairs[direction] if p.prober == "external")
        if best is not None:
            latency_us, seen_at_s = best.smoothed.latency_us, best.sighting.first_seen_at_s
            return _ZonePairLatency(latency_us, basis, seen_at_s, STALE_ERROR_RATIO * latency_us, node_pair_count=1)
    return None


def _find_last_good_latency(
    pair: ZonePair, state: CostState, fresh_node_pairs: _FreshNodePairs, oldest_at_s: float, *, unverified: bool = False
) -> _ZonePairLatency | None:
    """The newest last good latency of both directions, else the newest sample that is not fresh; None if it is missing or has expired.

    With ``unverified``, a last resort: the newest of the latencies that may have been inferred, and of the ignored ones.
    """
    candidates: list[_ZonePairLatency] = []
    samples: list[_ZonePairLatency] = []
    for direction, pair_state in ((pair, state[pair]), (pair[::-1], state[pair[::-1]])):
        if pair_state.last_good_us is not None and pair_state.is_unverified == unverified:
            us = pair_state.last_good_us
            error_us = max(pair_state.error_us, STALE_ERROR_RATIO * us)
            candidates.append(_ZonePairLatency(us, "stale", pair_state.last_good_at_s, error_us))
        # After a restart, samples may be old already. The consensus ignores the fresh samples of a pair without a measured latency.
        fresh = fresh_node_pairs[direction]
        samples += [
            _ZonePairLatency(us := p.smoothed.latency_us, "stale", p.sighting.first_seen_at_s, STALE_ERROR_RATIO * us)
            for p in (fresh if unverified else [p for p in pair_state.node_pairs if p not in fresh])
        ]
    if unverified or not candidates:
        # Otherwise such a sample was ignored, or the last good latency contains it.
        candidates += samples
    newest = max(candidates, key=lambda latency: (latency.seen_at_s, latency.latency_us), default=None)
    return newest if newest is not None and newest.seen_at_s >= oldest_at_s else None


def compute_region_costs(
    cost_by_pair: Mapping[ZonePair, ZoneCost], region_by_zone: Mapping[str, str]
) -> dict[ZonePair, int]:
    """Cost of each directed pair of different regions: the median (nearest rank) of the costs between their zones.

    Costs have hysteresis, so their median is more stable than that of latencies. Zones without a region do not count.
    """
    zone_costs_by_regions: dict[ZonePair, list[int]] = defaultdict(list)
    for (origin, destination), zone_cost in cost_by_pair.items():
        regions = (region_by_zone.get(origin, ""), region_by_zone.get(destination, ""))
        if all(regions) and regions[0] != regions[1]:
            zone_costs_by_regions[regions].append(zone_cost.cost)
    return {
        pair: sorted(costs)[nearest_rank(50.0, len(costs)) - 1] for pair, costs in sorted(zone_costs_by_regions.items())
    }
