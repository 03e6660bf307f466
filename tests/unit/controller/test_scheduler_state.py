"""The scheduler's state: counted pods, locations of nodes, the weight of a NetworkTopology, and the group of a name."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import msgspec
import pytest

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.crds import AppGroup
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.state import NOTHING_PLACED, State
from kubekit.wire import Object, ObjectMeta
from tests.support.bodies import make_weight_body
from tests.unit.controller.scheduler_objects import (
    make_app_group,
    make_group_state,
    make_node,
    make_pod,
    make_state,
    make_topology,
    make_weighted_topology,
)

UPSTREAM = SchedulerConfig(parity="upstream")
NODES = {"near": make_node("near", "r", "z1"), "far": make_node("far", "r", "z2")}
MEASURED, CONFIGURED = (make_weight_body({("z1", "z2"): 9}, name=name) for name in ("NetperfCosts", "UserDefined"))


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


def test_a_relabelled_node_is_scored_by_its_new_location(state: State) -> None:
    state.on_pod_change("default/p1", None, make_pod("P2", "near"))
    assert read_cost_on_far_node(state) == 20
    state.on_node_change("far", NODES["far"], make_node("far", "r", "z1"))
    assert read_cost_on_far_node(state) == 1


def test_a_copy_of_the_state_does_not_change_with_it(state: State) -> None:
    """A thread reads the copy while the event loop changes the state."""
    state.on_pod_change("default/p1", None, make_pod("P2", "near"))
    copied = state.copy()
    state.on_pod_change("default/p1", make_pod("P2", "near"), make_pod("P2", "far"))
    assert read_cost_on_far_node(state) == 0
    assert read_cost_on_far_node(copied) == 20
    assert read_cost_on_far_node(state) == 0, "reading the copy does not change the state"


@pytest.mark.parametrize(
    ("weights", "expected", "expected_in_parity"),
    [
        ((MEASURED,), "NetperfCosts", ""),
        ((MEASURED, CONFIGURED), "UserDefined", "UserDefined"),
        ((make_weight_body({}, name="Other"),), "", ""),
    ],
)
def test_the_configured_weight_wins_over_the_measured_weight(
    weights: tuple[dict[str, Any], ...], expected: str, expected_in_parity: str
) -> None:
    topology = make_weighted_topology(*weights)
    assert make_state(SchedulerConfig(), topology).costs("default").weight_name == expected
    assert make_state(UPSTREAM, topology).costs("default").weight_name == expected_in_parity


def test_groups_are_found_by_namespace_then_by_list_then_by_namespaces_of_workloads() -> None:
    config = SchedulerConfig(network_overhead=NetworkOverheadArgs(namespaces=("infra", "default")))
    workload = {"kind": "D", "name": "p", "selector": "P", "namespace": "branch"}
    body = {"metadata": {"name": "a1", "namespace": "central"}, "spec": {"workloads": [{"workload": workload}]}}
    listed = make_app_group({"P": {}})
    state = make_state(config, listed, make_app_group({"P": {}}, "shop"), msgspec.convert(body, AppGroup))
    version = state.version
    consent = ObjectMeta(name="branch", labels={"netaware.io/appgroups-from": "central"})
    state.on_namespace_change("branch", None, Object(metadata=consent))
    assert state.version > version

    assert state.group_key_of("shop", "a1") == "shop/a1"
    assert state.group_key_of("branch", "a1") == "default/a1"
    assert state.group_key_of("elsewhere", "a1") == "default/a1"
    assert state.group_key_of("shop", "unknown") == ""
    state.on_group_change("default/a1", listed, None)
    assert state.group_key_of("branch", "a1") == "central/a1"
    assert state.group_key_of("elsewhere", "a1") == ""
