"""A lab's plan of its network gives each node a range of pod addresses."""

from __future__ import annotations

from ipaddress import IPv4Network
from itertools import combinations

from lab.network import plan_network, pod_range_of_slot
from lab.topology import MAX_NODES, REAL, LabNode


def test_the_pod_ranges_of_nodes_are_different_and_inside_that_of_their_slot() -> None:
    node = LabNode("a1", "r1", "z1", cpu="4", memory="16Gi", pods="110", nic_bps=10**9, kubelet=REAL)
    range_by_slot = {slot: IPv4Network(pod_range_of_slot(slot)) for slot in (0, 1, 249)}
    node_ranges = set()
    for slot, slot_range in range_by_slot.items():
        for node_network in plan_network(slot, [node] * MAX_NODES).node_networks:
            node_ranges.add(node_network.pod_range)
            assert slot_range.supernet_of(IPv4Network(node_network.pod_range))
    assert len(node_ranges) == len(range_by_slot) * MAX_NODES
    assert not any(slot_range.overlaps(other) for slot_range, other in combinations(range_by_slot.values(), 2))
