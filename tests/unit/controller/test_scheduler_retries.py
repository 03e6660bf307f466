"""Pods for which the scheduler found no node are requeued, replaced or reported."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.cluster.crds import NetworkTopology
from controller.cluster.pods import Pod, Target
from controller.scheduler.affinity import NARROWED_ANNOTATION
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.gating.retries import (
    REPLACE_AFTER_S,
    Action,
    PodReplacement,
    Report,
    Retry,
    UnschedulablePods,
)
from controller.scheduler.placement.planner import Plan
from controller.scheduler.state import State
from tests.unit.controller.scheduler_objects import make_group_state, make_node, make_pod, make_topology

CONFIG = SchedulerConfig(placement="affinity")
ON_A, ON_B = Target("a", "r", "n-a"), Target("b", "r", "n-b")
NARROWED = '{"key":"topology.kubernetes.io/zone","operator":"In","values":["a"]}'
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False"}


def make_zone_pod(kind: str = "ReplicaSet", name: str = "p", *, is_controller: bool = True, **metadata: Any) -> Pod:
    """An unschedulable pod of this kind of controller, whose zone an earlier plan required."""
    owner = {"kind": kind, "name": "o", "uid": f"u-{kind}", "controller": is_controller}
    annotations = {**make_target_annotation(ON_A), NARROWED_ANNOTATION: NARROWED}
    metadata = {"name": name, "namespace": "d", "annotations": annotations, **metadata}
    body = {
        "metadata": {**metadata, "ownerReferences": [owner] if kind else None},
        "spec": {"schedulerName": "network-aware-scheduler"},
        "status": {"phase": "Pending", "conditions": [{**UNSCHEDULABLE, "reason": "Unschedulable"}]},
    }
    return msgspec.convert(body, Pod)


def make_extender_pod(reason: str = "Unschedulable", message: str = "", **metadata: Any) -> Pod:
    """A pod of P1 in extender mode for which the scheduler found no node."""
    condition = {**UNSCHEDULABLE, "reason": reason, "message": message}
    return make_pod("P1", status={"conditions": [condition]}, metadata=metadata)


def make_target_annotation(target: Target) -> dict[str, str]:
    return {"netaware.io/target": msgspec.json.encode(target).decode()}


def make_plan(pod: Pod, target: Target | None) -> Plan:
    return Plan({pod.metadata.key: target} if target is not None else {})


def list_action_types(
    tracker: UnschedulablePods, pod: Pod, now_s: float, target: Target | None = None
) -> list[type[Action]]:
    """Types of the actions for a pod whose plan has this target."""
    actions, _ = tracker.choose_actions([pod], make_plan(pod, target), State(CONFIG, "netaware-system"), now_s)
    return [type(action) for action in actions]


def assert_reported_once_and_not_replaced(tracker: UnschedulablePods, pod: Pod) -> None:
    assert not tracker.may_require_zones(pod)
    list_action_types(tracker, pod, 0, ON_B)
    assert list_action_types(tracker, pod, REPLACE_AFTER_S, ON_B) == [Report]
    assert list_action_types(tracker, pod, 10 * REPLACE_AFTER_S, ON_B) == []


def retry(tracker: UnschedulablePods, pod: Pod, target: Target | None, state: State, now_s: float) -> bool:
    """Write the retry of a pod if one is due now; returns whether one was."""
    actions, _ = tracker.choose_actions([pod], make_plan(pod, target), state, now_s)
    for action in actions:
        assert isinstance(action, Retry)
        tracker.on_retried(action, now_s)
    return len(actions) == 1


def make_costs(cost: int) -> NetworkTopology:
    return make_topology({("z1", "z2"): cost, ("z2", "z1"): cost})


@pytest.fixture
def state() -> State:
    """P1 calls P2 on n1, in zone z1; n2 is 20 away."""
    nodes = [make_node("n1", "r", "z1"), make_node("n2", "r", "z2")]
    return make_group_state(nodes, make_costs(20), {"P1": {"P2": 15}, "P2": {}}, [("P2", "n1")])


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet"])
@pytest.mark.parametrize("target", [None, ON_A], ids=["no place", "the same place"])
def test_a_pod_with_unmet_terms_is_replaced_and_its_successor_gets_preferred_terms(
    kind: str, target: Target | None
) -> None:
    tracker = UnschedulablePods(CONFIG)
    pod = make_zone_pod(kind)
    assert list_action_types(tracker, pod, 100, target) == []
    assert list_action_types(tracker, pod, 100 + REPLACE_AFTER_S - 1, target) == []
    assert tracker.may_require_zones(pod)
    assert list_action_types(tracker, pod, 100 + REPLACE_AFTER_S, target) == [PodReplacement]

    successor = make_zone_pod(kind, name="p" if kind == "StatefulSet" else "q")
    assert not tracker.may_require_zones(pod)
    assert not tracker.may_require_zones(successor)
    has_own_volumes = kind == "StatefulSet"  # Volumes of a StatefulSet may be in different zones.
    assert tracker.may_require_zones(make_zone_pod(kind, "other-replica")) == has_own_volumes


@pytest.mark.parametrize(
    "pod",
    [*(make_zone_pod(kind) for kind in ("Job", "DaemonSet", "", "Workflow")), make_zone_pod(is_controller=False)],
    ids=["Job", "DaemonSet", "no owner", "an unknown kind", "an owner that is no controller"],
)
def test_no_zone_is_required_of_a_pod_that_is_not_replaced_without_a_penalty(pod: Pod) -> None:
    assert_reported_once_and_not_replaced(UnschedulablePods(CONFIG), pod)


def test_without_permission_to_delete_no_zone_is_required_and_unschedulable_pods_are_reported_once() -> None:
    tracker = UnschedulablePods(CONFIG)
    pod = make_zone_pod()
    assert tracker.may_require_zones(pod)
    tracker.may_delete = False
    assert_reported_once_and_not_replaced(tracker, pod)

    tracker.may_delete = True
    assert list_action_types(tracker, pod, 20 * REPLACE_AFTER_S, ON_B) == [PodReplacement]
    tracker.on_forbidden(pod)
    assert list_action_types(tracker, pod, 900 * REPLACE_AFTER_S, ON_B) == [], "it was reported"
    assert not tracker.may_require_zones(make_zone_pod(name="successor"))


def test_a_pod_without_our_required_terms_is_left_to_the_scheduler() -> None:
    tracker = UnschedulablePods(CONFIG)
    pod = make_zone_pod(annotations={})
    assert list_action_types(tracker, pod, 0) == []
    assert list_action_types(tracker, pod, 10 * REPLACE_AFTER_S) == []


def test_pods_with_a_new_target_are_replaced_with_back_off() -> None:
    tracker = UnschedulablePods(CONFIG)
    pod = make_zone_pod()
    list_action_types(tracker, pod, 0, ON_B)
    for waits, is_replaced in ((1, True), (2.9, False), (3, True), (6, False)):
        assert list_action_types(tracker, pod, waits * REPLACE_AFTER_S, ON_B) == [PodReplacement] * is_replaced
        assert tracker.may_require_zones(pod)
    # 2.0 ** 1024 overflows.
    assert all(list_action_types(tracker, pod, 3600.0 * hour, ON_B) for hour in range(1, 1100))


def test_a_refused_pod_is_retried_once_for_every_new_answer_of_the_filter(state: State) -> None:
    tracker = UnschedulablePods(SchedulerConfig())
    pod = make_extender_pod(message="0/2 nodes: Workload dependencies")
    assert retry(tracker, pod, None, state, 0), "the answer that refused the pod is unknown"
    assert not retry(tracker, pod, None, state, 10)

    state.on_topology_change("default/nt-default", make_costs(20), make_costs(10))
    assert retry(tracker, pod, None, state, 20)
    assert not retry(tracker, pod, None, state, 30)

    state.on_topology_change("default/nt-default", make_costs(10), make_costs(20))
    delayed_actions = tracker.choose_actions([pod], None, state, 20.25)
    assert delayed_actions == ([], 0.75), "retries are at least a second apart"


def test_a_new_target_is_written_to_an_unschedulable_pod(state: State) -> None:
    tracker = UnschedulablePods(SchedulerConfig())
    pod = make_extender_pod(annotations=make_target_annotation(ON_A))
    ((action,), _) = tracker.choose_actions([pod], make_plan(pod, ON_B), state, 0)
    assert isinstance(action, Retry)
    assert action.patch["metadata"]["annotations"].items() >= make_target_annotation(ON_B).items()

    tracker.on_retried(action, 0)
    written_pod = make_extender_pod(annotations=make_target_annotation(ON_B))
    assert not retry(tracker, written_pod, ON_B, state, 5)


def test_a_pod_filtered_by_the_plan_is_retried_once_by_the_rule(state: State) -> None:
    tracker = UnschedulablePods(SchedulerConfig())
    pod = make_extender_pod(annotations=make_target_annotation(ON_A))
    assert retry(tracker, pod, ON_A, state, 0)
    assert not retry(tracker, pod, ON_A, state, 30)


@pytest.mark.parametrize(
    ("pod", "target", "is_retried"),
    [
        (make_extender_pod(message="4 Insufficient cpu"), None, False),
        (make_extender_pod("SchedulerError"), ON_B, True),  # A volume of the pod cannot be bound.
        (make_extender_pod("SchedulingGated"), ON_B, False),
    ],
)
def test_pods_that_we_did_not_refuse_are_retried_only_with_a_new_target(
    pod: Pod, target: Target | None, *, is_retried: bool, state: State
) -> None:
    tracker = UnschedulablePods(SchedulerConfig())
    assert retry(tracker, pod, target, state, 0) == is_retried


def test_a_pod_that_every_node_refuses_is_retried_with_back_off(state: State) -> None:
    tracker = UnschedulablePods(SchedulerConfig())
    pod, retry_count = make_extender_pod(), 0
    for second in range(3600):
        retry_count += retry(tracker, pod, Target("a", "r", f"n{second}"), state, float(second))
    assert 60 < retry_count < 90


def test_a_retry_is_repeated_until_it_is_written(state: State) -> None:
    tracker = UnschedulablePods(SchedulerConfig())
    pod = make_extender_pod()
    assert len(tracker.choose_actions([pod], make_plan(pod, ON_A), state, 0.0)[0]) == 1
    pod_on_b, pod_on_a = (make_extender_pod(annotations=make_target_annotation(target)) for target in (ON_B, ON_A))
    assert retry(tracker, pod_on_b, ON_A, state, 5.0)
    assert not retry(tracker, pod_on_a, ON_A, state, 100.0)
