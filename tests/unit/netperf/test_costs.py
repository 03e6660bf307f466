"""Costs rise with latencies, and do not change within the noise; a missing latency is never 0."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kubekit.errors import ConfigError
from netperf.cost_state import restore_state
from netperf.costs import compute_region_costs
from netperf.latencies import infer_latencies_us
from netperf.measurement import Measurement
from netperf.policy import MAX_NETWORK_COST, CostPolicy, cost_with_hysteresis, latency_to_cost, parse_policy
from tests.unit.netperf.builders import (
    POLICY,
    CostComputer,
    compute_once,
    get_cost_by_pair,
    make_node_sample,
    make_zone_sample,
    make_zone_samples,
    read_cost_and_basis,
)

LATENCIES_US = st.floats(min_value=0.01, max_value=1e8)
COSTS = st.one_of(st.none(), st.integers(2, MAX_NETWORK_COST))
ZONES = st.sampled_from(["ab", "ac", "cd", "db"])


def compute_shortest_us(edges: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """The shortest paths between zones a to d, by the algorithm of Floyd and Warshall."""
    shortest_us = {(x, y): 0.0 if x == y else edges.get((x, y), math.inf) for x in "abcd" for y in "abcd"}
    for via in "abcd":
        for (x, y), us in shortest_us.items():
            shortest_us[x, y] = min(us, shortest_us[x, via] + shortest_us[via, y])
    return shortest_us


@given(COSTS, LATENCIES_US, LATENCIES_US, st.floats(0, 1e6), st.floats(0, 1))
def test_a_cost_never_decreases_with_the_latency(
    current_cost: int | None, latency_us: float, slower_by_us: float, noise_us: float, hysteresis: float
) -> None:
    policy = CostPolicy(hysteresis=hysteresis)
    low_cost = cost_with_hysteresis(current_cost, latency_us, noise_us, policy)
    high_cost = cost_with_hysteresis(current_cost, latency_us + slower_by_us, noise_us, policy)
    assert 2 <= low_cost <= high_cost <= MAX_NETWORK_COST


@pytest.mark.parametrize(
    ("latency_us", "unit_us", "cost"),
    [(1, 1000, 2), (2000, 1000, 2), (2000.01, 1000, 3), (5000.0000001, 1000, 5), (730, 100, 8), (1e9, 1, 10_000)],
)
def test_latency_is_rounded_up_to_units(latency_us: float, unit_us: float, cost: int) -> None:
    assert latency_to_cost(latency_us, CostPolicy(unit_us=unit_us)) == cost


@pytest.mark.parametrize("field", ["unitUs", "percentile", "expireAfterS", "unknownField"])
def test_errors_of_an_invalid_policy_name_the_field(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        parse_policy({field: 0})


@given(st.dictionaries(st.sampled_from(["ab", "ac", "ad", "bc", "bd", "cd"]), LATENCIES_US, min_size=1), LATENCIES_US)
def test_a_slower_pair_makes_no_cost_lower(latency_us_by_pair: dict[str, float], slower_by_us: float) -> None:
    pair, us = next(iter(latency_us_by_pair.items()))
    before = get_cost_by_pair(compute_once(make_zone_samples(latency_us_by_pair)))
    after = get_cost_by_pair(compute_once(make_zone_samples({**latency_us_by_pair, pair: us + slower_by_us})))
    assert before.keys() == after.keys()
    assert all(after[zones] >= cost for zones, cost in before.items())


@pytest.mark.parametrize(
    ("latency_us_by_pair", "latency_us", "cost", "reverse_basis"),
    [({"ab": 5000}, 5000, 5, "mirrored"), ({"ab": 5000, "ba": 5400}, 5200, 6, "measured")],
    ids=["one direction", "both directions"],
)
def test_a_round_trip_has_the_same_latency_in_both_directions(
    latency_us_by_pair: dict[str, float], latency_us: float, cost: int, reverse_basis: str
) -> None:
    costs = compute_once(make_zone_samples(latency_us_by_pair))
    assert read_cost_and_basis(costs) == (cost, "measured")
    assert read_cost_and_basis(costs, "ba") == (cost, reverse_basis)
    assert {entry.latency_us for entry in costs.by_zone_pair.values()} == {latency_us}


def test_the_latency_of_zones_is_the_median_of_their_pairs_of_nodes() -> None:
    samples = [
        make_node_sample(origin, destination, us)
        for origin, destination, us in (("a1", "b1", 5000), ("a2", "b1", 5200), ("b3", "a1", 5100))
    ]
    outlier = make_node_sample("a9", "b1", 40_000)
    assert compute_once([outlier, *samples]).by_zone_pair["a", "b"].latency_us == 5100
    standard_error_us = 1.5 * 100 / 3**0.5  # by the median absolute deviation of three latencies
    assert compute_once(samples).by_zone_pair["a", "b"].error_us == pytest.approx(standard_error_us)


def test_the_error_bar_grows_with_the_noise_of_samples() -> None:
    computer = CostComputer()
    computer.compute([make_zone_sample("ab", 5000)])
    costs = computer.compute([make_zone_sample("ab", 5400, sequence=2)], now_s=30)
    standard_error_us = 2 * 200 / 2**0.5  # of two samples, each 200 µs from their median
    assert costs.by_zone_pair["a", "b"].error_us == pytest.approx(standard_error_us)


def test_a_missing_pair_is_inferred_from_the_shortest_path_or_absent() -> None:
    costs = compute_once(make_zone_samples({"ab": 5000, "bc": 7000, "ad": 1000, "dc": 30_000}))
    assert read_cost_and_basis(costs, "ac") == (12, "inferred")
    assert read_cost_and_basis(costs, "ca") == (12, "inferred")
    assert costs.absent_pairs == ()
    costs = compute_once([make_zone_sample("ab", 5000)])
    assert {("a", "c"), ("c", "d")} <= set(costs.absent_pairs)
    assert costs.by_zone_pair.keys() == {("a", "b"), ("b", "a")}


@given(st.dictionaries(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), LATENCIES_US))
def test_inferred_latencies_are_those_of_the_shortest_paths(latency_us_by_pair: dict[tuple[str, str], float]) -> None:
    edges = {pair: us for pair, us in latency_us_by_pair.items() if pair[0] != pair[1]}
    expected = {
        pair: us
        for pair, us in compute_shortest_us(edges).items()
        if pair[0] != pair[1] and pair not in edges and us < math.inf
    }
    inferred = infer_latencies_us("abcd", edges)
    assert inferred.keys() == expected.keys()
    assert all(inferred[pair] == pytest.approx(us) for pair, us in expected.items())


@pytest.mark.parametrize("has_restarted", [False, True])
def test_a_first_measurement_replaces_an_inferred_cost_however_near_it_is(has_restarted: bool) -> None:
    computer = CostComputer()
    samples = make_zone_samples({"ab": 10_000, "bc": 10_000})
    inferred = computer.compute(samples)
    assert read_cost_and_basis(inferred, "ac") == (20, "inferred")
    if has_restarted:
        state = restore_state(get_cost_by_pair(inferred), POLICY, 0.0, inferred.latencies())
        computer = CostComputer(state=state)
    samples.append(make_zone_sample("ac", 18_500))
    assert read_cost_and_basis(computer.compute(samples), "ac") == (19, "measured")
    # The measured cost has hysteresis.
    costs = computer.compute([*samples, make_zone_sample("ac", 19_300, sequence=2)])
    assert costs.by_zone_pair["a", "c"].cost == 19


def test_a_sample_with_loss_is_used_for_the_cost() -> None:
    costs = compute_once([make_zone_sample("ab", 5000, quality_flags=("loss",), loss_ratio=0.05)])
    assert costs.by_zone_pair["a", "b"].cost == 5
    costs = compute_once([make_zone_sample("ab", 5000, prober="datagrams", quality_flags=("loss",), loss_ratio=0.19)])
    assert costs.by_zone_pair["a", "b"].cost == 5 + 205, "with a TCP retransmission after 200 ms and a round trip"


def test_netperfs_percentile_replaces_one_of_too_few_datagrams() -> None:
    datagrams = Measurement(prober="datagrams", test="UDP_RR", p50_us=5000.0, p99_us=5000.0, transactions=60)
    policy = CostPolicy(percentile="p99")
    sample = make_zone_sample("ab", 5000, p99_us=7000.0, datagrams=datagrams, cost_source="datagrams")
    assert compute_once([sample], policy).by_zone_pair["a", "b"].cost == 7
    throttled = replace(sample, measurement=replace(sample.measurement, duration_s=1.0, throttled_us=5e5))
    assert ("a", "b") in compute_once([throttled], policy).absent_pairs


@given(st.dictionaries(ZONES, LATENCIES_US, min_size=1))
def test_computing_costs_twice_changes_nothing(latency_us_by_pair: dict[str, float]) -> None:
    computer, samples = CostComputer(), make_zone_samples(latency_us_by_pair)
    costs = computer.compute(samples)
    state = computer.state
    assert computer.compute(samples) == costs
    assert computer.state == state


@given(st.dictionaries(ZONES, st.floats(2000, 1e6), min_size=1), st.floats(0.97, 1.03))
def test_a_restart_within_the_noise_keeps_measured_costs(latency_us_by_pair: dict[str, float], drift: float) -> None:
    before = compute_once(make_zone_samples(latency_us_by_pair))
    written = get_cost_by_pair(before)
    drifted = make_zone_samples({pair: us * drift for pair, us in latency_us_by_pair.items()}, sequence=2)
    after = CostComputer(state=restore_state(written, POLICY, 0.0)).compute(drifted)
    measured_pairs = [pair for pair, entry in before.by_zone_pair.items() if entry.basis != "inferred"]
    assert [after.by_zone_pair[pair].cost for pair in measured_pairs] == [written[pair] for pair in measured_pairs]


def test_pairs_of_deleted_zones_are_forgotten() -> None:
    computer = CostComputer()
    computer.compute([make_zone_sample("ab", 5000)])
    costs = computer.compute(regions={"a": "r1", "c": "r2"})
    assert computer.state.keys() == {("a", "c"), ("c", "a")}
    assert costs.by_zone_pair == {}


def test_samples_inside_a_zone_and_streams_give_no_cost() -> None:
    costs = compute_once([make_zone_sample("aa", 5000), make_zone_sample("ab", 5000, test="TCP_STREAM")])
    assert costs.by_zone_pair == {}


def test_region_costs_are_the_median_of_the_costs_between_their_zones() -> None:
    costs = compute_once(make_zone_samples({"ac": 10_000, "ad": 20_000, "bc": 30_000, "bd": 90_000, "ab": 2000}))
    assert costs.cost_by_region_pair == {("r1", "r2"): 20, ("r2", "r1"): 20}
    assert compute_region_costs(costs.by_zone_pair, {"a": "", "c": "r2"}) == {}


@pytest.mark.parametrize("test", ["TCP_RR", "UDP_RR"])
def test_external_numbers_are_trusted_less_than_netperf_and_never_disputed(test: str) -> None:
    costs = compute_once([make_zone_sample("ab", 9_000.0, prober="external", test=test)])
    assert read_cost_and_basis(costs) == (9, "measured")
    assert read_cost_and_basis(costs, "ba") == (9, "mirrored")
    assert costs.disputed_links == frozenset()
    external = make_node_sample("a3", "b1", 9_000.0, prober="external", test=test)
    assert compute_once([external, make_zone_sample("ab", 5000)]).by_zone_pair["a", "b"].cost == 5
