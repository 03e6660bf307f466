"""Every release ends: what the scheduler refused is tried again, replaced, or told to a person."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.cluster.pods import GroupPod, Target
from controller.scheduler.affinity import NARROWED_ANNOTATION
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.gating.retries import REPLACE_AFTER_S, Action, Replace, Report, Retry, StuckPods
from controller.scheduler.placement.planner import Plan
from controller.scheduler.state import State

CONFIG = SchedulerConfig(placement="affinity")
ZONE_A, ZONE_B = Target("a", "r", "n-a"), Target("b", "r", "n-b")
NARROWED = '{"key":"topology.kubernetes.io/zone","operator":"In","values":["a"]}'


def stuck_pod(kind: str = "ReplicaSet", name: str = "p", reason: str = "Unschedulable", **changes: Any) -> GroupPod:
    owners = [{"kind": kind, "name": "o", "uid": f"u-{kind}", "controller": True}] if kind else None
    annotations = {"netaware.io/target": msgspec.json.encode(ZONE_A).decode(), NARROWED_ANNOTATION: NARROWED}
    metadata = {"name": name, "namespace": "d", "ownerReferences": owners, "annotations": annotations}
    conditions = [{"type": "PodScheduled", "status": "False", "reason": reason}]
    body = {
        "metadata": {**metadata, **changes},
        "spec": {"schedulerName": "network-aware-scheduler"},
        "status": {"phase": "Pending", "conditions": conditions},
    }
    return msgspec.convert(body, GroupPod)


def look(stuck: StuckPods, pod: GroupPod, now: float, target: Target | None = None) -> list[Action]:
    plan = Plan({pod.metadata.key: target} if target is not None else {})
    return stuck.decide([pod], plan, State(CONFIG, "netaware-system"), now)[0]


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet"])
@pytest.mark.parametrize("target", [None, ZONE_A], ids=["no place", "the same place"])
def test_a_frozen_pod_that_cannot_be_met_is_replaced_and_its_successor_gets_wishes(
    kind: str, target: Target | None
) -> None:
    stuck, pod = StuckPods(CONFIG), stuck_pod(kind)
    assert look(stuck, pod, 100, target) == []
    assert look(stuck, pod, 100 + REPLACE_AFTER_S - 1, target) == []
    assert stuck.may_require_zones(pod)
    (action,) = look(stuck, pod, 100 + REPLACE_AFTER_S, target)
    assert isinstance(action, Replace)
    assert not stuck.may_require_zones(pod)
    successor = stuck_pod(kind, name="p" if kind == "StatefulSet" else "q")
    assert not stuck.may_require_zones(successor)


def test_each_pod_of_a_stateful_set_is_judged_by_itself() -> None:
    """Its volume may be in another zone than those of its siblings."""
    stuck = StuckPods(CONFIG)
    look(stuck, stuck_pod("StatefulSet", "db-0"), 0)
    look(stuck, stuck_pod("StatefulSet", "db-0"), REPLACE_AFTER_S)
    assert not stuck.may_require_zones(stuck_pod("StatefulSet", "db-0"))
    assert stuck.may_require_zones(stuck_pod("StatefulSet", "db-1"))


@pytest.mark.parametrize("kind", ["Job", "DaemonSet", "", "Workflow"])
def test_what_nobody_makes_anew_at_no_price_is_asked_nothing_that_could_not_be_taken_back(kind: str) -> None:
    stuck = StuckPods(CONFIG)
    assert not stuck.may_require_zones(stuck_pod(kind))
    look(stuck, stuck_pod(kind), 0, ZONE_B)
    assert [type(action) for action in look(stuck, stuck_pod(kind), REPLACE_AFTER_S, ZONE_B)] == [Report]
    assert look(stuck, stuck_pod(kind), 10 * REPLACE_AFTER_S, ZONE_B) == []


def test_without_the_right_to_delete_no_zone_is_demanded_and_what_was_is_reported_once() -> None:
    stuck, pod = StuckPods(CONFIG), stuck_pod()
    assert stuck.may_require_zones(pod)
    stuck.may_delete = False
    assert not stuck.may_require_zones(pod)
    look(stuck, pod, 0, ZONE_B)
    (told,) = look(stuck, pod, REPLACE_AFTER_S, ZONE_B)
    assert isinstance(told, Report)
    assert look(stuck, pod, 10 * REPLACE_AFTER_S, ZONE_B) == []
    stuck.may_delete = True
    assert isinstance(look(stuck, pod, 20 * REPLACE_AFTER_S, ZONE_B)[0], Replace)


def test_a_pod_that_we_demand_nothing_of_is_left_to_the_scheduler() -> None:
    stuck, pod = StuckPods(CONFIG), stuck_pod(annotations={})
    assert look(stuck, pod, 0) == []
    assert look(stuck, pod, 10 * REPLACE_AFTER_S) == []


def test_a_pod_with_another_place_is_replaced_less_and_less_often() -> None:
    stuck, pod = StuckPods(CONFIG), stuck_pod()
    look(stuck, pod, 0, ZONE_B)
    assert [isinstance(a, Replace) for a in look(stuck, pod, REPLACE_AFTER_S, ZONE_B)] == [True]
    assert stuck.may_require_zones(pod)
    assert look(stuck, pod, REPLACE_AFTER_S + 2 * REPLACE_AFTER_S - 1, ZONE_B) == []
    assert [isinstance(a, Replace) for a in look(stuck, pod, REPLACE_AFTER_S + 2 * REPLACE_AFTER_S, ZONE_B)] == [True]
    assert look(stuck, pod, REPLACE_AFTER_S + 5 * REPLACE_AFTER_S, ZONE_B) == []
    assert all(look(stuck, pod, 3600.0 * n, ZONE_B) for n in range(1, 1100))  # 2.0 ** 1024 overflows.


def test_a_volume_that_cannot_be_bound_is_a_refusal_too() -> None:
    """kube-scheduler says SchedulerError then; the extender must not be asked for the same host for ever."""
    config = SchedulerConfig()
    stuck, pod = StuckPods(config), stuck_pod(reason="SchedulerError")
    actions, _ = stuck.decide([pod], Plan({"d/p": ZONE_B}), State(config, "netaware-system"), 0)
    assert [isinstance(action, Retry) for action in actions] == [True]
    gated = stuck_pod(reason="SchedulingGated")
    assert stuck.decide([gated], Plan({"d/p": ZONE_B}), State(config, "netaware-system"), 0)[0] == []


def test_a_pod_that_every_host_refuses_is_tried_less_and_less_often() -> None:
    config = SchedulerConfig()
    stuck, state, tries = StuckPods(config), State(config, "netaware-system"), 0
    for second in [*range(3600), *range(3600, 120_000, 100)]:  # 2.0 ** 1024 overflows.
        target = Target("a", "r", f"n{second}")
        actions, _ = stuck.decide([stuck_pod()], Plan({"d/p": target}), state, float(second))
        for action in actions:
            assert isinstance(action, Retry)
            stuck.on_retried(action, float(second))
        tries += len(actions)
        assert second != 3599 or 10 < tries < 90
    assert tries > 1100


def test_a_retry_is_due_until_it_is_written() -> None:
    """An API error in between loses nothing."""
    config = SchedulerConfig()
    stuck, state, plan = StuckPods(config), State(config, "netaware-system"), Plan({"d/p": ZONE_A})
    assert len(stuck.decide([stuck_pod()], plan, state, 0.0)[0]) == 1
    (action,), _ = stuck.decide([stuck_pod()], plan, state, 5.0)
    assert isinstance(action, Retry)
    stuck.on_retried(action, 5.0)
    assert stuck.decide([stuck_pod()], plan, state, 100.0)[0] == []
