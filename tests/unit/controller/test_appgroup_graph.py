"""Specs become graphs: selectors and names are both honoured, and whatever is wrong is told and stops nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.cluster.dependency_graph import DependencyEdge, DependencyGraph, build_graph
from tests.unit.controller.objects import AppGroup

Workload = tuple[str, list[dict[str, Any]]]


def ref(text: str, kind: str = "") -> dict[str, str]:
    """``selector/name/kind``, of which the last may be left out."""
    selector, name, said = (text + "//").split("/")[:3]
    return {"selector": selector, "name": name, "kind": said or kind}


def needs(text: str, **more: Any) -> dict[str, Any]:
    return {"workload": ref(text), **more}


def graph(*workloads: Workload) -> DependencyGraph:
    items = [{"workload": ref(one, "Deployment"), "dependencies": below} for one, below in workloads]
    return build_graph(msgspec.convert({"spec": {"numMembers": 1, "workloads": items}}, AppGroup).spec)


@pytest.mark.parametrize(
    ("workloads", "edges", "problems"),
    [
        # By its selector, whatever its name; else by its name, and kind tells which is meant.
        (
            [("a/x", [needs("b/another-name", maxNetworkCost=5, minBandwidth="1M")]), ("b/y", [])],
            [DependencyEdge(0, 1, 1_000_000, 5)],
            [],
        ),
        ([("a/web", [needs("/db")]), ("b/db", [])], [DependencyEdge(0, 1)], []),
        ([("a/web", [needs("/db/StatefulSet")]), ("b/db", []), ("c/db/StatefulSet", [])], [DependencyEdge(0, 2)], []),
        ([("a/web", [needs("/db")]), ("b/db", []), ("c/db", [])], [], ["AmbiguousDependency"]),
        ([("a", [needs("nowhere"), needs("b")]), ("b", [])], [DependencyEdge(0, 1)], ["UnknownDependency"]),
        ([("a/x", [needs("/x")])], [], ["SelfDependency"]),
        # Of a repeated dependency the strictest demands count; bad numbers become what bounds them.
        (
            [
                (
                    "a",
                    [
                        needs("b", maxNetworkCost=9, minBandwidth="1k"),
                        needs("b", maxNetworkCost=4, minBandwidth="500"),
                    ],
                ),
                ("b", []),
            ],
            [DependencyEdge(0, 1, 1000, 4)],
            [],
        ),
        (
            [
                ("a", [needs("b", maxNetworkCost=20_000, minBandwidth="much"), needs("c", minBandwidth="-5")]),
                ("b", []),
                ("c", []),
            ],
            [DependencyEdge(0, 1, 0, 10_000), DependencyEdge(0, 2)],
            ["BadCost", "BadBandwidth", "BadBandwidth"],
        ),
        ([], [], []),
    ],
)
def test_dependencies_become_edges_and_faults_are_reported(
    workloads: list[Workload], edges: list[DependencyEdge], problems: list[str]
) -> None:
    found = graph(*workloads)
    assert (list(found.edges), [fault.reason for fault in found.faults]) == (edges, problems)
    assert found.callees_by_caller() == [
        [e.callee for e in found.edges if e.caller == i] for i in range(len(workloads))
    ]
    assert all(fault.message for fault in found.faults)


def test_a_workload_without_a_unique_selector_is_a_fault() -> None:
    found = graph(("a/one", []), ("a/two", [needs("a")]), ("/x", []), ("b", []))
    assert [one.name for one in found.workloads] == ["one", ""]
    assert found.selectors == ("a", "b")
    assert [fault.reason for fault in found.faults] == ["DuplicateSelector", "NoSelector"]
