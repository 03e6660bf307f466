"""Dependency graphs of AppGroups, where a fault drops only its own dependency, and the six orders of their workloads."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.appgroups.order import ALGORITHMS, sort_workloads
from controller.cluster.crds import AppGroup
from controller.cluster.dependency_graph import DependencyEdge, DependencyGraph, build_graph
from tests.support.online_boutique import BOUTIQUE, BOUTIQUE_CALLS, EXPECTED_ORDERS

BOUTIQUE_CALLEES = [[BOUTIQUE.index(callee) for callee in BOUTIQUE_CALLS.get(name, "").split()] for name in BOUTIQUE]
Workload = tuple[str, list[dict[str, Any]]]  # its reference, and its calls


def make_reference(text: str, kind: str = "") -> dict[str, str]:
    """A reference from ``selector/name/kind``, for example ``/db/StatefulSet`` by name and kind, or ``db`` by selector."""
    selector, name, own_kind = (text + "//").split("/")[:3]
    return {"selector": selector, "name": name, "kind": own_kind or kind}


def make_call(text: str, **limits: Any) -> dict[str, Any]:
    return {"workload": make_reference(text), **limits}


def build_graph_of(*workloads: Workload) -> DependencyGraph:
    items = [{"workload": make_reference(text, "Deployment"), "dependencies": calls} for text, calls in workloads]
    return build_graph(msgspec.convert({"spec": {"numMembers": 1, "workloads": items}}, AppGroup).spec)


STRICTEST = [make_call("b", maxNetworkCost=9, minBandwidth="1k"), make_call("b", maxNetworkCost=4, minBandwidth="500")]
INVALID = [make_call("b", maxNetworkCost=20_000, minBandwidth="much"), make_call("c", minBandwidth="-5")]
BY_SELECTOR = [make_call("b/another-name", maxNetworkCost=5, minBandwidth="1M")]


WEB: Workload = ("a/web", [make_call("/db")])
FIRST_CALLS_SECOND = DependencyEdge(0, 1)


class DependencyCase(NamedTuple):
    workloads: list[Workload]
    edges: list[DependencyEdge] = []
    fault_reasons: list[str] = []


DEPENDENCY_CASES = {
    "by selector": DependencyCase([("a/x", BY_SELECTOR), ("b/y", [])], [DependencyEdge(0, 1, 1_000_000, 5)]),
    "by name": DependencyCase([WEB, ("b/db", [])], [FIRST_CALLS_SECOND]),
    "by name and kind": DependencyCase(
        [("a/web", [make_call("/db/StatefulSet")]), ("b/db", []), ("c/db/StatefulSet", [])], [DependencyEdge(0, 2)]
    ),
    "ambiguous": DependencyCase([WEB, ("b/db", []), ("c/db", [])], fault_reasons=["AmbiguousDependency"]),
    "unknown": DependencyCase(
        [("a", [make_call("nowhere"), make_call("b")]), ("b", [])], [FIRST_CALLS_SECOND], ["UnknownDependency"]
    ),
    "itself": DependencyCase([("a/x", [make_call("/x")])], fault_reasons=["SelfDependency"]),
    "strictest limits if repeated": DependencyCase([("a", STRICTEST), ("b", [])], [DependencyEdge(0, 1, 1000, 4)]),
    "nearest valid limits": DependencyCase(
        [("a", INVALID), ("b", []), ("c", [])],
        [DependencyEdge(0, 1, 0, 10_000), DependencyEdge(0, 2)],
        ["BadCost", "BadBandwidth", "BadBandwidth"],
    ),
    "no workloads": DependencyCase([]),
}


@pytest.mark.parametrize("case", DEPENDENCY_CASES.values(), ids=DEPENDENCY_CASES)
def test_dependencies_become_edges_and_faults_are_reported(case: DependencyCase) -> None:
    graph = build_graph_of(*case.workloads)
    assert list(graph.edges) == case.edges
    assert [fault.reason for fault in graph.faults] == case.fault_reasons
    assert graph.callees_by_caller() == [
        [edge.callee for edge in graph.edges if edge.caller == caller] for caller in range(len(case.workloads))
    ]
    assert all(fault.message for fault in graph.faults)


def test_a_workload_without_a_unique_selector_is_a_fault() -> None:
    graph = build_graph_of(("a/one", []), ("a/two", [make_call("a")]), ("/x", []), ("b", []))
    assert [workload.name for workload in graph.workloads] == ["one", ""]
    assert graph.selectors == ("a", "b")
    assert [fault.reason for fault in graph.faults] == ["DuplicateSelector", "NoSelector"]


@pytest.mark.parametrize("algorithm", [*sorted(EXPECTED_ORDERS), "", "Reverse", "FooTarjan"])
def test_online_boutique_has_the_order_of_the_contract_and_unknown_algorithms_are_kahn_sort(algorithm: str) -> None:
    order = sort_workloads(BOUTIQUE_CALLEES, algorithm)
    expected_order = EXPECTED_ORDERS.get(algorithm, EXPECTED_ORDERS["KahnSort"])
    assert " ".join(BOUTIQUE[i] for i in order.sequence) == expected_order


@given(st.integers(0, 25), st.lists(st.tuples(st.integers(0, 24), st.integers(0, 24)), max_size=80))
def test_orders_have_all_workloads_with_callers_first_unless_a_cycle_is_reported(
    count: int, edges: list[tuple[int, int]]
) -> None:
    callees: list[list[int]] = [[] for _ in range(count)]
    for caller, callee in dict.fromkeys(edges):
        if caller < count and callee < count and caller != callee:
            callees[caller].append(callee)

    for algorithm in ALGORITHMS:
        order = sort_workloads(callees, algorithm)
        assert sorted(order.sequence) == list(range(count))
        assert all(after in callees[before] for before, after in itertools.pairwise(order.cycle))
        assert order.cycle[:1] == order.cycle[-1:]
        rank = {workload: i for i, workload in enumerate(order.sequence)}
        if "Alternate" in algorithm:  # promises no order of callers and callees
            continue
        callers_come_first = [rank[caller] < rank[callee] for caller in range(count) for callee in callees[caller]]
        violates_an_edge = any(callers_come_first) if "Reverse" in algorithm else not all(callers_come_first)
        assert violates_an_edge == bool(order.cycle)


def test_a_chain_of_5000_needs_no_recursion() -> None:
    callees = [[i + 1] for i in range(4999)] + [[]]
    assert sort_workloads(callees, "TarjanSort").sequence == tuple(range(5000))
