"""Plans probe each pair of zones once per slot, load nodes evenly, and change no more than necessary."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kubekit.errors import ConfigError
from netperf.pairs import PlanOptions, ProbeNode, ProbePlan, plan_probes
from netperf.plans import PLAN_KEY, Probe, encode_plan
from netperf.shards import shard_names, zones_per_shard
from tests.unit.netperf.builders import WALL_CLOCK_S, make_nodes, make_plan

SIZES = st.lists(st.integers(1, 6), min_size=2, max_size=12)
"""Number of nodes of each zone."""
OPTIONS = st.builds(PlanOptions, node_pairs=st.integers(1, 5))


def list_netperf_probes(plan: ProbePlan) -> list[Probe]:
    return [probe for probe in list_probes(plan) if probe.pair_index == 0]


def list_probes(plan: ProbePlan) -> list[Probe]:
    return [probe for zone in plan.plan_by_zone.values() for probe in zone.probes]


def count_pairs_by_node(plan: ProbePlan) -> Counter[str]:
    return Counter(node for probe in list_probes(plan) for node in probe.nodes)


def get_zones(probe: Probe) -> frozenset[str]:
    return frozenset((probe.origin.zone, probe.destination.zone))


def get_node_pairs_by_zones(plan: ProbePlan) -> dict[frozenset[str], set[tuple[str, str]]]:
    node_pairs_by_zones: dict[frozenset[str], set[tuple[str, str]]] = {}
    for probe in list_probes(plan):
        node_pairs_by_zones.setdefault(get_zones(probe), set()).add(probe.nodes)
    return node_pairs_by_zones


def list_changed_zones(before: ProbePlan, after: ProbePlan) -> list[str]:
    return [zone for zone, plan in after.plan_by_zone.items() if plan != before.plan_by_zone[zone]]


@given(SIZES)
def test_every_pair_of_zones_is_probed_once_for_any_number_of_nodes(sizes: list[int]) -> None:
    plan = make_plan(sizes)
    count_by_zones = Counter(get_zones(probe) for probe in list_netperf_probes(plan))
    assert len(count_by_zones) == len(sizes) * (len(sizes) - 1) // 2
    assert set(count_by_zones.values()) == {1}


@given(SIZES, OPTIONS)
def test_no_zone_and_so_no_node_takes_part_in_two_probes_of_a_slot(sizes: list[int], options: PlanOptions) -> None:
    plan = plan_probes(make_nodes(sizes), options, {}, WALL_CLOCK_S)
    probes = list_netperf_probes(plan)
    zones_of_slots = [(probe.slot, zone) for probe in probes for zone in get_zones(probe)]
    assert len(set(zones_of_slots)) == len(zones_of_slots)
    assert all(probe.slot < plan.slot_count for probe in probes)


@given(SIZES, st.data())
def test_a_dead_node_changes_only_its_own_probes(sizes: list[int], data: st.DataObject) -> None:
    alive = make_nodes(sizes)
    before = plan_probes(alive, PlanOptions(), {}, WALL_CLOCK_S)
    # Some nodes die earlier, because the plan must be stable also after earlier changes.
    for _ in range(data.draw(st.integers(0, 3))):
        victim = data.draw(st.sampled_from(alive))
        if sum(node.zone == victim.zone for node in alive) > 1:
            alive.remove(victim)
            before = plan_probes(alive, PlanOptions(), before.plan_by_zone, WALL_CLOCK_S + 1)
    victim = data.draw(st.sampled_from(alive))
    alive.remove(victim)

    after = plan_probes(alive, PlanOptions(), before.plan_by_zone, WALL_CLOCK_S + 2)

    new_probes = list_netperf_probes(after)
    if victim.zone not in after.plan_by_zone:
        assert all(victim.zone not in get_zones(probe) for probe in new_probes)
    other_probes = [probe for probe in list_netperf_probes(before) if victim.name not in probe.nodes]
    assert {(probe.nodes, probe.slot) for probe in other_probes} <= {(probe.nodes, probe.slot) for probe in new_probes}
    has_same_slots = after.slot_count == before.slot_count and after.interval_s == before.interval_s
    for zone, plan in after.plan_by_zone.items():
        plan_before = before.plan_by_zone[zone]
        has_victim = any(victim.name in probe.nodes for probe in plan_before.probes)
        if not has_victim and has_same_slots and plan.results_name == plan_before.results_name:
            assert plan == plan_before


@given(SIZES, OPTIONS)
def test_planning_again_changes_nothing(sizes: list[int], options: PlanOptions) -> None:
    before = plan_probes(make_nodes(sizes), options, {}, WALL_CLOCK_S)
    again = plan_probes(reversed(make_nodes(sizes)), options, before.plan_by_zone, WALL_CLOCK_S)
    assert again.plan_by_zone == before.plan_by_zone


@given(SIZES)
def test_no_node_has_more_than_its_share_of_pairs(sizes: list[int]) -> None:
    pair_count_by_node = count_pairs_by_node(make_plan(sizes))
    for z, size in enumerate(sizes):
        pair_count = sum(min(3, 2 * max(size, other)) for i, other in enumerate(sizes) if i != z)
        # A pair with a zone of a single node needs different nodes of this zone, which may exceed their share.
        max_per_node = math.ceil(pair_count / size) + len(sizes)
        assert all(pair_count_by_node[f"n{z}-{i}"] <= max_per_node for i in range(size))


def test_a_node_with_many_pairs_loses_some_when_its_zone_grows() -> None:
    small = make_plan([1] * 20)
    grown = plan_probes(make_nodes([10] * 20), PlanOptions(), small.plan_by_zone, WALL_CLOCK_S + 1)
    assert max(count_pairs_by_node(grown).values()) <= 2 * math.ceil(3 * 19 / 10)


def test_one_pair_index_rotates_at_a_time_and_a_zones_plan_is_written_once_an_hour() -> None:
    nodes = make_nodes([8] * 10)
    plan = plan_probes(nodes, PlanOptions(), {}, WALL_CLOCK_S)
    node_pairs_at_start = get_node_pairs_by_zones(plan)
    write_count_by_zone: Counter[str] = Counter()
    for minute in range(1, 61):
        after = plan_probes(nodes, PlanOptions(), plan.plan_by_zone, WALL_CLOCK_S + 60 * minute)
        changed_zones = list_changed_zones(plan, after)
        assert len(changed_zones) <= 4
        write_count_by_zone.update(changed_zones)
        node_pairs_before = get_node_pairs_by_zones(plan)
        for zones, node_pairs in get_node_pairs_by_zones(after).items():
            assert node_pairs & node_pairs_before[zones], "a rotation keeps some pairs of nodes"
        plan = after
    assert set(write_count_by_zone.values()) == {1}
    renewed = [zones for zones, pairs in get_node_pairs_by_zones(plan).items() if pairs - node_pairs_at_start[zones]]
    assert len(renewed) > 20  # of 45; the others rotate in another hour


@given(SIZES, st.integers(1, 9))
def test_zones_have_a_few_pairs_of_nodes_with_different_origins(sizes: list[int], count: int) -> None:
    plan = make_plan(sizes, node_pairs=count)
    for zones, node_pairs in get_node_pairs_by_zones(plan).items():
        larger_size = max(sizes[int(zone[1:])] for zone in zones)
        assert min(count, 2, 2 * larger_size) <= len(node_pairs) <= count
        if count > 1:
            assert len({origin for origin, _ in node_pairs}) > 1


def test_pairs_of_nodes_share_none_where_the_zones_allow_it() -> None:
    plan = make_plan([3, 3, 1])
    for zones, node_pairs in get_node_pairs_by_zones(plan).items():
        assert len(node_pairs) == 3
        nodes = {node for pair in node_pairs for node in pair}
        for zone in zones - {"z002"}:
            assert len([node for node in nodes if node.startswith(f"n{int(zone[1:])}-")]) == 3


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"zone": ""}, "no-zone"),
        ({"is_ready": False}, "not-ready"),
        ({"is_schedulable": False}, "unschedulable"),
        ({"has_ready_agent": False}, "no-agent"),
        ({"address": "node-1.example"}, "bad-address"),
    ],
)
def test_unusable_nodes_and_zones_are_left_out_with_a_reason(fields: dict[str, Any], reason: str) -> None:
    unusable = ProbeNode(**{"name": "unusable", "address": "10.0.0.9", "zone": "z000"} | fields)
    unready = ProbeNode(name="lonely", address="10.9.9.9", zone="dark", is_ready=False)
    plan = plan_probes([*make_nodes([1, 1]), unusable, unready], PlanOptions(), {}, WALL_CLOCK_S)
    refusals = [("lonely", "not-ready"), ("unusable", reason), ("dark", "zone-without-probers")]
    assert [(refusal.key, refusal.reason) for refusal in plan.refusals] == refusals
    assert all("unusable" not in probe.nodes for probe in list_netperf_probes(plan))


def test_an_empty_cluster_and_a_single_zone_have_a_plan_without_probes() -> None:
    assert plan_probes([], PlanOptions(), {}, WALL_CLOCK_S).plan_by_zone == {}
    plan = make_plan([3])
    assert list_netperf_probes(plan) == []
    assert list(plan.plan_by_zone) == ["z000"]


@pytest.mark.parametrize(("zones", "interval_s"), [(2, 60), (10, 60), (15, 90), (40, 234), (100, 594)])
def test_a_round_is_a_minute_up_to_ten_zones_and_then_grows_with_them(zones: int, interval_s: float) -> None:
    assert make_plan([1] * zones).interval_s == interval_s


def test_a_hundred_zones_fit_far_below_a_mebibyte_per_object() -> None:
    # Names of nodes, zones and regions are nearly as long as Kubernetes allows.
    nodes = [
        ProbeNode(
            name=f"{'n' * 96}-{z}-{i}.example", address=f"fd00::{z}:{i}", zone="z" * 58 + f"-{z:03}", region="r" * 63
        )
        for z in range(100)
        for i in range(2)
    ]
    plan = plan_probes(nodes, PlanOptions(), {}, WALL_CLOCK_S)
    assert len(plan.plan_by_zone) == 100
    assert max(len(encode_plan(zone)[PLAN_KEY]) for zone in plan.plan_by_zone.values()) < 2**19


@pytest.mark.parametrize("zones", [1, 10, 13, 40, 66, 100, 101, 150, 200, 400, 1000])
def test_the_agents_role_names_every_results_object(zones: int) -> None:
    role = Path(__file__).parents[3] / "manifests" / "base" / "agent" / "rbac.yaml"
    rules = [rule for document in yaml.safe_load_all(role.read_text()) for rule in document.get("rules", ())]
    role_names = {name for rule in rules if "configmaps" in rule["resources"] for name in rule.get("resourceNames", ())}
    names = shard_names("netperf-metrics", zones)
    assert set(names) <= role_names
    assert len(names) * zones_per_shard(zones) >= zones
    assert (names == ["netperf-metrics"]) == (zones <= 10), "the object that other tools know"


@given(st.integers(1, 60), st.integers(1, 60))
def test_shards_have_few_zones_and_zones_keep_their_shard_if_possible(zones_before: int, zones_after: int) -> None:
    before = make_plan([1] * zones_before)
    after = plan_probes(make_nodes([1] * zones_after), PlanOptions(), before.plan_by_zone, WALL_CLOCK_S)
    zone_count_by_shard = Counter(plan.results_name for plan in after.plan_by_zone.values())
    assert max(zone_count_by_shard.values()) <= zones_per_shard(zones_after)
    assert set(zone_count_by_shard) <= set(shard_names("netperf-metrics", zones_after))
    if zones_after >= zones_before and zones_per_shard(zones_after) == zones_per_shard(zones_before):
        for zone, plan in before.plan_by_zone.items():
            assert after.plan_by_zone[zone].results_name == plan.results_name


def test_epochs_increase_even_if_the_clock_is_set_back() -> None:
    before = make_plan([2, 2])
    dead_node = list_netperf_probes(before)[0].origin.node
    alive = [node for node in make_nodes([2, 2]) if node.name != dead_node]
    after = plan_probes(alive, PlanOptions(), before.plan_by_zone, WALL_CLOCK_S - 3000)
    changed_zones = list_changed_zones(before, after)
    assert changed_zones
    assert all(after.plan_by_zone[zone].epoch > before.plan_by_zone[zone].epoch for zone in changed_zones)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (PlanOptions(duration_s=10.0, slot_s=6.0), "slotS"),
        (PlanOptions(interval_s=0), "intervalS"),
        (PlanOptions(node_pairs=0), "nodePairs"),
        (PlanOptions(extra_tests=("TCP_RR",)), "extraTests"),
    ],
)
def test_errors_of_invalid_options_name_the_field(options: PlanOptions, field: str) -> None:
    with pytest.raises(ConfigError, match=rf"plan\.{field}"):
        options.validate("plan")
