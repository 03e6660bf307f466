"""A cost without new samples becomes stale, and then absent; restarts and new leaderships make it no younger."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from netperf.cost_state import restore_state, resume_state, update_sighting
from netperf.policy import CostPolicy
from netperf.sample import Failure
from tests.unit.netperf.builders import (
    POLICY,
    WALL_CLOCK_S,
    CostComputer,
    compute_once,
    get_cost_by_pair,
    make_node_sample,
    make_zone_sample,
    read_cost_and_basis,
)

SAMPLE = make_zone_sample("ab", 5000)
FAILURE = Failure(
    origin=SAMPLE.origin, destination=SAMPLE.destination, reason="timeout", sequence=2, taken_at=WALL_CLOCK_S
)


@given(st.floats(min_value=-1e6, max_value=1e6))
def test_age_is_by_the_readers_clock(skew_s: float) -> None:
    written_at_s = WALL_CLOCK_S + skew_s
    older, newer = (make_zone_sample("ab", 5000, minute, taken_at=written_at_s + 60 * minute) for minute in (1, 2))
    sighting = update_sighting(None, older, now_s=100.0, wall_s=WALL_CLOCK_S)
    sighting = update_sighting(sighting, newer, now_s=160.0, wall_s=WALL_CLOCK_S + 60)
    assert sighting.first_seen_at_s == 160.0
    assert update_sighting(sighting, newer, now_s=900.0, wall_s=WALL_CLOCK_S + 800) == sighting


@pytest.mark.parametrize(
    ("ahead_s", "seen_at_s"), [(-500, 500.0), (500, 1000.0)], ids=["by the writer's clock", "unless it is ahead"]
)
def test_a_restart_of_the_reader_makes_no_sample_younger(ahead_s: float, seen_at_s: float) -> None:
    sample = make_zone_sample("ab", 5000, taken_at=WALL_CLOCK_S + ahead_s)
    assert update_sighting(None, sample, now_s=1000.0, wall_s=WALL_CLOCK_S).first_seen_at_s == seen_at_s


def test_a_latency_becomes_stale_and_then_absent() -> None:
    computer = CostComputer()
    computer.compute([SAMPLE], now_s=0)
    assert read_cost_and_basis(computer.compute([SAMPLE], now_s=POLICY.stale_after_s - 1)) == (5, "measured")
    entry = computer.compute([SAMPLE], now_s=301).by_zone_pair["a", "b"]
    assert (entry.cost, entry.basis, entry.age_s) == (5, "stale", 301)
    assert entry.error_us == 500, "a tenth of the latency"
    without_key = CostComputer(state=computer.state).compute(now_s=302)
    assert read_cost_and_basis(without_key) == (5, "stale")
    assert ("a", "b") in computer.compute([SAMPLE], now_s=POLICY.expire_after_s + 1).absent_pairs


def test_nothing_is_stale_before_three_rounds() -> None:
    computer, interval_s = CostComputer(), 594.0
    computer.compute([SAMPLE], now_s=0)
    costs = computer.compute([SAMPLE], now_s=3 * interval_s, interval_s=interval_s)
    assert read_cost_and_basis(costs) == (5, "measured")
    costs = computer.compute([SAMPLE], now_s=3 * interval_s + 1, interval_s=interval_s)
    assert read_cost_and_basis(costs) == (5, "stale")


def test_a_flagged_sample_changes_neither_cost_nor_age() -> None:
    computer = CostComputer()
    computer.compute([SAMPLE], now_s=0)
    costs = computer.compute([make_zone_sample("ab", 50_000, 2, quality_flags=("throttled",))], now_s=200)
    assert costs.by_zone_pair["a", "b"].cost == 5
    costs = computer.compute([make_zone_sample("ab", 50_000, 3, quality_flags=("stalled",))], now_s=400)
    assert read_cost_and_basis(costs) == (5, "stale")


def test_a_stale_latency_stays_the_agreed_one() -> None:
    computer = CostComputer()
    latency_us_by_number = {1: 10_000.0, 2: 10_100.0, 3: 11_100.0}
    samples = [make_node_sample(f"a{number}", f"b{number}", us) for number, us in latency_us_by_number.items()]
    assert computer.compute(samples).by_zone_pair["a", "b"].latency_us == 10_100
    stale = computer.compute(samples, now_s=400.0)
    assert read_cost_and_basis(stale) == (11, "stale")
    assert stale.by_zone_pair["a", "b"].latency_us == 10_100


def test_external_numbers_do_not_age_by_default_and_a_change_is_a_new_sample() -> None:
    computer = CostComputer()
    external = {"prober": "external", "sequence": 0, "taken_at": 0.0, "transactions": None}
    samples = [make_zone_sample("ab", 3000, **external)]  # type: ignore[arg-type]
    computer.compute(samples, now_s=0)
    assert read_cost_and_basis(computer.compute(samples, now_s=1e6)) == (3, "measured")
    changed_samples = [make_zone_sample("ab", 9000, **external)]  # type: ignore[arg-type]
    assert read_cost_and_basis(computer.compute(changed_samples, now_s=1e6 + 1)) == (9, "measured")
    computer.policy = CostPolicy(external_stale_after_s=600)
    assert read_cost_and_basis(computer.compute(changed_samples, now_s=1e6 + 700)) == (9, "stale")


def test_old_samples_after_a_restart_are_stale() -> None:
    computer = CostComputer(state=restore_state({("a", "b"): 5}, POLICY, 0.0))
    costs = computer.compute([make_zone_sample("ab", 5000, taken_at=WALL_CLOCK_S - 1000)])
    assert read_cost_and_basis(costs) == (5, "stale")


def test_repeated_leaderships_do_not_make_a_cost_younger() -> None:
    # A busy API server may end the leadership again and again while agents cannot write.
    computer = CostComputer()
    written = get_cost_by_pair(computer.compute([SAMPLE], now_s=0))
    for now_s in range(1000, 8000, 1000):
        computer.state = resume_state(computer.state, restore_state(written, POLICY, now_s))
        costs = computer.compute(now_s=now_s)
        assert (("a", "b") in costs.by_zone_pair) == (now_s <= POLICY.expire_after_s)


def test_a_new_leadership_uses_the_costs_written_meanwhile() -> None:
    computer = CostComputer()
    computer.compute([SAMPLE], now_s=0)
    restored = restore_state({("a", "b"): 9, ("c", "d"): 4}, POLICY, 100.0)
    resumed = resume_state(computer.state, restored)
    assert resumed["a", "b"].cost == 9
    # Earlier samples keep their age; pairs that only another leader measured are as after a restart.
    assert resumed["a", "b"].node_pairs == computer.state["a", "b"].node_pairs
    assert resumed["c", "d"] == restored["c", "d"]
    assert read_cost_and_basis(CostComputer(state=resumed).compute([SAMPLE], now_s=100.0)) == (5, "measured")


def test_an_unreachable_pair_stays_so_until_an_answer_however_often_agents_restart() -> None:
    computer = CostComputer()
    bases = []
    for failures_in_a_row, has_answered in ((2, False), (3, False), (1, False), (1, True), (2, False)):
        failure = replace(FAILURE, failures_in_a_row=failures_in_a_row, has_answered=has_answered)
        bases.append(read_cost_and_basis(computer.compute([SAMPLE], failures=[failure]))[1])
    assert bases == ["measured", "unreachable", "unreachable", "measured", "measured"]


def test_a_slow_path_with_the_unreachable_cost_is_reachable_after_a_restart() -> None:
    policy = CostPolicy(unreachable_cost=100)
    costs = compute_once([make_zone_sample("ab", 150_000.0)], policy)
    state = restore_state(get_cost_by_pair(costs), policy, 10.0, costs.latencies())
    assert read_cost_and_basis(CostComputer(policy, state).compute(now_s=10.0)) == (150, "stale")
