"""Costs rise with latencies, do not change within the noise, and become stale with age; a missing latency is never 0."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from netperf.cost_state import CostState, restore_state, resume_state, update_state
from netperf.costs import ZoneCosts, compute_costs, compute_region_costs
from netperf.latencies import infer_latencies_us
from netperf.measurement import Measurement
from netperf.policy import CostPolicy
from netperf.sample import Failure, NodeLocation, Sample
from netperf.smoothing import WINDOW_SAMPLES

POLICY = CostPolicy()
ZONES = {"a": "r1", "b": "r1", "c": "r2", "d": "r2"}
WALL_S = 1.7e9
LATENCIES_US = st.floats(min_value=0.01, max_value=1e8)


def node_sample(origin: str, destination: str, us: float | None, sequence: int = 1, **fields: object) -> Sample:
    """A sample of two nodes, whose names begin with the names of their zones."""
    measurement = Measurement(prober="netperf", test="TCP_RR", p50_us=us, p90_us=us, transactions=1000)
    first, second = (NodeLocation(node, node[0], ZONES.get(node[0], "")) for node in (origin, destination))
    sample = Sample(origin=first, destination=second, measurement=measurement, sequence=sequence, taken_at=WALL_S)
    of_measurement = {k: v for k, v in fields.items() if k in Measurement.__struct_fields__}
    of_sample = {k: v for k, v in fields.items() if k not in of_measurement}
    return replace(sample, measurement=replace(measurement, **of_measurement), **of_sample)


def zone_sample(from_zone: str, to_zone: str, us: float | None, sequence: int = 1, **fields: object) -> Sample:
    """A sample of the first nodes of two zones."""
    return node_sample(f"{from_zone}1", f"{to_zone}1", us, sequence, **fields)


def zone_samples(us_by_pair: Mapping[str, float], sequence: int = 1) -> list[Sample]:
    """A sample of each pair of zones, which is written as two letters."""
    return [zone_sample(pair[0], pair[1], us, sequence) for pair, us in us_by_pair.items()]


def compute(
    samples: Iterable[Sample], state: CostState | None = None, policy: CostPolicy = POLICY, now_s: float = 0.0
) -> tuple[ZoneCosts, CostState]:
    """Add samples to the state, and compute costs; returns the costs and the new state."""
    updated = update_state(samples, state or {}, policy, now_s, WALL_S)
    return compute_costs(updated, ZONES, policy, now_s)


def cost_and_basis(costs: ZoneCosts, pair: str = "ab") -> tuple[int, str]:
    entry = costs.by_zone_pair[pair[0], pair[1]]
    return entry.cost, entry.basis


def test_ignored_latencies_count_neither_for_age_nor_for_node_pairs() -> None:
    agreeing = [node_sample("a1", "b1", 2000.0), node_sample("a2", "b2", 2000.0)]
    _, state = compute([*agreeing, node_sample("a3", "b3", 9000.0)])
    costs, _ = compute([*agreeing, node_sample("a3", "b3", 9000.0, 2)], state, now_s=60.0)
    entry = costs.by_zone_pair["a", "b"]
    assert (entry.latency_us, entry.node_pair_count, entry.age_s) == (2000.0, 2, 60.0)


@given(st.dictionaries(st.sampled_from(["ab", "ac", "ad", "bc", "bd", "cd"]), LATENCIES_US, min_size=1), LATENCIES_US)
def test_a_slower_pair_makes_no_cost_lower(measured: dict[str, float], slower_by_us: float) -> None:
    before, _ = compute(zone_samples(measured))
    pair, us = next(iter(measured.items()))
    after, _ = compute(zone_samples({**measured, pair: us + slower_by_us}))
    assert before.by_zone_pair.keys() == after.by_zone_pair.keys()
    assert all(after.by_zone_pair[zones].cost >= entry.cost for zones, entry in before.by_zone_pair.items())


@pytest.mark.parametrize(
    ("measured", "latency_us", "cost", "reverse_basis"),
    [({"ab": 5000}, 5000, 5, "mirrored"), ({"ab": 5000, "ba": 5400}, 5200, 6, "measured")],
    ids=["one direction", "both directions"],
)
def test_a_round_trip_has_the_same_latency_in_both_directions(
    measured: dict[str, float], latency_us: float, cost: int, reverse_basis: str
) -> None:
    costs, _ = compute(zone_samples(measured))
    assert cost_and_basis(costs) == (cost, "measured")
    assert cost_and_basis(costs, "ba") == (cost, reverse_basis)
    assert {entry.latency_us for entry in costs.by_zone_pair.values()} == {latency_us}


def test_a_missing_pair_is_inferred_from_the_shortest_path_or_absent() -> None:
    costs, _ = compute(zone_samples({"ab": 5000, "bc": 7000, "ad": 1000, "dc": 30_000}))
    assert cost_and_basis(costs, "ac") == (12, "inferred")
    assert cost_and_basis(costs, "ca") == (12, "inferred")
    assert costs.absent_pairs == ()
    costs, _ = compute([zone_sample("a", "b", 5000)])
    assert {("a", "c"), ("c", "d")} <= set(costs.absent_pairs)
    assert costs.by_zone_pair.keys() == {("a", "b"), ("b", "a")}


@pytest.mark.parametrize("has_restarted", [False, True])
def test_a_first_measurement_replaces_an_inferred_cost_however_near_it_is(has_restarted: bool) -> None:
    samples = zone_samples({"ab": 10_000, "bc": 10_000})
    before, state = compute(samples)
    assert cost_and_basis(before, "ac") == (20, "inferred")
    if has_restarted:
        state = restore_state({p: e.cost for p, e in before.by_zone_pair.items()}, POLICY, 0.0, before.latencies())
    after, state = compute([*samples, zone_sample("a", "c", 18_500)], state)
    assert cost_and_basis(after, "ac") == (19, "measured")
    # The measured cost has hysteresis.
    again, _ = compute([*samples, zone_sample("a", "c", 18_500), zone_sample("a", "c", 19_300, sequence=2)], state)
    assert again.by_zone_pair["a", "c"].cost == 19


@given(st.dictionaries(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), LATENCIES_US))
def test_inferred_latencies_agree_with_floyd_and_warshall(measured: dict[tuple[str, str], float]) -> None:
    edges = {pair: us for pair, us in measured.items() if pair[0] != pair[1]}
    best = {(a, b): 0.0 if a == b else edges.get((a, b), math.inf) for a in "abcd" for b in "abcd"}
    for k in "abcd":
        for a in "abcd":
            for b in "abcd":
                best[a, b] = min(best[a, b], best[a, k] + best[k, b])
    inferred = infer_latencies_us("abcd", edges)
    expected = {p: us for p, us in best.items() if p[0] != p[1] and p not in edges and us < math.inf}
    assert inferred.keys() == expected.keys()
    assert all(inferred[pair] == pytest.approx(us) for pair, us in expected.items())


def test_a_latency_becomes_stale_and_then_absent() -> None:
    samples = [zone_sample("a", "b", 5000)]
    _, state = compute(samples, now_s=0)
    costs, state = compute(samples, state, now_s=299)
    assert cost_and_basis(costs) == (5, "measured")
    costs, state = compute(samples, state, now_s=301)
    entry = costs.by_zone_pair["a", "b"]
    assert (entry.cost, entry.basis, entry.age_s) == (5, "stale", 301)
    assert entry.error_us == 500, "a tenth of the latency"
    without_key, _ = compute([], state, now_s=302)
    assert cost_and_basis(without_key) == (5, "stale")
    costs, state = compute(samples, state, now_s=3601)
    assert ("a", "b") in costs.absent_pairs


def test_nothing_is_stale_before_three_rounds() -> None:
    samples = [zone_sample("a", "b", 5000)]
    state = update_state(samples, {}, POLICY, 0.0, WALL_S)
    for now_s, basis in ((3 * 594.0, "measured"), (3 * 594.0 + 1, "stale")):
        costs, state = compute_costs(state, ZONES, POLICY, now_s, interval_s=594.0)
        assert cost_and_basis(costs) == (5, basis)


def test_old_samples_after_a_restart_are_stale() -> None:
    state = restore_state({("a", "b"): 5}, POLICY, 0.0)
    state = update_state([zone_sample("a", "b", 5000, taken_at=WALL_S - 1000)], state, POLICY, 0.0, WALL_S)
    costs, _ = compute_costs(state, ZONES, POLICY, 0.0)
    assert cost_and_basis(costs) == (5, "stale")


def test_repeated_leaderships_do_not_make_a_cost_younger() -> None:
    # A busy API server may end the leadership again and again while agents cannot write.
    _, state = compute([zone_sample("a", "b", 5000)], now_s=0)
    for now_s in range(1000, 8000, 1000):
        written = {("a", "b"): 5, ("b", "a"): 5}
        costs, state = compute([], resume_state(state, restore_state(written, POLICY, now_s)), now_s=now_s)
        assert (("a", "b") in costs.by_zone_pair) == (now_s <= POLICY.expire_after_s)


def test_a_new_leadership_uses_the_costs_written_meanwhile() -> None:
    samples = [zone_sample("a", "b", 5000)]
    _, state = compute(samples, now_s=0)
    resumed = resume_state(state, restore_state({("a", "b"): 9, ("c", "d"): 4}, POLICY, 100.0))
    assert resumed["a", "b"].cost == 9
    # Earlier samples keep their age; pairs that only another leader measured are as after a restart.
    assert resumed["a", "b"].node_pairs == state["a", "b"].node_pairs
    assert resumed["c", "d"] == restore_state({("c", "d"): 4}, POLICY, 100.0)["c", "d"]
    costs, _ = compute(samples, resumed, now_s=100.0)
    assert cost_and_basis(costs) == (5, "measured")


def test_a_flagged_sample_changes_neither_cost_nor_age() -> None:
    _, state = compute([zone_sample("a", "b", 5000)], now_s=0)
    costs, state = compute([zone_sample("a", "b", 50_000, 2, quality_flags=("throttled",))], state, now_s=200)
    assert costs.by_zone_pair["a", "b"].cost == 5
    costs, state = compute([zone_sample("a", "b", 50_000, 3, quality_flags=("stalled",))], state, now_s=400)
    assert cost_and_basis(costs) == (5, "stale")


def test_a_sample_with_loss_is_used_for_the_cost() -> None:
    costs, _ = compute([zone_sample("a", "b", 5000, quality_flags=("loss",), loss_ratio=0.05)])
    assert costs.by_zone_pair["a", "b"].cost == 5
    costs, _ = compute([zone_sample("a", "b", 5000, prober="datagrams", quality_flags=("loss",), loss_ratio=0.19)])
    assert costs.by_zone_pair["a", "b"].cost == 5 + 205, "with a TCP retransmission after 200 ms and a round trip"


def test_netperfs_percentile_replaces_one_of_too_few_datagrams() -> None:
    datagrams = Measurement(prober="datagrams", test="UDP_RR", p50_us=5000.0, p99_us=5000.0, transactions=60)
    policy = CostPolicy(percentile="p99")
    netperf = zone_sample("a", "b", 5000, p99_us=7000.0, datagrams=datagrams, cost_source="datagrams")
    assert compute([netperf], policy=policy)[0].by_zone_pair["a", "b"].cost == 7
    throttled = replace(netperf, measurement=replace(netperf.measurement, duration_s=1.0, throttled_us=5e5))
    assert ("a", "b") in compute([throttled], policy=policy)[0].absent_pairs


@given(st.dictionaries(st.sampled_from(["ab", "ac", "cd", "db"]), LATENCIES_US, min_size=1))
def test_computing_costs_twice_changes_nothing(measured: dict[str, float]) -> None:
    once = compute(zone_samples(measured))
    assert compute(zone_samples(measured), once[1]) == once


@given(
    st.dictionaries(st.sampled_from(["ab", "ac", "cd", "db"]), st.floats(2000, 1e6), min_size=1), st.floats(0.97, 1.03)
)
def test_a_restart_within_the_noise_writes_nothing(measured: dict[str, float], drift: float) -> None:
    before, _ = compute(zone_samples(measured))
    written = {pair: entry.cost for pair, entry in before.by_zone_pair.items()}
    drifted = {pair: us * drift for pair, us in measured.items()}
    after, _ = compute(zone_samples(drifted, sequence=2), restore_state(written, POLICY, 0.0))
    for pair, entry in after.by_zone_pair.items():
        if before.by_zone_pair[pair].basis != "inferred":
            assert entry.cost == written[pair]


def test_the_latency_of_zones_is_the_median_of_their_pairs_of_nodes() -> None:
    samples = [node_sample("a1", "b1", 5000), node_sample("a2", "b1", 5200), node_sample("b3", "a1", 5100)]
    outlier = node_sample("a9", "b1", 40_000)
    costs, _ = compute([outlier, *samples])
    assert costs.by_zone_pair["a", "b"].latency_us == 5100
    costs, _ = compute(samples)
    standard_error_us = 1.5 * 100 / 3**0.5  # by the median absolute deviation of three latencies
    assert costs.by_zone_pair["a", "b"].error_us == pytest.approx(standard_error_us)


def test_the_error_bar_grows_with_the_noise_of_samples() -> None:
    _, state = compute([zone_sample("a", "b", 5000)])
    costs, _ = compute([zone_sample("a", "b", 5400, sequence=2)], state, now_s=30)
    assert costs.by_zone_pair["a", "b"].error_us == pytest.approx(2 * 200 / 2**0.5)


def test_external_numbers_do_not_age_by_default_and_a_change_is_a_new_sample() -> None:
    first, changed = (
        zone_sample("a", "b", us, prober="external", sequence=0, taken_at=0.0, transactions=None) for us in (3000, 9000)
    )
    _, state = compute([first], now_s=0)
    costs, state = compute([first], state, now_s=1e6)
    assert cost_and_basis(costs) == (3, "measured")
    costs, state = compute([changed], state, now_s=1e6 + 1)
    assert cost_and_basis(costs) == (9, "measured")
    costs, _ = compute([changed], state, policy=CostPolicy(external_stale_after_s=600), now_s=1e6 + 700)
    assert cost_and_basis(costs) == (9, "stale")


def test_pairs_of_deleted_zones_are_forgotten() -> None:
    _, state = compute([zone_sample("a", "b", 5000)])
    costs, state = compute_costs(state, {"a": "r1", "c": "r2"}, POLICY, 0.0)
    assert set(state) == {("a", "c"), ("c", "a")}
    assert costs.by_zone_pair == {}


def test_samples_inside_a_zone_and_streams_give_no_cost() -> None:
    costs, _ = compute([zone_sample("a", "a", 5000), zone_sample("a", "b", 5000, test="TCP_STREAM")])
    assert costs.by_zone_pair == {}


def test_region_costs_are_the_median_of_the_costs_between_their_zones() -> None:
    measured = {"ac": 10_000, "ad": 20_000, "bc": 30_000, "bd": 90_000, "ab": 2000}
    costs, _ = compute(zone_samples(measured))
    assert costs.cost_by_region_pair == {("r1", "r2"): 20, ("r2", "r1"): 20}
    assert compute_region_costs(costs.by_zone_pair, {"a": "", "c": "r2"}) == {}


def test_a_slow_path_with_the_unreachable_cost_is_reachable_after_a_restart() -> None:
    policy = CostPolicy(unreachable_cost=100)
    costs, _ = compute([zone_sample("a", "b", 150_000.0)], policy=policy)
    written = {pair: entry.cost for pair, entry in costs.by_zone_pair.items()}
    state = restore_state(written, policy, 10.0, costs.latencies())
    again, _ = compute([], state, policy, 10.0)
    assert cost_and_basis(again) == (150, "stale")


@pytest.mark.parametrize("test", ["TCP_RR", "UDP_RR"])
def test_external_numbers_are_trusted_less_than_netperf_and_never_disputed(test: str) -> None:
    costs, _ = compute([zone_sample("a", "b", 9_000.0, prober="external", test=test)])
    assert cost_and_basis(costs) == (9, "measured")
    assert cost_and_basis(costs, "ba") == (9, "mirrored")
    assert costs.disputed_links == frozenset()
    costs, _ = compute([node_sample("a3", "b1", 9_000.0, prober="external", test=test), zone_sample("a", "b", 5000)])
    assert costs.by_zone_pair["a", "b"].cost == 5, "netperf is trusted more"


def test_latencies_of_an_outlier_do_not_replace_the_last_good_latency() -> None:
    def samples_of_a1(to_b1_us: float, to_b2_us: float, sequence: int) -> list[Sample]:
        return [node_sample("a1", "b1", to_b1_us, sequence), node_sample("a1", "b2", to_b2_us, sequence)]

    _, state = compute(samples_of_a1(20_000.0, 20_000.0, 1))
    _, state = compute(samples_of_a1(1_000.0, 5_600.0, 2), state, now_s=60.0)
    for order in (1, -1):
        _, state = compute(samples_of_a1(1_000.0, 5_600.0, 3)[::order], state, now_s=120.0)
        samples = samples_of_a1(1_000.0, 5_600.0, 4)[::order]
        costs, later = compute(samples, state, now_s=240.0)
        assert set(costs.error_us_by_outlier) == {"a1"}
        for later_costs in (costs, compute(samples, later, now_s=640.0)[0]):
            entry = later_costs.by_zone_pair["a", "b"]
            assert (entry.cost, entry.latency_us, entry.basis) == (20, 20_000.0, "stale")


def test_a_stale_latency_stays_the_agreed_one() -> None:
    samples = [node_sample(f"a{n}", f"b{n}", us) for n, us in ((1, 10_000.0), (2, 10_100.0), (3, 11_100.0))]
    fresh, state = compute(samples)
    stale, _ = compute(samples, state, now_s=400.0)
    assert cost_and_basis(stale) == (11, "stale")
    assert stale.by_zone_pair["a", "b"].latency_us == fresh.by_zone_pair["a", "b"].latency_us == 10_100.0


def test_an_unreachable_pair_stays_so_until_an_answer_however_often_agents_restart() -> None:
    def is_unreachable(
        state: CostState, failures_in_a_row: int, *, has_answered: bool = False
    ) -> tuple[bool, CostState]:
        sample = zone_sample("a", "b", 5000)
        failure = Failure(
            origin=sample.origin,
            destination=sample.destination,
            reason="timeout",
            failures_in_a_row=failures_in_a_row,
            has_answered=has_answered,
            sequence=2,
            taken_at=WALL_S,
        )
        updated = update_state([sample], state, POLICY, 0.0, WALL_S, failures=[failure])
        costs, state = compute_costs(updated, ZONES, POLICY, 0.0)
        return cost_and_basis(costs)[1] == "unreachable", state

    state: CostState = {}
    outcomes: list[bool] = []
    for failures_in_a_row, has_answered in ((2, False), (3, False), (1, False), (1, True), (2, False)):
        outcome, state = is_unreachable(state, failures_in_a_row, has_answered=has_answered)
        outcomes.append(outcome)
    assert outcomes == [False, True, True, False, False]


def test_a_dispute_ends_at_a_lower_limit_than_it_begins() -> None:
    """It begins above a difference of 12 % of the larger latency, and ends below 0.6 of that."""
    steps_us = [11_200, 11_500, 11_200, 10_900, 10_400, 11_200]
    state, disputes = None, []
    for sequence in range(WINDOW_SAMPLES * len(steps_us)):
        samples = zone_samples({"ab": 10_000, "ba": steps_us[sequence // WINDOW_SAMPLES]}, sequence)
        costs, state = compute(samples, state, now_s=60.0 * sequence)
        disputes.append(bool(costs.disputed_links))
    after_steps = disputes[WINDOW_SAMPLES - 1 :: WINDOW_SAMPLES]
    assert after_steps == [False, True, True, True, False, False], "11.2 ms begins no dispute, and ends none"


def test_a_forged_latency_beside_two_honest_ones_makes_no_honest_node_an_outlier() -> None:
    """Each link has one forged latency, of a1, and two honest ones, of a2 and its peers."""
    forged = [("a1", "b1", 1_400.0), ("a1", "c1", 1_500.0)]
    honest = [("a2", "b2", 21_100.0), ("a2", "c2", 21_900.0), ("b2", "a2", 20_800.0), ("c2", "a2", 21_800.0)]
    samples = [node_sample(*latency) for latency in (*forged, *honest)]
    _, state = compute(samples)
    costs, _ = compute(samples, state, now_s=120.0)
    assert set(costs.error_us_by_outlier) == {"a1"}
    assert costs.by_zone_pair["a", "b"].latency_us == pytest.approx(21_000, rel=0.02)
    assert costs.by_zone_pair["c", "a"].latency_us == pytest.approx(21_850, rel=0.02)
