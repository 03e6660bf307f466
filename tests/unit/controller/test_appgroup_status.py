"""The status of an AppGroup: order, running pods and conditions. It does not change if nothing else does."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.appgroups.status import GroupState, build_status, compute_group_state
from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.costs import CostTable, Location
from controller.cluster.crds import AppGroup, AppGroupStatus, WeightInfo
from controller.cluster.membership import Membership
from controller.cluster.pods import Pod
from kubekit.wire import Condition
from tests.support.bodies import make_symmetric_costs, make_weight_body
from tests.unit.controller import scheduler_objects
from tests.unit.controller.scheduler_objects import make_group_pod

LOCATION_BY_NODE: dict[str, Location] = {
    "n1": Location("west", "z1"),
    "n2": Location("west", "z1"),
    "n3": Location("west", "z2"),
    "n4": Location("east", "z3"),
    "bare": Location("", ""),
}
WEIGHT = make_weight_body(make_symmetric_costs({("z1", "z2"): 5}), make_symmetric_costs({("west", "east"): 20}))
COSTS = CostTable(msgspec.convert(WEIGHT, WeightInfo))
make_group = partial(scheduler_objects.make_app_group, namespace="shop", name="g", members=2, algorithm="ReverseKahn")
CHAIN: dict[str, dict[str, int]] = {"P1": {"P2": 15}, "P2": {}}


def compute_state(app_group: AppGroup, *pods: Pod, costs: CostTable = COSTS) -> GroupState:
    membership = Membership.from_objects([app_group], (), NetworkOverheadArgs())
    return compute_group_state(app_group, pods, LOCATION_BY_NODE, costs, membership)


def read_condition(app_group: AppGroup, type_: str, *pods: Pod, costs: CostTable = COSTS) -> Condition:
    status = build_status(app_group, compute_state(app_group, *pods, costs=costs), 1000.0)
    return next(condition for condition in status.conditions or () if condition.type == type_)


def test_indexes_count_from_one_and_the_list_is_sorted_by_selector() -> None:
    app_group = make_group({"b": {"a": 1}, "a": {}, "C": {}})
    status = build_status(app_group, compute_state(app_group), 1000.0)
    assert status.topology_order is not None
    index_by_selector = {entry.workload.selector: entry.index for entry in status.topology_order}
    assert list(index_by_selector) == ["C", "a", "b"], "bytewise, as upstream searches"
    assert sorted(index_by_selector.values()) == [1, 2, 3]
    assert index_by_selector["a"] < index_by_selector["b"]


def test_a_cycle_is_reported_with_its_path_and_every_workload_has_an_index() -> None:
    app_group = make_group({"a": {"b": 1}, "b": {"c": 1}, "c": {"a": 1}, "d": {"a": 1}})
    condition = read_condition(app_group, "SpecValid")
    assert (condition.status, condition.reason) == ("False", "Cycle")
    assert "a -> b -> c -> a" in condition.message
    assert len(build_status(app_group, compute_state(app_group), 1.0).topology_order or ()) == 4


def test_an_unknown_cost_is_neither_met_nor_violated() -> None:
    app_group = make_group(CHAIN)
    pods = make_group_pod("P1", "n1"), make_group_pod("P2", "n3")
    assert compute_state(app_group, *pods, costs=CostTable()).checks[0].verdict == "unknown"
    condition = read_condition(app_group, "CostsMet", *pods, costs=CostTable())
    assert (condition.status, condition.reason) == ("Unknown", "CostsUnknown")


def test_the_worst_pair_of_pods_decides_and_the_message_names_the_worst_dependencies_first() -> None:
    app_group = make_group({"P1": {"P2": 15, "P3": 4}, "P2": {}, "P3": {}})
    pods = [
        make_group_pod("P1", "n1"),
        make_group_pod("P2", "n1", name="x"),
        make_group_pod("P2", "n4", name="y"),
        make_group_pod("P3", "n3"),
    ]
    condition = read_condition(app_group, "CostsMet", *pods)
    assert (condition.status, condition.reason) == ("False", "CostsExceeded")
    assert condition.message == (
        "0 of 2 placed dependencies within their maxNetworkCost; worst: "
        "P1 to P2 costs 20, at most 15 (z1 to z3); P1 to P3 costs 5, at most 4 (z1 to z2)"
    )


def test_dependencies_of_pods_that_are_not_placed_do_not_count() -> None:
    app_group = make_group({"P1": {"P2": 15}, "P2": {"P3": 0}, "P3": {}})
    condition = read_condition(app_group, "CostsMet", make_group_pod("P1", "n1"), make_group_pod("P2", "n3"))
    assert condition.status == "True"
    assert condition.message == "1 of 1 placed dependencies within their maxNetworkCost"
    assert read_condition(app_group, "CostsMet").reason == "NothingPlaced"


@pytest.mark.parametrize(
    "callee",
    [
        make_group_pod("P2", "n4", phase="Succeeded"),
        make_group_pod("P2", "n4", is_terminating=True),
        make_group_pod("P2", "gone"),
        make_group_pod("P2", ""),
    ],
)
def test_finished_and_terminating_pods_and_pods_on_no_known_node_do_not_count(callee: Pod) -> None:
    state = compute_state(make_group(CHAIN), make_group_pod("P1", "n1"), callee)
    assert state.checks[0].verdict == "idle"


def test_the_start_time_is_the_first_pods_creation_and_stays_after_its_deletion() -> None:
    app_group = make_group(CHAIN)
    pods = [
        make_group_pod("P1", "", created="2026-01-01T10:00:00Z"),
        make_group_pod("P2", "", created="2026-01-01T09:00:00Z"),
    ]
    status = build_status(app_group, compute_state(app_group, *pods), 1000.0)
    assert status.schedule_start_time == "2026-01-01T09:00:00Z"
    without_pods = msgspec.structs.replace(app_group, status=status)
    assert build_status(without_pods, compute_state(without_pods), 2000.0).schedule_start_time == "2026-01-01T09:00:00Z"


def test_the_calculation_time_changes_with_the_spec_only() -> None:
    app_group = make_group(CHAIN)
    status = build_status(app_group, compute_state(app_group), 1000.0)
    unchanged = msgspec.structs.replace(app_group, status=status)
    with_pods = build_status(unchanged, compute_state(unchanged, make_group_pod("P1", "n1")), 2000.0)
    assert with_pods.topology_calculation_time == status.topology_calculation_time
    changed = make_group({"P1": {}, "P2": {"P1": 1}}, status=status, generation=2)
    time = build_status(changed, compute_state(changed), 3000.0).topology_calculation_time
    assert time == "1970-01-01T00:50:00Z", "3000 s"


@given(
    st.dictionaries(
        st.sampled_from("abcde"), st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 30), max_size=3)
    ),
    st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from([*LOCATION_BY_NODE, "", "gone"])), max_size=12),
    st.sampled_from(["KahnSort", "ReverseTarjan", "AlternateKahn", "x"]),
)
def test_an_unchanged_status_is_not_written_again(
    calls: dict[str, dict[str, int]], placements: list[tuple[str, str]], algorithm: str
) -> None:
    app_group = make_group(calls, algorithm=algorithm)
    pods = [make_group_pod(workload, node, name=str(i)) for i, (workload, node) in enumerate(placements)]
    status = build_status(app_group, compute_state(app_group, *pods), 1000.0)
    stored = msgspec.json.decode(msgspec.json.encode(status), type=AppGroupStatus)
    unchanged = msgspec.structs.replace(app_group, status=stored)
    assert build_status(unchanged, compute_state(unchanged, *reversed(pods)), 9000.0) == stored
