"""The status of an AppGroup: order, running pods and conditions. It does not change if nothing else does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.appgroups.status import GroupState, build_status, compute_group_state, consent_condition
from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.costs import CostTable, Location
from controller.cluster.crds import WORKLOAD_LABEL, AppGroup, AppGroupStatus, WeightInfo
from controller.cluster.membership import Membership
from controller.cluster.pods import Pod
from controller.cluster.services import Service, ServiceIndex
from kubekit.wire import Condition
from tests.support.bodies import make_symmetric_costs, make_weight_body
from tests.unit.controller import scheduler_objects
from tests.unit.controller.scheduler_objects import make_group_pod as pod

NODES: dict[str, Location] = {
    "n1": Location("west", "z1"),
    "n2": Location("west", "z1"),
    "n3": Location("west", "z2"),
    "n5": Location("east", "z3"),
    "bare": Location("", ""),
}


WEIGHT = make_weight_body(make_symmetric_costs({("z1", "z2"): 5}), make_symmetric_costs({("west", "east"): 20}))
COSTS = CostTable(msgspec.convert(WEIGHT, WeightInfo))
group = partial(scheduler_objects.make_app_group, namespace="shop", name="g", members=2, algorithm="ReverseKahn")


def service(
    name: str, selector: Mapping[str, str], distribution: str = "", *, namespace: str = "shop", version: str = "1"
) -> Service:
    """A Service with an address, and with a trafficDistribution where one is given."""
    metadata = {"name": name, "namespace": namespace, "resourceVersion": version}
    spec = {"selector": selector, "trafficDistribution": distribution, "clusterIP": "10.0.0.1"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Service)


def state_of(app_group: AppGroup, *pods: Pod, rules: NetworkOverheadArgs | None = None, **more: Any) -> GroupState:
    membership = Membership.from_objects([app_group], (), rules or NetworkOverheadArgs())
    return compute_group_state(app_group, pods, NODES, more.pop("costs", COSTS), membership, **more)


def condition_of(app_group: AppGroup, type_: str, *pods: Pod, **more: Any) -> Condition:
    status = build_status(app_group, state_of(app_group, *pods, **more), 1000.0)
    return next(condition for condition in status.conditions or () if condition.type == type_)


CHAIN: dict[str, dict[str, int]] = {"P1": {"P2": 15}, "P2": {}}


def test_indexes_count_from_one_and_the_list_is_sorted_by_selector() -> None:
    app_group = group({"b": {"a": 1}, "a": {}, "C": {}})
    status = build_status(app_group, state_of(app_group), 1000.0)
    assert status.topology_order is not None
    assert [entry.workload.selector for entry in status.topology_order] == ["C", "a", "b"], (
        "bytewise, as upstream searches"
    )
    assert sorted(entry.index for entry in status.topology_order) == [1, 2, 3]
    index = {entry.workload.selector: entry.index for entry in status.topology_order}
    assert index["a"] < index["b"]


def test_a_cycle_is_reported_with_its_path_and_every_workload_has_an_index() -> None:
    app_group = group({"a": {"b": 1}, "b": {"c": 1}, "c": {"a": 1}, "d": {"a": 1}})
    condition = condition_of(app_group, "SpecValid")
    assert (condition.status, condition.reason) == ("False", "Cycle")
    assert "a -> b -> c -> a" in condition.message
    assert len(build_status(app_group, state_of(app_group), 1.0).topology_order or ()) == 4


def test_an_unknown_algorithm_is_reported_with_its_fallback() -> None:
    condition = condition_of(group(CHAIN, algorithm="Bogus"), "SpecValid")
    assert (condition.status, condition.reason) == ("False", "UnknownAlgorithm")
    assert "unknown algorithm 'Bogus', so KahnSort is used" in condition.message


@pytest.mark.parametrize(
    ("caller", "called", "verdict", "cost"),
    [
        ("n1", "n1", "met", 0),
        ("n1", "n2", "met", 1),
        ("n1", "n3", "met", 5),
        ("n1", "n5", "violated", 20),
        ("n3", "n5", "violated", 20),
        ("n1", "bare", "violated", 100),
    ],
)
def test_dependencies_are_checked_by_network_overheads_rule(caller: str, called: str, verdict: str, cost: int) -> None:
    state = state_of(group(CHAIN), pod("P1", caller), pod("P2", called))
    assert (state.checks[0].verdict, state.checks[0].cost) == (verdict, cost)


def test_an_unknown_cost_is_neither_met_nor_violated() -> None:
    app_group = group(CHAIN)
    pods = pod("P1", "n1"), pod("P2", "n3")
    assert state_of(app_group, *pods, costs=CostTable()).checks[0].verdict == "unknown"
    condition = condition_of(app_group, "CostsMet", *pods, costs=CostTable())
    assert (condition.status, condition.reason) == ("Unknown", "CostsUnknown")


def test_the_worst_pair_of_pods_decides_and_the_message_names_the_worst_dependencies_first() -> None:
    app_group = group({"P1": {"P2": 15, "P3": 4}, "P2": {}, "P3": {}})
    pods = [pod("P1", "n1"), pod("P2", "n1", name="x"), pod("P2", "n5", name="y"), pod("P3", "n3")]
    condition = condition_of(app_group, "CostsMet", *pods)
    assert (condition.status, condition.reason) == ("False", "CostsExceeded")
    assert condition.message == (
        "0 of 2 placed dependencies within their maxNetworkCost; worst: "
        "P1 to P2 costs 20, at most 15 (z1 to z3); P1 to P3 costs 5, at most 4 (z1 to z2)"
    )


def test_dependencies_of_pods_that_are_not_placed_do_not_count() -> None:
    app_group = group({"P1": {"P2": 15}, "P2": {"P3": 0}, "P3": {}})
    condition = condition_of(app_group, "CostsMet", pod("P1", "n1"), pod("P2", "n3"))
    assert (condition.status, condition.message) == (
        "True",
        "1 of 1 placed dependencies within their maxNetworkCost",
    )
    assert condition_of(app_group, "CostsMet").reason == "NothingPlaced"


def test_finished_and_terminating_pods_and_pods_on_no_known_node_do_not_count() -> None:
    for uncounted in (
        pod("P2", "n5", phase="Succeeded"),
        pod("P2", "n5", is_terminating=True),
        pod("P2", "gone"),
        pod("P2", ""),
    ):
        state = state_of(group(CHAIN), pod("P1", "n1"), uncounted)
        assert state.checks[0].verdict == "idle"


def test_running_pods_are_counted_in_the_groups_own_namespaces_only() -> None:
    app_group = group(CHAIN, members=2)
    pods = [pod("P1", "n1"), pod("P2", "n1"), pod("P2", "n1", namespace="elsewhere"), pod("P2", "n1", group="h")]
    assert state_of(app_group, *pods).running_count == 2
    condition = condition_of(app_group, "Complete", *pods)
    assert (condition.status, condition.message) == ("True", "2 of 2 pods run")
    assert condition_of(app_group, "Complete", pods[0], pod("P2", "n1", phase="Pending")).status == "False"


def test_the_start_time_is_the_first_pods_creation_and_stays_after_its_deletion() -> None:
    app_group = group(CHAIN)
    pods = [pod("P1", "", created="2026-01-01T10:00:00Z"), pod("P2", "", created="2026-01-01T09:00:00Z")]
    status = build_status(app_group, state_of(app_group, *pods), 1000.0)
    assert status.schedule_start_time == "2026-01-01T09:00:00Z"
    later = msgspec.structs.replace(app_group, status=status)
    assert build_status(later, state_of(later), 2000.0).schedule_start_time == "2026-01-01T09:00:00Z"


def test_the_calculation_time_changes_with_the_spec_only() -> None:
    app_group = group(CHAIN)
    first = build_status(app_group, state_of(app_group), 1000.0)
    same = msgspec.structs.replace(app_group, status=first)
    with_pods = build_status(same, state_of(same, pod("P1", "n1")), 2000.0)
    assert with_pods.topology_calculation_time == first.topology_calculation_time
    changed = group({"P1": {}, "P2": {"P1": 1}}, status=first, generation=2)
    assert build_status(changed, state_of(changed), 3000.0).topology_calculation_time == "1970-01-01T00:50:00Z"


@given(
    st.dictionaries(
        st.sampled_from("abcde"), st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 30), max_size=3)
    ),
    st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from([*NODES, "", "gone"])), max_size=12),
    st.sampled_from(["KahnSort", "ReverseTarjan", "AlternateKahn", "x"]),
)
def test_an_unchanged_status_is_not_written_again(
    calls: dict[str, dict[str, int]], placed: list[tuple[str, str]], algorithm: str
) -> None:
    app_group = group(calls, algorithm=algorithm)
    pods = [pod(workload, node, name=str(i)) for i, (workload, node) in enumerate(placed)]
    first = build_status(app_group, state_of(app_group, *pods), 1000.0)
    stored = msgspec.json.decode(msgspec.json.encode(first), type=AppGroupStatus)
    again = msgspec.structs.replace(app_group, status=stored)
    assert build_status(again, state_of(again, *reversed(pods)), 9000.0) == stored


def test_costs_are_met_if_the_answering_replica_is_near() -> None:
    """There is one replica per zone; with PreferSameZone each caller calls its own."""
    app_group = group({"P1": {"P2": 3}, "P2": {}})
    pods = [pod("P1", "n1"), pod("P1", "n3", name="q"), pod("P2", "n2", name="r"), pod("P2", "n3", name="s")]

    def verdict(distribution: str, *which: Pod) -> tuple[str, int]:
        services = ServiceIndex.from_objects([service("p2", {WORKLOAD_LABEL: "P2"}, distribution)])
        state = state_of(app_group, *which, services=services)
        return state.checks[0].verdict, state.checks[0].cost

    assert verdict("", *pods) == ("violated", 5)
    assert verdict("PreferSameZone", *pods) == ("met", 1)
    assert verdict("PreferSameNode", *pods) == ("met", 1), "n1 has none, so n2 answers"
    assert verdict("PreferSameNode", pods[1], pods[3]) == ("met", 0)
    assert verdict("PreferSameZone", pods[0], pods[3]) == ("violated", 5), "where the zone has none, any answers"
    assert verdict("PreferSameZone", pod("P1", "bare"), pods[2]) == verdict("", pod("P1", "bare"), pods[2])
    unhinted = [*pods, pod("P2", "bare", name="t")]
    assert verdict("PreferSameZone", *unhinted) == verdict("", *unhinted), "one replica has no zone, so any answers"


def test_the_least_local_service_of_several_namespaces_counts() -> None:
    app_group = group({"P1": {"P2": 3}, "P2": {}})
    rules, selector = NetworkOverheadArgs(namespaces=("shop",)), {WORKLOAD_LABEL: "P2"}
    services = ServiceIndex.from_objects(
        [service("p2", selector, "PreferSameZone"), service("p2", selector, namespace="more")]
    )
    pods = [pod("P1", "n1"), pod("P2", "n2", name="r"), pod("P2", "n3", name="s", namespace="more")]
    for order in (pods, pods[::-1]):
        state = state_of(app_group, *order, rules=rules, services=services)
        assert (state.checks[0].verdict, state.checks[0].cost) == ("violated", 5)


def test_namespaces_without_consent_are_named_or_counted() -> None:
    condition = consent_condition(group({"P1": {}}), ["a", "b", "c", "d", "e"])
    assert condition is not None
    assert condition.message.startswith("pods of a, b, c, and 2 more are not the group's")
