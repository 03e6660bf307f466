"""The scheduler's state: counted pods, and copies."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import pytest

from controller.scheduler.state import NOTHING_PLACED, State
from tests.unit.controller.scheduler_objects import (
    make_group_state,
    make_node,
    make_pod,
    make_topology,
)

NODES = {"near": make_node("near", "r", "z1"), "far": make_node("far", "r", "z2")}


@pytest.fixture
def state() -> State:
    """P1 depends on P2; from far to near, calls cost 20."""
    return make_group_state(NODES.values(), make_topology({("z2", "z1"): 20}), {"P1": {"P2": 15}, "P2": {}})


def read_cost_on_far_node(state: State) -> int:
    """Cost of a pod of P1 on the node far."""
    return state.score("default", "a1", "P1").node_score("far", state.location_index["far"]).cost


@pytest.mark.parametrize(
    "pod",
    [
        make_pod("P2", "near", status={"phase": "Succeeded"}),
        make_pod("P2", "gone"),
        make_pod("P2", "near", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
    ],
    ids=["finished", "on a deleted node", "terminating"],
)
def test_finished_and_terminating_pods_and_pods_on_deleted_nodes_do_not_count(state: State, pod: Any) -> None:
    state.on_pod_change(pod.metadata.key, None, pod)
    assert state.score("default", "a1", "P1").neutral_reason == NOTHING_PLACED


def test_counts_follow_added_moved_and_deleted_pods(state: State) -> None:
    waiting, bound = make_pod("P2"), make_pod("P2", "near")
    state.on_pod_change("default/p1", None, waiting)
    assert state.score("default", "a1", "P1").neutral_reason
    state.on_pod_change("default/p1", waiting, bound)
    assert state.pod_counts("default/a1") == {"P2": Counter({"near": 1})}
    assert not state.score("default", "a1", "P1").neutral_reason
    state.on_pod_change("default/p1", bound, None)
    assert state.score("default", "a1", "P1").neutral_reason


def test_nothing_is_kept_of_namespaces_that_are_gone(state: State) -> None:
    size_before = len(pickle.dumps(state))
    for namespace in map("preview-{}".format, range(100)):
        pod = make_pod("P2", "near", metadata={"namespace": namespace})
        state.on_pod_change(pod.metadata.key, None, pod)
        state.on_pod_change(pod.metadata.key, pod, None)
        state.on_namespace_change(namespace, None, None)
    assert len(pickle.dumps(state)) - size_before < 1000


def test_a_copy_of_the_state_does_not_change_with_it(state: State) -> None:
    """A thread reads the copy while the event loop changes the state."""
    state.on_pod_change("default/p1", None, make_pod("P2", "near"))
    copied = state.copy()
    state.on_pod_change("default/p1", make_pod("P2", "near"), make_pod("P2", "far"))
    assert read_cost_on_far_node(state) == 0
    assert read_cost_on_far_node(copied) == 20
    assert read_cost_on_far_node(state) == 0, "reading the copy does not change the state"
