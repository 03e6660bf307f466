"""A probe runs in its slot of each round, and the mean bandwidth of streams is limited."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netperf.pacing import StreamRun, choose_test, find_next_run, may_stream, probe_start_s
from netperf.plans import ProbeSettings
from tests.unit.netperf.probe_plans import make_plan

PLAN = make_plan([1] * 9, node_pairs=1, extra_tests=("UDP_RR",))
BUSIEST = max(PLAN.plan_by_zone.values(), key=lambda p: len(p.probes))
NODE = BUSIEST.probes[0].origin.node


def test_a_round_runs_each_probe_of_the_node_once() -> None:
    now_s, runs = BUSIEST.interval_s * 1000, []
    while (run := find_next_run(BUSIEST, NODE, now_s)) is not None and run.round_number == 1000:
        runs.append(run)
        now_s = run.starts_at_s + BUSIEST.settings.duration_s
    assert [run.probe for run in runs] == sorted(
        (p for p in BUSIEST.probes_from(NODE) if p.pair_index == 0), key=lambda p: p.slot
    )
    assert [r.test for r in runs] == [choose_test(BUSIEST.settings, r.probe, 1000) for r in runs]
    assert find_next_run(BUSIEST, "elsewhere", 0.0) is None


@given(st.floats(min_value=0, max_value=4e9))
def test_the_next_run_is_within_two_rounds(now_s: float) -> None:
    run = find_next_run(BUSIEST, NODE, now_s)
    assert run is not None
    assert now_s <= run.starts_at_s <= now_s + 2 * BUSIEST.interval_s


@given(st.integers(0, 10**8))
def test_probes_that_touch_the_same_node_never_overlap(round_number: int) -> None:
    spans_by_node: dict[str, list[tuple[float, float]]] = {}
    for plan in PLAN.plan_by_zone.values():
        for probe in plan.probes:
            begin = probe_start_s(plan, probe, round_number)
            for node in probe.nodes:
                spans_by_node.setdefault(node, []).append((begin, begin + plan.settings.duration_s))
    for spans in spans_by_node.values():
        spans.sort()
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))


def test_jitter_differs_from_round_to_round() -> None:
    probe = BUSIEST.probes[0]
    offsets = {probe_start_s(BUSIEST, probe, n) - n * BUSIEST.interval_s for n in range(20)}
    assert len(offsets) > 15
    assert max(offsets) - min(offsets) <= BUSIEST.interval_s / BUSIEST.slot_count


@pytest.mark.parametrize(
    ("past_runs", "is_allowed"),
    [([], True), ([StreamRun(990, 7.4e8)], True), ([StreamRun(990, 7.6e8)], False), ([StreamRun(300, 7.6e8)], True)],
)
def test_streams_stop_at_their_mean_bandwidth(past_runs: list[StreamRun], is_allowed: bool) -> None:
    assert may_stream(past_runs, 1000.0, 10e6) is is_allowed


@given(st.integers(0, 10**8), st.integers(2, 50))
def test_extra_tests_take_every_nth_round_one_after_the_other(first: int, every: int) -> None:
    settings = ProbeSettings(extra_tests=("UDP_RR", "TCP_STREAM"), rounds_per_extra_test=every)
    tests = [choose_test(settings, BUSIEST.probes[0], n) for n in range(first, first + 4 * every)]
    extras = [test for test in tests if test != "TCP_RR"]
    assert len(extras) == 4
    assert all(one != other for one, other in itertools.pairwise(extras))
    assert all(tests[i] == "TCP_RR" or tests[i + 1] == "TCP_RR" for i in range(len(tests) - 1))


def test_streams_of_different_pairs_are_spread_over_the_rounds() -> None:
    settings = ProbeSettings(extra_tests=("TCP_STREAM",))
    probes = [probe for plan in PLAN.plan_by_zone.values() for probe in plan.probes]
    streams_by_round = [sum(choose_test(settings, probe, n) == "TCP_STREAM" for probe in probes) for n in range(10)]
    assert sum(streams_by_round) == len(probes) == 36
    assert max(streams_by_round) <= 12
