"""Packets of the emulated network stay in order, and a full queue drops packets."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lab.wan.delays import MAX_PACKETS, DelayQueue, LinkDirection

A, B = 0, 1


def make_queue(link: LinkDirection, seed: int = 1) -> DelayQueue:
    """A queue for node A in zone x and node B in zone y, with ``link`` in both directions."""
    return DelayQueue(["x", "y"], {("x", "y"): link, ("y", "x"): link}, Random(seed))


@given(st.lists(st.floats(0, 0.01), min_size=2, max_size=50), st.floats(0, 0.005), st.integers(0, 1000))
def test_jitter_never_reorders_packets_between_two_nodes(gaps_s: list[float], jitter_s: float, seed: int) -> None:
    queue = make_queue(LinkDirection(0.005, jitter_s), seed)
    now_s = 0.0
    for number, gap_s in enumerate(gaps_s):
        now_s += gap_s
        queue.enqueue(now_s, A, B, bytes([number]))
    assert [packet for _, packet in queue.pop_due(now_s + 1.0)] == [bytes([number]) for number in range(len(gaps_s))]


def test_a_full_queue_drops_packets() -> None:
    queue = make_queue(LinkDirection(1.0))
    for _ in range(MAX_PACKETS + 5):
        queue.enqueue(0.0, A, B, b"")
    assert len(queue.pop_due(1.0)) == MAX_PACKETS
