"""Bandwidth between zones equals a recount from scratch after any events in any order, and capacities hold still."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.membership import Membership
from controller.topology.bandwidth import (
    allocated_bps,
    between_regions,
    declared_capacities,
    placed_by_zone,
)
from controller.topology.weights import Bandwidths, build_weight, patch_topology
from netperf.costs import ZoneCost, ZoneCosts
from netperf.sample import Place
from tests.unit.controller.objects import (
    REGION,
    ZONE,
    AppGroup,
    GroupPod,
    NetworkTopology,
    WeightInfo,
    appgroup,
    weight_info,
)
from tests.unit.controller.objects import group_pod as pod

ZONE_OF = {"n1": "z1", "n2": "z1", "n3": "z2", "n4": "z3", "bare": ""}
PLACES = {node: Place(node, zone) for node, zone in ZONE_OF.items()}
ZONES = {"z1": "west", "z2": "west", "z3": "east"}
MBIT = 1_000_000


def group(name: str = "g", needs: dict[tuple[str, str], str | int] | None = None) -> AppGroup:
    needs = needs if needs is not None else {("a", "b"): "100M"}
    selectors = sorted({s for pair in needs for s in pair})
    return appgroup(
        {s: {d: {"minBandwidth": rate} for (w, d), rate in needs.items() if w == s} for s in selectors}, name=name
    )


def account(pods: list[GroupPod], *groups: AppGroup) -> dict[tuple[str, str], int]:
    return allocated_bps(
        Membership.from_objects(groups or (group(),), (), NetworkOverheadArgs()), placed_by_zone(pods, PLACES)
    )


@pytest.mark.parametrize(
    ("pods", "groups", "taken"),
    [
        # The way back takes nothing, nor do pods in one zone.
        ("a@n1 b@n3", [group()], {("z1", "z2"): 100 * MBIT}),
        ("a@n1 b@n2", [group()], {}),
        # Each caller spreads its demand over the replicas that it calls.
        ("a@n1 a@n1 b@n1 b@n3 b@n3 b@n4", [group()], {("z1", "z2"): 100 * MBIT, ("z1", "z3"): 50 * MBIT}),
        # Shares that are no whole bits are rounded up once.
        ("a@n1 b@n1 b@n3 b@n4", [group(needs={("a", "b"): 100})], {("z1", "z2"): 34, ("z1", "z3"): 34}),
        # Groups add up.
        (
            "a@n1 b@n3 a@n2@h b@n3@h",
            [group(), group("h", {("a", "b"): "1Mi"})],
            {("z1", "z2"): 100 * MBIT + 2**20},
        ),
        # A node that is gone or has no zone, another group, no dependency.
        *((f"a@n1 {peer}", [group()], {}) for peer in ("b@", "b@gone", "b@bare", "b@n3@another", "c@n3")),
    ],
)
def test_callers_take_their_demand_from_the_ways_to_the_replicas_that_they_call(
    pods: str, groups: list[AppGroup], taken: dict[tuple[str, str], int]
) -> None:
    found = [(*one.split("@"), "g")[:3] for one in pods.split()]
    assert account([pod(workload, node, of=of) for workload, node, of in found], *groups) == taken


@pytest.mark.parametrize("fields", [{"phase": "Failed"}, {"phase": "Succeeded"}, {"leaving": True}])
def test_pods_that_do_not_run_take_nothing(fields: dict[str, Any]) -> None:
    assert account([pod("a", "n1"), pod("b", "n3", **fields)]) == {}


def test_between_regions_is_the_sum_over_the_zone_pairs_that_join_them() -> None:
    by_zone = {("z1", "z2"): 1, ("z1", "z3"): 10, ("z2", "z3"): 100, ("z3", "z1"): 1000, ("z1", "zx"): 5}
    assert between_regions(by_zone, ZONES) == {("west", "east"): 110, ("east", "west"): 1000}


Event = tuple[str, int, str, str]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["place", "delete", "move", "relabel", "finish", "again"]),
            st.integers(0, 7),
            st.sampled_from([*ZONE_OF, "gone", ""]),
            st.sampled_from("abcx"),
        ),
        max_size=60,
    ),
    st.randoms(use_true_random=False),
)
def test_the_account_equals_a_recount_after_any_events_repeated_and_reordered(
    events: list[Event], rng: random.Random
) -> None:
    """The account sees a store that events went through in any order; the recount sums over pairs of pods by hand."""
    groups = [group(needs={("a", "b"): 60, ("b", "c"): "1k", ("c", "a"): 7}), group("idle", {("a", "b"): 5})]
    store: dict[int, GroupPod] = {}
    for kind, key, node, workload in events:
        old = store.get(key)
        if kind == "delete":
            store.pop(key, None)
        elif kind == "place" or old is None:
            store[key] = pod(workload, node)
        elif kind == "move":
            store[key] = pod(old.metadata.label("appgroup.diktyo.x-k8s.io.workload"), node)
        elif kind == "relabel":
            store[key] = pod(workload, old.spec.node_name)
        elif kind == "finish":
            store[key] = pod(workload, old.spec.node_name, phase="Succeeded")
    pods = list(store.values())
    expected = _recount(pods)
    rng.shuffle(pods)
    rng.shuffle(groups)
    assert account(pods, *groups) == expected
    assert account(pods, *groups) == expected, "counting twice adds nothing"


def _recount(pods: list[GroupPod]) -> dict[tuple[str, str], int]:
    there = [
        (p.metadata.label("appgroup.diktyo.x-k8s.io.workload"), ZONE_OF.get(p.spec.node_name, ""))
        for p in pods
        if p.status.phase == "Running" and ZONE_OF.get(p.spec.node_name)
    ]
    total: dict[tuple[str, str], Fraction] = {}
    for caller, called, rate in (("a", "b", 60), ("b", "c", 1000), ("c", "a", 7)):
        replicas = [zone for workload, zone in there if workload == called]
        for workload, origin in there:
            for destination in replicas:
                if workload == caller and origin != destination:
                    pair = (origin, destination)
                    total[pair] = total.get(pair, Fraction(0)) + Fraction(rate, len(replicas))
    return {pair: -(-share.numerator // share.denominator) for pair, share in total.items()}


def topology(*weights: WeightInfo) -> NetworkTopology:
    empty = NetworkTopology()
    return msgspec.structs.replace(empty, spec=msgspec.structs.replace(empty.spec, weights=list(weights)))


def weight(name: str, *capacities: str | int | None, key: str = ZONE) -> WeightInfo:
    return weight_info(name, {key: [("z1", "z2", {"networkCost": 5, "bandwidthCapacity": c}) for c in capacities]})


def test_capacities_are_the_users_as_written_and_never_read_back_from_our_own_weight() -> None:
    found = topology(weight("NetperfCosts", "7"), weight("UserDefined", "10Gi"), weight("Other", "1Gi"))
    assert declared_capacities(found, "NetperfCosts") == ({("z1", "z2"): "10Gi"}, {})
    regional = topology(weight("UserDefined", 5, key=REGION))
    assert declared_capacities(regional, "NetperfCosts") == ({}, {("z1", "z2"): 5})


def test_of_a_pair_that_is_listed_twice_the_first_counts_as_for_its_cost() -> None:
    assert declared_capacities(topology(weight("UserDefined", None, "10Gi")), "NetperfCosts") == ({}, {})


@pytest.mark.parametrize("bad", ["ten", "", "-1"])
def test_a_capacity_that_is_no_quantity_is_left_out(bad: str) -> None:
    assert declared_capacities(topology(weight("UserDefined", bad)), "NetperfCosts") == ({}, {})


def test_the_object_of_a_hundred_zones_with_bandwidth_stays_below_a_megabyte() -> None:
    rng, zones = random.Random(1), [f"europe-north1-{i:03}" for i in range(100)]
    pairs = [(a, b) for a in zones for b in zones if a != b]
    table = ZoneCosts(
        zones={
            pair: ZoneCost(
                cost=rng.randint(2, 300),
                latency_us=rng.uniform(100, 3e5),
                basis="measured",
                age_s=1.0,
                error_us=rng.uniform(5, 9e3),
            )
            for pair in pairs
        },
        regions={},
        absent=(),
    )
    # Every path has a capacity; pods of large applications have asked for bandwidth on one in five.
    bandwidths = Bandwidths(
        zone_capacity={pair: f"{rng.randint(10, 99)}G" for pair in pairs},
        zone_allocated={pair: rng.randint(1, 10**9) for pair in rng.sample(pairs, len(pairs) // 5)},
    )
    empty = NetworkTopology()
    patch = patch_topology(empty, build_weight(table, bandwidths), table.latencies())
    assert len(msgspec.json.encode(patch)) < 1e6
