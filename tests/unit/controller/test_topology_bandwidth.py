"""Bandwidth between zones: allocations equal a count over all pairs of pods, capacities are those that users wrote."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.crds import AppGroup, NetworkTopology, WeightInfo
from controller.cluster.membership import Membership
from controller.cluster.pods import Pod
from controller.topology.bandwidth import compute_allocations, read_user_capacities, sum_by_region_pair
from controller.topology.weights import Bandwidths, build_weight, plan_topology_patch
from kubekit.wire import Node
from netperf.costs import ZoneCost, ZoneCosts
from netperf.sample import NodeLocation
from tests.support.bodies import REGION, ZONE
from tests.unit.controller import components
from tests.unit.controller.scheduler_objects import make_app_group
from tests.unit.controller.scheduler_objects import make_group_pod as pod

ZONE_OF = {"n1": "z1", "n2": "z1", "n3": "z2", "n4": "z3", "bare": ""}
LOCATIONS = {node: NodeLocation(node, zone) for node, zone in ZONE_OF.items()}
ZONES = {"z1": "west", "z2": "west", "z3": "east"}


def group(name: str, needs: Mapping[tuple[str, str], int]) -> AppGroup:
    selectors = sorted({s for pair in needs for s in pair})
    calls = {s: {d: {"minBandwidth": rate} for (w, d), rate in needs.items() if w == s} for s in selectors}
    return make_app_group(calls, "shop", name=name)


def allocations(pods: list[Pod], *groups: AppGroup) -> dict[tuple[str, str], int]:
    return compute_allocations(Membership.from_objects(groups, (), NetworkOverheadArgs()), pods, LOCATIONS)


def test_sums_by_regions_cover_their_zone_pairs() -> None:
    by_zone = {("z1", "z2"): 1, ("z1", "z3"): 10, ("z2", "z3"): 100, ("z3", "z1"): 1000, ("z1", "zx"): 5}
    assert sum_by_region_pair(by_zone, ZONES) == {("west", "east"): 110, ("east", "west"): 1000}


async def test_allocations_are_of_the_current_zones_if_a_node_moves_while_zones_are_read() -> None:
    objects = (*components.NODES, *components.PODS, components.make_group_body(), components.make_topology_body())
    controller = components.Components(*objects).topology_controller()
    (topology,) = controller._cache.topologies
    reading = asyncio.create_task(controller._read_snapshot(topology))
    await asyncio.sleep(0)
    moved = components.make_node_body("n2", "z9")
    moved["metadata"]["resourceVersion"] = "2"
    components.fill_store(controller._cache.nodes, [msgspec.convert(moved, Node)])
    await reading
    assert list((await controller._read_snapshot(topology)).allocated_bps) == [("z1", "z9")]


RatesByPair = Mapping[tuple[str, str], int]
RATES_BY_GROUP: Mapping[str, RatesByPair] = {
    "g": {("a", "b"): 60, ("b", "c"): 1000, ("c", "a"): 7},
    "h": {("a", "b"): 2**20},
}


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcx"),
            st.sampled_from([*ZONE_OF, "gone", ""]),
            st.sampled_from(["g", "h", "another"]),
            st.sampled_from([{}, {}, {}, {"phase": "Failed"}, {"phase": "Succeeded"}, {"is_terminating": True}]),
        ),
        max_size=30,
    )
)
def test_allocations_equal_a_count_over_all_pairs_of_placed_pods(
    placements: list[tuple[str, str, str, dict[str, Any]]],
) -> None:
    pods = [pod(workload, node, group=group, **fields) for workload, node, group, fields in placements]
    placed = [
        (of, workload, ZONE_OF[node]) for workload, node, of, fields in placements if ZONE_OF.get(node) and not fields
    ]
    assert allocations(pods, *(group(name, rates) for name, rates in RATES_BY_GROUP.items())) == count_by_pairs(placed)


def count_by_pairs(placed: list[tuple[str, str, str]]) -> dict[tuple[str, str], int]:
    total: dict[tuple[str, str], Fraction] = {}
    for name, rates in RATES_BY_GROUP.items():
        for (caller, called), rate in rates.items():
            replicas = [zone for of, workload, zone in placed if (of, workload) == (name, called)]
            for of, workload, origin in placed:
                for destination in replicas:
                    if (of, workload) == (name, caller) and origin != destination:
                        pair = (origin, destination)
                        total[pair] = total.get(pair, Fraction(0)) + Fraction(rate, len(replicas))
    return {pair: -(-share.numerator // share.denominator) for pair, share in total.items()}


def topology(*weights: WeightInfo) -> NetworkTopology:
    empty = NetworkTopology()
    return msgspec.structs.replace(empty, spec=msgspec.structs.replace(empty.spec, weights=list(weights)))


def weight(name: str, *capacities: str | int | None, key: str = ZONE) -> WeightInfo:
    costs = [{"destination": "z2", "networkCost": 5, "bandwidthCapacity": capacity} for capacity in capacities]
    level = {"topologyKey": key, "originList": [{"origin": "z1", "costList": costs}]}
    return msgspec.convert({"name": name, "topologyList": [level]}, WeightInfo)


@pytest.mark.parametrize(
    ("weights", "zones", "regions"),
    [
        ([weight("NetperfCosts", "7"), weight("UserDefined", "10Gi"), weight("Other", "1Gi")], "10Gi", None),
        ([weight("UserDefined", 5, key=REGION)], None, 5),
        ([weight("UserDefined", None, "10Gi")], None, None),  # The first entry counts, as for the cost.
        *([[weight("UserDefined", bad)], None, None] for bad in ("ten", "", "-1")),
    ],
)
def test_capacities_are_the_users_quantities_as_written_never_those_of_netperf_costs(
    weights: list[WeightInfo], zones: str | None, regions: int | None
) -> None:
    for level, value in ((ZONE, zones), (REGION, regions)):
        expected = {} if value is None else {("z1", "z2"): value}
        assert read_user_capacities(topology(*weights), level) == expected


def test_the_patch_of_a_hundred_zones_with_bandwidth_is_smaller_than_a_megabyte() -> None:
    rng, zones = random.Random(1), [f"europe-north1-{i:03}" for i in range(100)]
    pairs = [(a, b) for a in zones for b in zones if a != b]
    costs = {
        pair: ZoneCost(
            cost=rng.randint(2, 300),
            latency_us=rng.uniform(100, 3e5),
            basis="measured",
            age_s=1,
            error_us=rng.uniform(5, 9e3),
        )
        for pair in pairs
    }
    table = ZoneCosts(by_zone_pair=costs, cost_by_region_pair={}, absent_pairs=())
    # Every path has a capacity; pods of large applications have asked for bandwidth on one in five.
    bandwidths = Bandwidths(
        {pair: f"{rng.randint(10, 99)}G" for pair in pairs},
        {pair: rng.randint(1, 10**9) for pair in rng.sample(pairs, len(pairs) // 5)},
    )
    empty = NetworkTopology()
    patch = plan_topology_patch(empty, build_weight(table, bandwidths, Bandwidths()), table.latencies())
    assert len(msgspec.json.encode(patch)) < 1e6
