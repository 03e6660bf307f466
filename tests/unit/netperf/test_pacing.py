"""A probe runs in its slot of each round, and extra tests and streams are spread over the rounds."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from netperf.pacing import choose_test, find_next_run, probe_start_s
from netperf.plans import ProbeSettings
from tests.unit.netperf.builders import make_plan

PLAN = make_plan([1] * 9, node_pairs=1, extra_tests=("UDP_RR",))
BUSIEST = max(PLAN.plan_by_zone.values(), key=lambda p: len(p.probes))
NODE = BUSIEST.probes[0].origin.node


def test_a_round_runs_each_probe_of_the_node_once() -> None:
    round_number = 1000
    now_s, runs = BUSIEST.interval_s * round_number, []
    while (run := find_next_run(BUSIEST, NODE, now_s)) is not None and run.round_number == round_number:
        runs.append(run)
        now_s = run.starts_at_s + BUSIEST.settings.duration_s
    netperf_probes = [probe for probe in BUSIEST.probes_from(NODE) if probe.pair_index == 0]
    assert [run.probe for run in runs] == sorted(netperf_probes, key=lambda probe: probe.slot)
    assert [run.test for run in runs] == [choose_test(BUSIEST.settings, run.probe, round_number) for run in runs]


def test_a_node_without_probes_has_no_next_run() -> None:
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
            start_s = probe_start_s(plan, probe, round_number)
            for node in probe.nodes:
                spans_by_node.setdefault(node, []).append((start_s, start_s + plan.settings.duration_s))
    for spans in spans_by_node.values():
        assert all(end_s <= next_start_s for (_, end_s), (next_start_s, _) in itertools.pairwise(sorted(spans)))


def test_jitter_differs_from_round_to_round() -> None:
    probe = BUSIEST.probes[0]
    offsets_s = {probe_start_s(BUSIEST, probe, number) - number * BUSIEST.interval_s for number in range(20)}
    assert len(offsets_s) > 15, "nearly all of 20 differ"
    assert max(offsets_s) - min(offsets_s) <= BUSIEST.interval_s / BUSIEST.slot_count


@given(st.integers(0, 10**8), st.integers(2, 50))
def test_extra_tests_take_every_nth_round_one_after_the_other(first_round: int, rounds_per_extra_test: int) -> None:
    settings = ProbeSettings(extra_tests=("UDP_RR", "TCP_STREAM"), rounds_per_extra_test=rounds_per_extra_test)
    rounds = range(first_round, first_round + 4 * rounds_per_extra_test)
    tests = [choose_test(settings, BUSIEST.probes[0], number) for number in rounds]
    extra_tests = [test for test in tests if test != "TCP_RR"]
    assert len(extra_tests) == 4
    assert all(test != next_test for test, next_test in itertools.pairwise(extra_tests))
    assert all("TCP_RR" in neighbours for neighbours in itertools.pairwise(tests))


def test_streams_of_different_pairs_are_spread_over_the_rounds() -> None:
    settings = ProbeSettings(extra_tests=("TCP_STREAM",))
    probes = [probe for plan in PLAN.plan_by_zone.values() for probe in plan.probes]
    tests_by_round = [[choose_test(settings, probe, number) for probe in probes] for number in range(10)]
    stream_counts = [tests.count("TCP_STREAM") for tests in tests_by_round]
    assert sum(stream_counts) == len(probes) == 36, "each pair of nine zones once in ten rounds"
    assert max(stream_counts) <= 12
