"""Bandwidth between zones: allocations equal a count over all pairs of pods, capacities are those that users wrote."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.crds import NetworkTopology
from controller.cluster.membership import Membership
from controller.topology.bandwidth import compute_allocations, read_user_capacities, sum_by_region_pair
from controller.topology.weights import Bandwidths, build_topology_patch, build_weight
from kubekit.wire import Node
from netperf.costs import ZoneCost, ZoneCosts
from netperf.sample import NodeLocation
from tests.support.bodies import REGION, ZONE
from tests.unit.controller import components
from tests.unit.controller.scheduler_objects import make_app_group, make_group_pod, make_topology_with_weights

ZONE_BY_NODE = {"n1": "z1", "n2": "z1", "n3": "z2", "n4": "z3", "bare": ""}
LOCATIONS = {node: NodeLocation(node, zone) for node, zone in ZONE_BY_NODE.items()}
RATES_BY_GROUP: dict[str, dict[str, dict[str, int]]] = {
    "g": {"a": {"b": 60}, "b": {"c": 1000}, "c": {"a": 7}},
    "h": {"a": {"b": 2**20}, "b": {}},
}
"""minBandwidth by group, caller and callee."""


def make_limits(rate_by_callee: dict[str, int]) -> dict[str, dict[str, int]]:
    return {callee: {"minBandwidth": rate} for callee, rate in rate_by_callee.items()}


def count_by_pairs(pods: list[tuple[str, str, str]]) -> dict[tuple[str, str], int]:
    """Allocations, summed over all pairs of placed pods, which are (group, workload, zone); each callee gets an equal share."""
    shares: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for (group, caller, origin), (callee_group, callee, destination) in product(pods, pods):
        rate = RATES_BY_GROUP.get(group, {}).get(caller, {}).get(callee)
        if rate and group == callee_group and origin != destination:
            replicas = sum(pod[:2] == (group, callee) for pod in pods)
            shares[origin, destination] += Fraction(rate, replicas)
    return {pair: math.ceil(share) for pair, share in shares.items()}


def make_capacity_weight(name: str, *capacities: str | int | None, key: str = ZONE) -> dict[str, Any]:
    costs = [{"destination": "z2", "networkCost": 5, "bandwidthCapacity": capacity} for capacity in capacities]
    level = {"topologyKey": key, "originList": [{"origin": "z1", "costList": costs}]}
    return {"name": name, "topologyList": [level]}


def test_sums_by_regions_cover_zone_pairs_of_two_known_regions() -> None:
    by_zone = {("z1", "z2"): 1, ("z1", "z3"): 10, ("z2", "z3"): 100, ("z3", "z1"): 1000, ("z1", "zx"): 5}
    sums = sum_by_region_pair(by_zone, {"z1": "west", "z2": "west", "z3": "east"})
    assert sums == {("west", "east"): 110, ("east", "west"): 1000}


async def test_allocations_are_of_the_current_zones_if_a_node_moves_while_zones_are_read() -> None:
    objects = (*components.NODES, *components.PODS, components.make_group_body(), components.make_cost_topology())
    controller = components.Components(*objects).topology_controller()
    (topology,) = controller._cache.topologies
    reading = asyncio.create_task(controller._read_snapshot(topology))
    await asyncio.sleep(0)
    moved_node = components.make_node_body("n2", "z9")
    moved_node["metadata"]["resourceVersion"] = "2"
    components.fill_store(controller._cache.nodes, [msgspec.convert(moved_node, Node)])
    await reading
    assert list((await controller._read_snapshot(topology)).allocated_bps) == [("z1", "z9")]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcx"),
            st.sampled_from([*ZONE_BY_NODE, "gone", ""]),
            st.sampled_from(["g", "h", "another"]),
            st.sampled_from([{}, {}, {}, {"phase": "Failed"}, {"phase": "Succeeded"}, {"is_terminating": True}]),
        ),
        max_size=30,
    )
)
def test_allocations_equal_a_count_over_all_pairs_of_placed_pods(
    placements: list[tuple[str, str, str, dict[str, Any]]],
) -> None:
    pods = [make_group_pod(workload, node, group=group, **fields) for workload, node, group, fields in placements]
    counted = [
        (group, workload, ZONE_BY_NODE[node])
        for workload, node, group, fields in placements
        if ZONE_BY_NODE.get(node) and not fields
    ]
    groups = [
        make_app_group({caller: make_limits(rates) for caller, rates in calls.items()}, "shop", name=name)
        for name, calls in RATES_BY_GROUP.items()
    ]
    membership = Membership.from_objects(groups, (), NetworkOverheadArgs())
    assert compute_allocations(membership, pods, LOCATIONS) == count_by_pairs(counted)


@pytest.mark.parametrize(
    ("weights", "zone_capacity", "region_capacity"),
    [
        (
            [
                make_capacity_weight("NetperfCosts", "7"),
                make_capacity_weight("UserDefined", "10Gi"),
                make_capacity_weight("Other", "1Gi"),
            ],
            "10Gi",
            None,
        ),
        ([make_capacity_weight("UserDefined", 5, key=REGION)], None, 5),
        ([make_capacity_weight("UserDefined", None, "10Gi")], None, None),  # The first entry counts, as for the cost.
        *([[make_capacity_weight("UserDefined", capacity)], None, None] for capacity in ("ten", "", "-1")),
    ],
)
def test_capacities_are_the_users_quantities_as_written_never_those_of_netperf_costs(
    weights: list[dict[str, Any]], zone_capacity: str | None, region_capacity: int | None
) -> None:
    for level, capacity in ((ZONE, zone_capacity), (REGION, region_capacity)):
        expected = {} if capacity is None else {("z1", "z2"): capacity}
        assert read_user_capacities(make_topology_with_weights(*weights), level) == expected


def test_the_patch_of_a_hundred_zones_with_bandwidth_is_smaller_than_a_megabyte() -> None:
    pairs = list(permutations([f"europe-north1-{i:03}" for i in range(100)], 2))
    cost = ZoneCost(cost=300, latency_us=299_999.9, basis="measured", age_s=1, error_us=9_000.1)
    table = ZoneCosts(by_zone_pair=dict.fromkeys(pairs, cost), cost_by_region_pair={}, absent_pairs=())
    # Every path has a capacity; pods of large applications have asked for bandwidth on one in five.
    bandwidths = Bandwidths(dict.fromkeys(pairs, "99G"), dict.fromkeys(pairs[::5], 10**9))
    patch = build_topology_patch(NetworkTopology(), build_weight(table, bandwidths, Bandwidths()), table.latencies())
    assert len(msgspec.json.encode(patch)) < 1e6
