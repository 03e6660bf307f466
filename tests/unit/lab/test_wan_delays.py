"""The emulated network's rules: when packets arrive, in which order, and which never do."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.wan.delays import MAX_PACKETS, DelayQueue, OneWay

A, B, C = 0, 1, 2


def queue_of(link: OneWay, seed: int = 1) -> DelayQueue:
    """Nodes A and C in site x, node B in site y; ``link`` between the sites, nothing inside them."""
    inside = OneWay(0.0)
    links = {("x", "y"): link, ("y", "x"): link, ("x", "x"): inside, ("y", "y"): inside}
    return DelayQueue(["x", "y", "x"], links, Random(seed))


def test_a_packet_is_released_when_its_delay_is_over_and_not_before() -> None:
    queue = queue_of(OneWay(0.005))
    assert queue.next_due_s() is None
    assert queue.accept(10.0, A, B, b"p")
    assert queue.next_due_s() == pytest.approx(10.005)
    assert queue.release(10.0049) == []
    assert queue.release(10.0051) == [(B, b"p")]
    assert queue.next_due_s() is None
    assert queue.counters.forwarded == 1
    assert queue.counters.late_s == pytest.approx(0.0001)


@given(st.lists(st.floats(0, 0.01), min_size=2, max_size=50), st.floats(0, 0.005), st.integers(0, 1000))
def test_jitter_never_reorders_packets_between_two_nodes(gaps: list[float], jitter: float, seed: int) -> None:
    queue = queue_of(OneWay(0.005, jitter), seed)
    now = 0.0
    for index, gap in enumerate(gaps):
        now += gap
        queue.accept(now, A, B, bytes([index]))
    assert [packet for _, packet in queue.release(now + 1.0)] == [bytes([i]) for i in range(len(gaps))]


def test_loss_takes_its_share_and_is_the_same_for_the_same_seed() -> None:
    def survivors(seed: int) -> list[int]:
        queue = queue_of(OneWay(0.0, loss=0.2), seed)
        return [n for n in range(5000) if queue.accept(0.0, A, B, b"p")]

    assert survivors(7) == survivors(7)
    assert survivors(7) != survivors(8)
    assert 0.17 < 1 - len(survivors(7)) / 5000 < 0.23


def test_packets_under_way_are_bounded() -> None:
    queue = queue_of(OneWay(1.0))
    assert sum(queue.accept(0.0, A, B, b"") for _ in range(MAX_PACKETS + 5)) == MAX_PACKETS
    assert queue.counters.dropped == 5


def test_a_changed_link_holds_for_new_packets_only() -> None:
    queue = queue_of(OneWay(0.010))
    queue.accept(0.0, A, B, b"before")
    queue.set_link("x", "y", OneWay(0.020))
    queue.accept(0.001, A, B, b"after")
    assert queue.release(0.0105) == [(B, b"before")]
    assert queue.next_due_s() == pytest.approx(0.021)
