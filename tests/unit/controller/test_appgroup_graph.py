"""Dependency graphs of AppGroups: dependencies by selector or name, and faults, which do not stop the rest."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.cluster.crds import AppGroup
from controller.cluster.dependency_graph import DependencyEdge, DependencyGraph, build_graph

Workload = tuple[str, list[dict[str, Any]]]


def reference(text: str, kind: str = "") -> dict[str, str]:
    """A reference from ``selector/name/kind``; name and kind may be left out."""
    selector, name, own_kind = (text + "//").split("/")[:3]
    return {"selector": selector, "name": name, "kind": own_kind or kind}


def call(text: str, **limits: Any) -> dict[str, Any]:
    return {"workload": reference(text), **limits}


def build(*workloads: Workload) -> DependencyGraph:
    items = [{"workload": reference(text, "Deployment"), "dependencies": calls} for text, calls in workloads]
    return build_graph(msgspec.convert({"spec": {"numMembers": 1, "workloads": items}}, AppGroup).spec)


STRICTEST = [call("b", maxNetworkCost=9, minBandwidth="1k"), call("b", maxNetworkCost=4, minBandwidth="500")]
INVALID = [call("b", maxNetworkCost=20_000, minBandwidth="much"), call("c", minBandwidth="-5")]
BY_SELECTOR = [call("b/another-name", maxNetworkCost=5, minBandwidth="1M")]


@pytest.mark.parametrize(
    ("workloads", "edges", "reasons"),
    [
        pytest.param([("a/x", BY_SELECTOR), ("b/y", [])], [DependencyEdge(0, 1, 1_000_000, 5)], [], id="by selector"),
        pytest.param([("a/web", [call("/db")]), ("b/db", [])], [DependencyEdge(0, 1)], [], id="by name"),
        pytest.param(
            [("a/web", [call("/db/StatefulSet")]), ("b/db", []), ("c/db/StatefulSet", [])], [DependencyEdge(0, 2)], [], id="by name, kind"
        ),
        pytest.param([("a/web", [call("/db")]), ("b/db", []), ("c/db", [])], [], ["AmbiguousDependency"], id="ambiguous"),
        pytest.param([("a", [call("nowhere"), call("b")]), ("b", [])], [DependencyEdge(0, 1)], ["UnknownDependency"], id="unknown"),
        pytest.param([("a/x", [call("/x")])], [], ["SelfDependency"], id="itself"),
        pytest.param([("a", STRICTEST), ("b", [])], [DependencyEdge(0, 1, 1000, 4)], [], id="strictest limits of a repeated one"),
        pytest.param(
            [("a", INVALID), ("b", []), ("c", [])],
            [DependencyEdge(0, 1, 0, 10_000), DependencyEdge(0, 2)],
            ["BadCost", "BadBandwidth", "BadBandwidth"],
            id="nearest valid limits",
        ),
        pytest.param([], [], [], id="no workloads"),
    ],
)  # fmt: skip
def test_dependencies_become_edges_and_faults_are_reported(
    workloads: list[Workload], edges: list[DependencyEdge], reasons: list[str]
) -> None:
    graph = build(*workloads)
    assert (list(graph.edges), [fault.reason for fault in graph.faults]) == (edges, reasons)
    assert graph.callees_by_caller() == [
        [e.callee for e in graph.edges if e.caller == i] for i in range(len(workloads))
    ]
    assert all(fault.message for fault in graph.faults)


def test_a_workload_without_a_unique_selector_is_a_fault() -> None:
    graph = build(("a/one", []), ("a/two", [call("a")]), ("/x", []), ("b", []))
    assert [workload.name for workload in graph.workloads] == ["one", ""]
    assert graph.selectors == ("a", "b")
    assert [fault.reason for fault in graph.faults] == ["DuplicateSelector", "NoSelector"]
