"""Packets of the emulated network stay in order, and their number is limited. Delays are tested in tests/integration/lab."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lab.wan.delays import MAX_PACKETS, DelayQueue, LinkDirection

A, B, C = 0, 1, 2


def build_queue(link: LinkDirection, seed: int = 1) -> DelayQueue:
    """Nodes A and C in zone x, node B in zone y; ``link`` between the zones, no delay inside them."""
    inside = LinkDirection(0.0)
    links = {("x", "y"): link, ("y", "x"): link, ("x", "x"): inside, ("y", "y"): inside}
    return DelayQueue(["x", "y", "x"], links, Random(seed))


@given(st.lists(st.floats(0, 0.01), min_size=2, max_size=50), st.floats(0, 0.005), st.integers(0, 1000))
def test_jitter_never_reorders_packets_between_two_nodes(gaps: list[float], jitter: float, seed: int) -> None:
    queue = build_queue(LinkDirection(0.005, jitter), seed)
    now = 0.0
    for index, gap in enumerate(gaps):
        now += gap
        queue.enqueue(now, A, B, bytes([index]))
    assert [packet for _, packet in queue.pop_due(now + 1.0)] == [bytes([i]) for i in range(len(gaps))]


def test_a_full_queue_drops_packets() -> None:
    queue = build_queue(LinkDirection(1.0))
    for _ in range(MAX_PACKETS + 5):
        queue.enqueue(0.0, A, B, b"")
    assert len(queue.pop_due(1.0)) == MAX_PACKETS
