"""Latencies that most reporters contradict are ignored."""

from __future__ import annotations

from netperf.consensus import NodePairLatency, find_consensus, link_between


def latency(origin: str, destination: str, ms: float) -> NodePairLatency:
    """A latency between two nodes, whose zones are the first letters of their names."""
    return NodePairLatency(origin, destination, link_between(origin[0], destination[0]), ms * 1000)


def test_a_slow_node_is_ignored_although_the_most_contradicted_node_may_be_honest() -> None:
    # The only node of zone n is an end of each latency of its link, so these show no culprit.
    undecided = [latency("x1", "n1", 10), latency("n1", "x2", 11.2), latency("x3", "n1", 12.4)]
    others = [latency("x1", "t4", 10), latency("x3", "t5", 10)]
    for zone in "tuv":
        others += [latency("s2", f"{zone}2", 10), latency("s3", f"{zone}3", 10), latency(f"{zone}1", "s2", 10)]
    for zone in "wy":
        others += [latency("s1", f"{zone}1", 10), latency("s2", f"{zone}2", 10), latency("s3", f"{zone}3", 10)]
    slow = [latency("s1", f"{zone}1", 50) for zone in "tuv"]
    consensus = find_consensus([*undecided, *others, *slow], {})
    assert consensus.ignored_pairs == {pair.nodes for pair in slow}
    assert consensus.error_us_by_outlier == {"s1": 40_000}


def test_several_latencies_of_one_reporter_do_not_outvote_three_reporters() -> None:
    outvoted = [latency("a1", f"b{number}", 10) for number in (1, 2, 3)] + [latency("a2", "b4", 10)]
    majority = [latency(f"b{number}", f"a{number}", 20) for number in (5, 6, 7)]
    # Elsewhere a1 agrees with others, so it is not suspected as a node.
    elsewhere = [latency("a1", f"c{number}", 10) for number in range(4)] + [latency("c5", "a2", 10)]
    consensus = find_consensus([*outvoted, *majority, *elsewhere], {})
    assert consensus.latency_us_by_link["a", "b"] == 20_000
    assert consensus.ignored_pairs == {pair.nodes for pair in outvoted}
