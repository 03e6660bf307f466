"""The state of each pair of zones: smoothed latencies, failures, last good latency, current cost; and the choice between pairs of nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from netperf.latencies import Latencies, ZonePair
from netperf.measurement import ProberName, Test
from netperf.policy import MIN_ZONE_COST, CostPolicy
from netperf.sample import Failure, NodeLocation, Sample
from netperf.smoothing import SmoothedLatency, add_sample, replace_newest_sample

INFERRED_ERROR_RATIO = 0.5
"""Error bar of an inferred latency, as a share of the latency. After a restart, a latency with such an error bar counts as inferred."""


class Sighting(msgspec.Struct, frozen=True):
    """A sample's identity, and when a reader first saw it by its own clock, so that the age does not depend on the writer's clock."""

    sequence: int
    taken_at: float
    first_seen_at_s: float


def update_sighting(previous: Sighting | None, sample: Sample, now_s: float, wall_s: float) -> Sighting:
    """The sighting of ``sample``: ``previous`` until the writer writes a new sample.

    Without ``previous``, as after a restart of the reader, the age is by the writer's clock, because an old sample must not become new.

    Args:
        previous: the sighting of the same origin, destination and test, if there is one.
        sample: the sample as read now.
        now_s: the reader's clock, always the same one.
        wall_s: the reader's wall clock, in seconds since 1970.
    """
    if previous is None:
        claimed_age_s = max(0.0, wall_s - sample.taken_at) if sample.taken_at else 0.0
        return Sighting(sample.sequence, sample.taken_at, now_s - claimed_age_s)
    if (previous.sequence, previous.taken_at) == (sample.sequence, sample.taken_at):
        return previous
    return Sighting(sample.sequence, sample.taken_at, now_s)


class NodePairState(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The smoothed latency of one pair of nodes by one prober and test.

    Attributes:
        origin, destination: the node that measured, and the other one.
        prober: the prober of the newest sample.
        test: the netperf test.
        smoothed: the smoothed latency, of the policy's percentile.
        sighting: when the newest sample was first seen.
        added_at_s: time when the newest sample was added, by our clock; another sample within half a round replaces that sample.
        ignored_since_s: time since which the latency is ignored, because others contradict it; None while the latency counts.
    """

    origin: NodeLocation
    destination: NodeLocation
    prober: ProberName
    test: Test
    smoothed: SmoothedLatency
    sighting: Sighting
    added_at_s: float = 0.0
    ignored_since_s: float | None = None

    @property
    def nodes(self) -> tuple[str, str]:
        """Origin node, destination node."""
        return self.origin.node, self.destination.node


class ZonePairState(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The state of a directed pair of zones, which survives changes of its pairs of nodes.

    Attributes:
        node_pairs: states of its pairs of nodes.
        failures: failures of its pairs of nodes that could not be measured.
        cost: the current cost, or the last one before the pair became unreachable; None if there is none.
        last_good_us: the last latency from fresh samples, or the restored one; None if there is none.
        last_good_at_s: time of that latency, by our clock.
        error_us: error bar of that latency.
        is_unreachable: whether no node of one zone reaches the other.
        is_unverified: whether the last good latency is restored, and may have been inferred.
        is_inferred: whether the current cost is inferred; the first measured one replaces it without hysteresis.
        has_full_window: whether the current cost is restored from a measured one, or its pairs of nodes had `WINDOW_SAMPLES` samples each.
        is_disputed: whether its latency is disputed, see `netperf.consensus.Consensus`.
    """

    node_pairs: tuple[NodePairState, ...] = ()
    failures: tuple[Failure, ...] = ()
    cost: int | None = None
    last_good_us: float | None = None
    last_good_at_s: float = 0.0
    error_us: float = 0.0
    is_unreachable: bool = False
    is_unverified: bool = False
    is_inferred: bool = False
    has_full_window: bool = False
    is_disputed: bool = False


CostState = dict[ZonePair, ZonePairState]


def restore_state(
    written_cost_by_pair: Mapping[ZonePair, int], policy: CostPolicy, now_s: float, latencies: Latencies | None = None
) -> CostState:
    """The state after a restart, from the costs and latencies in the NetworkTopology. Costs below `MIN_ZONE_COST` are not restored.

    Hysteresis applies to these costs. A restored latency is stale at once, and expires if nothing measures its pair.
    """
    latencies = latencies or Latencies()
    state: CostState = {}
    for pair, cost in written_cost_by_pair.items():
        if cost < MIN_ZONE_COST:
            continue
        latency_us, error_us = latencies.latency_us(*pair), latencies.error_us_by_pair.get(pair, 0)
        is_inferred = latency_us is not None and error_us >= INFERRED_ERROR_RATIO * latency_us
        restored = ZonePairState(
            cost=cost,
            last_good_us=cost * policy.unit_us if latency_us is None else latency_us,
            last_good_at_s=now_s - policy.stale_after_s - 1,
            error_us=error_us,
            is_unverified=latency_us is None or is_inferred,
            is_inferred=is_inferred,
            has_full_window=not is_inferred,
        )
        # A pair with the cost of unreachable pairs is reachable if it has a latency.
        if pair in latencies.unreachable_pairs or (cost >= policy.unreachable_cost and latency_us is None):
            restored = msgspec.structs.replace(restored, cost=None, last_good_us=None, is_unreachable=True)
        state[pair] = restored
    return state


def resume_state(earlier_state: CostState, restored: CostState) -> CostState:
    """The restored state with the samples, failures and times of an earlier leadership of this process.

    Times come from the earlier state, because a new leadership must not make an old latency younger.

    Args:
        earlier_state: the result of `compute_costs`, by the same clock.
        restored: the result of `restore_state`.
    """
    resumed: CostState = {}
    for pair, new in restored.items():
        old = earlier_state.get(pair, new)
        last_good_at_s = new.last_good_at_s if old.last_good_us is None else min(new.last_good_at_s, old.last_good_at_s)
        resumed[pair] = msgspec.structs.replace(
            new, node_pairs=old.node_pairs, failures=old.failures, last_good_at_s=last_good_at_s
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
    """Add samples and failures to the state.

    Samples within a zone and of streams are left out. A sample changes nothing if it was added before, lacks the policy's percentile, or
    has a flag that the policy does not accept.

    Args:
        samples: all present samples, new or not; pairs of nodes without a sample are forgotten, but last good latencies stay.
        state: the last result of this function, `compute_costs`, `restore_state` or `resume_state`.
        policy: the cost policy.
        now_s: our clock, always the same one.
        wall_s: wall clock, seconds since 1970; used for the age of samples that are seen for the first time.
        failures: all present failures without a newer sample.
        interval_s: length of a probing round; of two samples of a pair of nodes within half a round only the newer counts.
    """
    node_pairs_by_zones: dict[ZonePair, list[NodePairState]] = defaultdict(list)
    for sample in samples:
        if sample.origin.zone == sample.destination.zone or sample.measurement.test == "TCP_STREAM":
            continue
        pair = state.get(sample.zones, ZonePairState())
        expected_us = starting_latency_us(pair, state.get(sample.zones[::-1]))
        before = find_node_pair(sample, pair.node_pairs)
        sighting = update_sighting(before.sighting if before else None, sample, now_s, wall_s)
        node_pair = _update_node_pair(
            sample, before, sighting, policy, expected_us=expected_us, now_s=now_s, replace_within_s=interval_s / 2
        )
        if node_pair is not None:
            node_pairs_by_zones[sample.zones].append(node_pair)
    failures_by_zones: dict[ZonePair, list[Failure]] = defaultdict(list)
    for failure in failures:
        failures_by_zones[failure.origin.zone, failure.destination.zone].append(failure)
    return {
        pair: msgspec.structs.replace(
            state.get(pair, ZonePairState()),
            node_pairs=tuple(node_pairs_by_zones.get(pair, ())),
            failures=tuple(failures_by_zones.get(pair, ())),
        )
        for pair in state.keys() | node_pairs_by_zones.keys() | failures_by_zones.keys()
    }


def starting_latency_us(pair: ZonePairState, reverse: ZonePairState | None) -> float | None:
    """The verified last good latency of either direction, from which a new pair of nodes starts; None if there is none."""
    states = [state for state in (pair, reverse) if state is not None and not state.is_unverified]
    return next((state.last_good_us for state in states if state.last_good_us), None)


def find_node_pair(sample: Sample, node_pairs: Iterable[NodePairState]) -> NodePairState | None:
    """The state of the sample's pair of nodes and test; None if absent. Samples of netperf and of datagrams share a state."""
    nodes, measurement = (sample.origin.node, sample.destination.node), sample.measurement
    for node_pair in node_pairs:
        has_same_source = (node_pair.prober == "external") == (measurement.prober == "external")
        if node_pair.nodes == nodes and node_pair.test == measurement.test and has_same_source:
            return node_pair
    return None


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
    """The state after a sample; ``before`` if the sample has an unaccepted flag, lacks the percentile, or was added before."""
    value_us = sample.percentile_us(policy.percentile)
    if value_us is None or not set(sample.quality_flags) <= set(policy.accept_quality_flags):
        return before
    added_at_s = now_s
    if sample.cost_measurement.prober == "external":
        # Upstream's format has no time: only a changed number shows a new sample.
        if before is not None and value_us != before.smoothed.latency_us:
            sighting = Sighting(0, 0.0, now_s)
        smoothed = SmoothedLatency(latency_us=value_us, recent_us=(value_us,), count=1)
    elif before is None:
        smoothed = add_sample(None, value_us, expected_us)
    elif sighting == before.sighting:
        return before
    elif now_s - before.added_at_s < replace_within_s:
        added_at_s = before.added_at_s
        smoothed = replace_newest_sample(before.smoothed, value_us, expected_us)
    else:
        smoothed = add_sample(before.smoothed, value_us, expected_us)
    return NodePairState(
        origin=sample.origin,
        destination=sample.destination,
        prober=sample.cost_measurement.prober,
        test=sample.measurement.test,
        smoothed=smoothed,
        sighting=sighting,
        added_at_s=added_at_s,
        ignored_since_s=before.ignored_since_s if before else None,
    )


def prober_rank(node_pair: NodePairState) -> int:
    """Rank of a latency's source, lower is better: TCP_RR by our agents, UDP_RR by our agents, numbers of other components."""
    return 2 if node_pair.prober == "external" else int(node_pair.test == "UDP_RR")


def choose_representative(node_pairs: Iterable[NodePairState]) -> NodePairState | None:
    """The pair of nodes with the median latency among those with the best `prober_rank`; None without pairs of nodes."""
    ranked = sorted(node_pairs, key=lambda p: (prober_rank(p), p.smoothed.latency_us, p.origin, p.destination))
    best_ranked = [p for p in ranked if prober_rank(p) == prober_rank(ranked[0])]
    return best_ranked[(len(best_ranked) - 1) // 2] if best_ranked else None
