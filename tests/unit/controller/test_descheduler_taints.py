"""The taint of hot nodes: which nodes have it, and how it is written beside the taints of others."""

from __future__ import annotations

import pytest

from controller.descheduler.node_load import LoadClass
from controller.descheduler.plan import NodeState
from controller.descheduler.taints import build_taint_patches
from netperf.contract import HOT_TAINT
from tests.support.descheduler_builders import AnomalyDetector, make_host, make_node, nodes_to_taint

HOT = {"key": HOT_TAINT, "effect": "PreferNoSchedule"}
NODES = {host.name: host for host in (make_host("plain"), make_host("tainted", taints=[HOT]))}


@pytest.mark.parametrize(
    ("cpu_percent", "load_class", "is_anomalous", "nodes_with_taint"),
    [
        (36, "normal", False, {"plain", "tainted"}),
        (30, "normal", False, {"tainted"}),
        (20, "normal", False, set()),
        (20, "normal", True, {"plain", "tainted"}),
        (0, "unknown", False, {"tainted"}),
    ],
)
def test_nodes_are_tainted_above_the_midpoint_of_their_thresholds_until_they_are_underutilized(
    cpu_percent: float, load_class: LoadClass, nodes_with_taint: set[str], *, is_anomalous: bool
) -> None:
    """The midpoint of 20 and 50 % is 35 %."""
    usage, low, high = {"cpu": cpu_percent}, {"cpu": 20.0}, {"cpu": 50.0}
    states = [NodeState(name, "default", load_class, usage, low, high) for name in NODES]
    detectors = dict.fromkeys(NODES, AnomalyDetector(is_anomalous=is_anomalous))
    assert set(nodes_to_taint(states, detectors, NODES)) == nodes_with_taint


def test_the_taint_is_added_and_removed_beside_other_taints() -> None:
    other_taint, users_hot_taint = {**HOT, "key": "x"}, {**HOT, "effect": "NoSchedule"}
    taints_by_node = {"a": [], "b": [other_taint], "c": [other_taint, HOT], "d": [HOT], "e": [users_hot_taint]}
    nodes = {name: make_node(name, taints=taints) for name, taints in taints_by_node.items()}

    patches = build_taint_patches(nodes, frozenset({"a", "b", "d"}))

    assert patches == {
        "a": [
            {"op": "test", "path": "/metadata/resourceVersion", "value": ""},
            {"op": "add", "path": "/spec/taints", "value": [HOT]},
        ],
        "b": [{"op": "add", "path": "/spec/taints/-", "value": HOT}],
        "c": [
            {"op": "test", "path": "/spec/taints/1/key", "value": HOT_TAINT},
            {"op": "test", "path": "/spec/taints/1/effect", "value": "PreferNoSchedule"},
            {"op": "remove", "path": "/spec/taints/1"},
        ],
    }
