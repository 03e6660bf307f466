"""Latencies that most reporters contradict are ignored, and nodes that report them are outliers."""

from __future__ import annotations

import pytest

from netperf.consensus import NodePairLatency, find_consensus, link_between
from netperf.sample import Sample
from netperf.smoothing import WINDOW_SAMPLES
from tests.unit.netperf.builders import CostComputer, make_node_sample, make_zone_samples

USUAL_PAIRS_OF_ZONE_S = "s2-t2 s3-t3 t1-s2 s2-u2 s3-u3 u1-s2 s2-v2 s3-v3 v1-s2 s1-w1 s2-w2 s3-w3 s1-y1 s2-y2 s3-y3"


def make_latency(origin: str, destination: str, ms: float) -> NodePairLatency:
    """A latency between two nodes, whose zones are the first letters of their names."""
    return NodePairLatency(origin, destination, link_between(origin[0], destination[0]), ms * 1000)


def make_samples_of_a1(to_b1_us: float, to_b2_us: float, sequence: int) -> list[Sample]:
    return [make_node_sample("a1", "b1", to_b1_us, sequence), make_node_sample("a1", "b2", to_b2_us, sequence)]


def test_a_slow_node_is_ignored_although_the_most_contradicted_node_may_be_honest() -> None:
    # The only node of zone n is an end of each latency of its link, so these show no culprit.
    undecided = [make_latency("x1", "n1", 10), make_latency("n1", "x2", 11.2), make_latency("x3", "n1", 12.4)]
    usual = [make_latency(pair[:2], pair[3:], 10) for pair in ("x1-t4", "x3-t5", *USUAL_PAIRS_OF_ZONE_S.split())]
    # s1 is slow to three zones, and to w and y as usual.
    slow = [make_latency("s1", destination, 50) for destination in ("t1", "u1", "v1")]
    consensus = find_consensus([*undecided, *usual, *slow], {})
    assert consensus.ignored_pairs == {latency.nodes for latency in slow}
    assert consensus.error_us_by_outlier == {"s1": 40_000}


def test_several_latencies_of_one_reporter_do_not_outvote_three_reporters() -> None:
    outvoted = [make_latency("a1", f"b{number}", 10) for number in (1, 2, 3)] + [make_latency("a2", "b4", 10)]
    majority = [make_latency(f"b{number}", f"a{number}", 20) for number in (5, 6, 7)]
    # To zone c, a1 agrees with others, so a1 itself is not suspected.
    agreeing = [make_latency("a1", f"c{number}", 10) for number in range(4)] + [make_latency("c5", "a2", 10)]
    consensus = find_consensus([*outvoted, *majority, *agreeing], {})
    assert consensus.latency_us_by_link["a", "b"] == 20_000
    assert consensus.ignored_pairs == {latency.nodes for latency in outvoted}


@pytest.mark.parametrize(
    ("reporter", "agreed_ms", "third_zones", "latency_ms"),
    [("b2", 0, "", 10), ("b2", 19, "", 20), ("b1", 0, "", 20), ("b2", 0, "cd", 20), ("b2", 0, "c", 10)],
    ids=["a slow node", "the last agreed latency", "a forging node", "triangle inequality", "only one third zone"],
)
def test_one_of_two_reporters_is_ignored(reporter: str, agreed_ms: float, third_zones: str, latency_ms: float) -> None:
    latencies = [make_latency("a1", "b1", 10), make_latency(reporter, "a" + reporter[1], 20)]
    latencies += [make_latency(zone + "1", end, ms) for zone in third_zones for end, ms in (("a3", 5), ("b3", 100))]
    consensus = find_consensus(latencies, {("a", "b"): agreed_ms * 1000} if agreed_ms else {})
    assert consensus.latency_us_by_link["a", "b"] == latency_ms * 1000


def test_ignored_latencies_count_neither_for_age_nor_for_node_pairs() -> None:
    computer = CostComputer()
    agreeing = [make_node_sample("a1", "b1", 2000.0), make_node_sample("a2", "b2", 2000.0)]
    computer.compute([*agreeing, make_node_sample("a3", "b3", 9000.0)])
    costs = computer.compute([*agreeing, make_node_sample("a3", "b3", 9000.0, 2)], now_s=60.0)
    entry = costs.by_zone_pair["a", "b"]
    assert (entry.latency_us, entry.node_pair_count, entry.age_s) == (2000.0, 2, 60.0)


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "in reverse order"])
def test_latencies_of_an_outlier_do_not_replace_the_last_good_latency(order: int) -> None:
    computer = CostComputer()
    computer.compute(make_samples_of_a1(20_000.0, 20_000.0, 1))
    computer.compute(make_samples_of_a1(1_000.0, 5_600.0, 2), now_s=60.0)
    computer.compute(make_samples_of_a1(1_000.0, 5_600.0, 3)[::order], now_s=120.0)
    costs = computer.compute(make_samples_of_a1(1_000.0, 5_600.0, 4)[::order], now_s=240.0)
    assert costs.error_us_by_outlier.keys() == {"a1"}
    later_costs = computer.compute(make_samples_of_a1(1_000.0, 5_600.0, 4)[::order], now_s=640.0)
    for entry in (costs.by_zone_pair["a", "b"], later_costs.by_zone_pair["a", "b"]):
        assert (entry.cost, entry.latency_us, entry.basis) == (20, 20_000.0, "stale")


def test_a_dispute_ends_at_a_lower_limit_than_it_begins() -> None:
    """It begins above a difference of 12 % of the larger latency, and ends below 0.6 of that, 7.2 %."""
    steps_us = [11_200, 11_500, 11_200, 10_900, 10_400, 11_200]
    computer, disputed_by_round = CostComputer(), []
    for sequence in range(WINDOW_SAMPLES * len(steps_us)):
        samples = make_zone_samples({"ab": 10_000, "ba": steps_us[sequence // WINDOW_SAMPLES]}, sequence)
        disputed_by_round.append(bool(computer.compute(samples, now_s=60.0 * sequence).disputed_links))
    after_steps = disputed_by_round[WINDOW_SAMPLES - 1 :: WINDOW_SAMPLES]
    assert after_steps == [False, True, True, True, False, False], "11.2 ms begins no dispute, and ends none"


def test_a_forged_latency_beside_two_honest_ones_makes_no_honest_node_an_outlier() -> None:
    """Each link has one forged latency, of a1, and two honest ones, of a2 and its peers."""
    forged = [("a1", "b1", 1_400.0), ("a1", "c1", 1_500.0)]
    honest = [("a2", "b2", 21_100.0), ("a2", "c2", 21_900.0), ("b2", "a2", 20_800.0), ("c2", "a2", 21_800.0)]
    samples = [make_node_sample(*latency) for latency in (*forged, *honest)]
    computer = CostComputer()
    computer.compute(samples)
    costs = computer.compute(samples, now_s=120.0)
    assert costs.error_us_by_outlier.keys() == {"a1"}
    assert costs.by_zone_pair["a", "b"].latency_us == pytest.approx(21_000, rel=0.02)
    assert costs.by_zone_pair["c", "a"].latency_us == pytest.approx(21_850, rel=0.02)
