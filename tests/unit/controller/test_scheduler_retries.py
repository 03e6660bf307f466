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
ZONE_A, ZONE_B = Target("a", "r", "n-a"), Target("b", "r", "n-b")
NARROWED = '{"key":"topology.kubernetes.io/zone","operator":"In","values":["a"]}'


def unschedulable_pod(kind: str = "ReplicaSet", name: str = "p", reason: str = "Unschedulable", **changes: Any) -> Pod:
    controls = not kind.endswith(" of another")
    owner = {"kind": kind.removesuffix(" of another"), "name": "o", "uid": f"u-{kind}", "controller": controls}
    owners = [owner] if kind else None
    annotations = {"netaware.io/target": msgspec.json.encode(ZONE_A).decode(), NARROWED_ANNOTATION: NARROWED}
    metadata = {"name": name, "namespace": "d", "ownerReferences": owners, "annotations": annotations}
    conditions = [{"type": "PodScheduled", "status": "False", "reason": reason}]
    body = {
        "metadata": {**metadata, **changes},
        "spec": {"schedulerName": "network-aware-scheduler"},
        "status": {"phase": "Pending", "conditions": conditions},
    }
    return msgspec.convert(body, Pod)


def actions_of(tracker: UnschedulablePods, pod: Pod, now: float, target: Target | None = None) -> list[type[Action]]:
    """Types of the actions for a pod whose plan has this target."""
    plan = Plan({pod.metadata.key: target} if target is not None else {})
    actions, _ = tracker.choose_actions([pod], plan, State(CONFIG, "netaware-system"), now)
    return [type(action) for action in actions]


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet"])
@pytest.mark.parametrize("target", [None, ZONE_A], ids=["no place", "the same place"])
def test_a_pod_with_unmet_terms_is_replaced_and_its_successor_gets_preferred_terms(
    kind: str, target: Target | None
) -> None:
    tracker, pod = UnschedulablePods(CONFIG), unschedulable_pod(kind)
    assert actions_of(tracker, pod, 100, target) == []
    assert actions_of(tracker, pod, 100 + REPLACE_AFTER_S - 1, target) == []
    assert tracker.may_require_zones(pod)
    assert actions_of(tracker, pod, 100 + REPLACE_AFTER_S, target) == [PodReplacement]
    assert not tracker.may_require_zones(pod)
    successor = unschedulable_pod(kind, name="p" if kind == "StatefulSet" else "q")
    assert not tracker.may_require_zones(successor)
    is_in_another_zone = kind == "StatefulSet"  # Volumes of a StatefulSet may be in different zones.
    assert tracker.may_require_zones(unschedulable_pod(kind, "other-replica")) == is_in_another_zone


@pytest.mark.parametrize("kind", ["Job", "DaemonSet", "", "Workflow", "ReplicaSet of another"])
def test_no_zone_is_required_of_a_pod_that_is_not_replaced_without_a_penalty(kind: str) -> None:
    tracker = UnschedulablePods(CONFIG)
    assert not tracker.may_require_zones(unschedulable_pod(kind))
    actions_of(tracker, unschedulable_pod(kind), 0, ZONE_B)
    assert actions_of(tracker, unschedulable_pod(kind), REPLACE_AFTER_S, ZONE_B) == [Report]
    assert actions_of(tracker, unschedulable_pod(kind), 10 * REPLACE_AFTER_S, ZONE_B) == []


def test_without_permission_to_delete_no_zone_is_required_and_unschedulable_pods_are_reported_once() -> None:
    tracker, pod = UnschedulablePods(CONFIG), unschedulable_pod()
    assert tracker.may_require_zones(pod)
    tracker.may_delete = False
    assert not tracker.may_require_zones(pod)
    actions_of(tracker, pod, 0, ZONE_B)
    assert actions_of(tracker, pod, REPLACE_AFTER_S, ZONE_B) == [Report]
    assert actions_of(tracker, pod, 10 * REPLACE_AFTER_S, ZONE_B) == []
    tracker.may_delete = True
    assert actions_of(tracker, pod, 20 * REPLACE_AFTER_S, ZONE_B) == [PodReplacement]


def test_a_pod_without_our_required_terms_is_left_to_the_scheduler() -> None:
    tracker, pod = UnschedulablePods(CONFIG), unschedulable_pod(annotations={})
    assert actions_of(tracker, pod, 0) == actions_of(tracker, pod, 10 * REPLACE_AFTER_S) == []


def test_pods_with_a_new_target_are_replaced_with_back_off() -> None:
    tracker, pod = UnschedulablePods(CONFIG), unschedulable_pod()
    actions_of(tracker, pod, 0, ZONE_B)
    for now, is_replaced in ((1, True), (2.9, False), (3, True), (6, False)):
        assert actions_of(tracker, pod, now * REPLACE_AFTER_S, ZONE_B) == [PodReplacement] * is_replaced
        assert tracker.may_require_zones(pod)
    assert all(actions_of(tracker, pod, 3600.0 * n, ZONE_B) for n in range(1, 1100))  # 2.0 ** 1024 overflows.


def extender_pod(reason: str = "Unschedulable", message: str = "", **changes: Any) -> Pod:
    """A pod of P1 in extender mode for which the scheduler found no node."""
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return make_pod("P1", status={"conditions": [condition]}, metadata=changes)


def target_annotation(target: Target) -> dict[str, str]:
    return {"netaware.io/target": msgspec.json.encode(target).decode()}


def retried(tracker: UnschedulablePods, pod: Pod, target: Target | None, state: State, now: float) -> bool:
    """Whether a pod is retried now; a retry counts as written."""
    plan = Plan({pod.metadata.key: target} if target is not None else {})
    actions, _ = tracker.choose_actions([pod], plan, state, now)
    for action in actions:
        assert isinstance(action, Retry)
        tracker.on_retried(action, now)
    return len(actions) == 1


def costs(cost: int) -> NetworkTopology:
    return make_topology({("z1", "z2"): cost, ("z2", "z1"): cost})


def cluster() -> State:
    """P1 calls P2 on n1, in zone z1; n2 is 20 away."""
    nodes = [make_node("n1", "r", "z1"), make_node("n2", "r", "z2")]
    return make_group_state(nodes, costs(20), {"P1": {"P2": 15}, "P2": {}}, [("P2", "n1")])


REFUSED = extender_pod(message="0/2 nodes: Workload dependencies")


def test_a_refused_pod_is_retried_once_for_every_new_answer_of_the_filter() -> None:
    state, tracker = cluster(), UnschedulablePods(SchedulerConfig())
    assert retried(tracker, REFUSED, None, state, 0), "the answer that refused the pod is unknown"
    assert not retried(tracker, REFUSED, None, state, 10)
    state.on_topology_change("default/nt-default", costs(20), costs(10))
    assert retried(tracker, REFUSED, None, state, 20)
    assert not retried(tracker, REFUSED, None, state, 30)
    state.on_topology_change("default/nt-default", costs(10), costs(20))
    assert tracker.choose_actions([REFUSED], None, state, 20.25) == ([], 0.75), "retries are at least a second apart"


def test_a_new_target_is_written_to_an_unschedulable_pod() -> None:
    tracker, waiting = UnschedulablePods(SchedulerConfig()), extender_pod(annotations=target_annotation(ZONE_A))
    ((action,), _) = tracker.choose_actions([waiting], Plan({"default/p1": ZONE_B}), cluster(), 0)
    assert isinstance(action, Retry)
    assert action.patch["metadata"]["annotations"].items() >= target_annotation(ZONE_B).items()
    tracker.on_retried(action, 0)
    assert not retried(tracker, extender_pod(annotations=target_annotation(ZONE_B)), ZONE_B, cluster(), 5)


def test_a_pod_filtered_by_the_plan_is_retried_once_by_the_rule() -> None:
    tracker, waiting = UnschedulablePods(SchedulerConfig()), extender_pod(annotations=target_annotation(ZONE_A))
    assert retried(tracker, waiting, ZONE_A, cluster(), 0)
    assert not retried(tracker, waiting, ZONE_A, cluster(), 30)


@pytest.mark.parametrize(
    ("pod", "target", "is_retried"),
    [
        (extender_pod(message="4 Insufficient cpu"), None, False),
        (extender_pod("SchedulerError"), ZONE_B, True),  # A volume of the pod cannot be bound.
        (extender_pod("SchedulingGated"), ZONE_B, False),
    ],
)
def test_pods_that_we_did_not_refuse_are_retried_only_with_a_new_target(
    pod: Pod, target: Target | None, *, is_retried: bool
) -> None:
    assert retried(UnschedulablePods(SchedulerConfig()), pod, target, cluster(), 0) == is_retried


def test_a_pod_that_every_node_refuses_is_retried_with_back_off() -> None:
    tracker, state, waiting, tries = UnschedulablePods(SchedulerConfig()), cluster(), extender_pod(), 0
    for second in [*range(3600), *range(3600, 120_000, 100)]:  # 2.0 ** 1024 overflows.
        tries += retried(tracker, waiting, Target("a", "r", f"n{second}"), state, float(second))
        assert second != 3599 or 10 < tries < 90
    assert tries > 1100


def test_a_retry_is_repeated_until_it_is_written() -> None:
    tracker, state, plan = UnschedulablePods(SchedulerConfig()), cluster(), Plan({"default/p1": ZONE_A})
    assert len(tracker.choose_actions([extender_pod()], plan, state, 0.0)[0]) == 1
    assert retried(tracker, extender_pod(annotations=target_annotation(ZONE_B)), ZONE_A, state, 5.0)
    assert not retried(tracker, extender_pod(annotations=target_annotation(ZONE_A)), ZONE_A, state, 100.0)
