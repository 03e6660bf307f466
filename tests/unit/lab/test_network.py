"""A lab's network gives each node a range of pod addresses, and delivers its packets late but in order."""

from __future__ import annotations

from ipaddress import IPv4Network
from itertools import combinations
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lab.network import plan_network, pod_range_of_slot
from lab.topology import MAX_NODES, REAL_KUBELET, LabNode
from lab.wan.delays import MAX_PACKETS, DelayQueue, LinkDirection

A, B = 0, 1


def make_queue(link: LinkDirection, seed: int = 1) -> DelayQueue:
    """A queue for node A in zone x and node B in zone y, with ``link`` in both directions."""
    return DelayQueue(["x", "y"], {("x", "y"): link, ("y", "x"): link}, Random(seed))


def test_the_pod_ranges_of_nodes_are_different_and_inside_that_of_their_slot() -> None:
    node = LabNode("a1", "r1", "z1", cpu="4", memory="16Gi", pods="110", nic_bps=10**9, kubelet=REAL_KUBELET)
    range_by_slot = {slot: IPv4Network(pod_range_of_slot(slot)) for slot in (0, 1, 249)}
    node_ranges = set()
    for slot, slot_range in range_by_slot.items():
        for node_network in plan_network(slot, [node] * MAX_NODES).node_networks:
            node_ranges.add(node_network.pod_range)
            assert slot_range.supernet_of(IPv4Network(node_network.pod_range))
    assert len(node_ranges) == len(range_by_slot) * MAX_NODES
    assert not any(slot_range.overlaps(other) for slot_range, other in combinations(range_by_slot.values(), 2))


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
