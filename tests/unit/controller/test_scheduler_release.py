"""Whose turn it is: gates open in the group's order, and no pod waits for good."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.resources import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.scheduler.config import GatesConfig
from controller.scheduler.pods import GATE, GroupPod
from controller.scheduler.release import GroupQueue, Turns, plan_release
from kubekit.wire import format_time

CREATED = 1_700_000_000.0
CONFIG = GatesConfig(max_wait_s=100, absent_wait_s=20, settle_s=2)


def pod(name: str, workload: str, *, gated: bool = True, node: str = "", age_s: float = 0, **status: Any) -> GroupPod:
    body = {
        "metadata": {
            "name": name,
            "namespace": "d",
            "labels": {APPGROUP_LABEL: "g", WORKLOAD_LABEL: workload},
            "creationTimestamp": format_time(CREATED - age_s),
        },
        "spec": {"nodeName": node, "schedulingGates": [{"name": GATE}] if gated and not node else None},
        "status": {"phase": "Running" if node else "Pending", **status},
    }
    return msgspec.convert(body, GroupPod)


def unschedulable(name: str, workload: str, since_s: float) -> GroupPod:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "lastTransitionTime": format_time(CREATED - since_s),
    }
    return pod(name, workload, gated=False, conditions=[condition])


def queue(*pods: GroupPod, order: str = "ABC", **changes: Any) -> GroupQueue:
    places = {selector: i for i, selector in enumerate(order, start=1)}
    return GroupQueue(places, exists=True, pods=pods, **changes)


def released(turns: Turns) -> list[tuple[str, str]]:
    return [(r.pod.metadata.name, r.cause) for r in turns.releases]


def test_the_first_workload_goes_and_the_others_wait_for_it() -> None:
    turns = plan_release(queue(pod("b", "B"), pod("a1", "A"), pod("a2", "A"), pod("c", "C")), CREATED, CONFIG)
    assert released(turns) == [("a1", "turn"), ("a2", "turn")]
    assert turns.waiting["d/b"] == "workload A comes first, and its pod a1 is not bound yet"


def test_the_next_goes_when_all_pods_before_it_are_bound_and_not_before() -> None:
    half = queue(pod("a1", "A", node="n"), pod("a2", "A", gated=False), pod("b", "B"), pod("c", "C"))
    assert released(plan_release(half, CREATED, CONFIG)) == []
    whole = queue(pod("a1", "A", node="n"), pod("a2", "A", node="n"), pod("b", "B"), pod("c", "C"))
    assert released(plan_release(whole, CREATED, CONFIG)) == [("b", "turn")]


def test_replicas_that_are_declared_and_not_there_yet_are_waited_for_a_while() -> None:
    few = queue(pod("a1", "A", node="n"), pod("b", "B"), replicas={"A": 2, "B": 1})
    turns = plan_release(few, CREATED, CONFIG)
    assert "1 of its pods do not exist yet" in turns.waiting["d/b"]
    assert turns.again_s == pytest.approx(CONFIG.absent_wait_s)
    assert released(plan_release(few, CREATED + CONFIG.absent_wait_s, CONFIG)) == [("b", "turn")]


def test_a_workload_without_pods_holds_nobody_up_for_longer_than_that() -> None:
    lonely = queue(pod("b", "B"))
    assert plan_release(lonely, CREATED, CONFIG).releases == ()
    assert released(plan_release(lonely, CREATED + CONFIG.absent_wait_s, CONFIG)) == [("b", "turn")]


def test_a_workload_scaled_to_nothing_is_not_waited_for() -> None:
    assert released(plan_release(queue(pod("b", "B"), replicas={"A": 0}), CREATED, CONFIG)) == [("b", "turn")]


def test_finished_and_terminating_pods_hold_nobody_up() -> None:
    done = pod("a-done", "A", gated=False, phase="Succeeded")
    leaving = msgspec.structs.replace(
        pod("a-gone", "A"),
        metadata=msgspec.structs.replace(pod("a-gone", "A").metadata, deletion_timestamp=format_time(CREATED)),
    )
    turns = plan_release(queue(done, leaving, pod("a", "A", node="n"), pod("b", "B")), CREATED, CONFIG)
    assert released(turns) == [("b", "turn")]


def test_an_earlier_pod_that_fits_nowhere_is_passed_over_after_a_while() -> None:
    fresh = queue(unschedulable("a", "A", since_s=1), pod("b", "B"))
    assert plan_release(fresh, CREATED, CONFIG).releases == ()
    old = queue(unschedulable("a", "A", since_s=CONFIG.absent_wait_s), pod("b", "B"))
    assert released(plan_release(old, CREATED, CONFIG)) == [("b", "turn")]


@pytest.mark.parametrize(
    ("unknown", "cause"),
    [
        (GroupQueue({}, exists=False, pods=(pod("x", "A"),)), "no-group"),
        (queue(pod("x", "no-such-workload")), "no-workload"),
        (queue(pod("x", "")), "no-workload"),
    ],
)
def test_pods_that_nobody_orders_go_after_a_while(unknown: GroupQueue, cause: str) -> None:
    early = plan_release(unknown, CREATED + CONFIG.absent_wait_s - 1, CONFIG)
    assert early.releases == ()
    assert early.again_s == pytest.approx(1)
    assert released(plan_release(unknown, CREATED + CONFIG.absent_wait_s, CONFIG)) == [("x", cause)]


def test_a_group_whose_pods_still_arrive_is_left_to_settle_but_a_complete_one_is_not() -> None:
    seen = {"d/a": CREATED}
    growing = queue(pod("a", "A"), members=3, seen_at=seen)
    turns = plan_release(growing, CREATED + 0.5, CONFIG)
    assert turns.waiting == {"d/a": "the group's pods are still being created"}
    assert turns.again_s == pytest.approx(1.5)
    assert released(plan_release(growing, CREATED + CONFIG.settle_s, CONFIG)) == [("a", "turn")]
    complete = queue(pod("a", "A"), members=1, seen_at=seen)
    assert released(plan_release(complete, CREATED, CONFIG)) == [("a", "turn")]


PODS = st.lists(
    st.tuples(
        st.sampled_from("ABCX"),
        st.sampled_from(["gated", "pending", "bound", "stuck"]),
        st.floats(0, 90, allow_nan=False),
    ),
    max_size=8,
)


@given(pods=PODS, exists=st.booleans(), replicas=st.dictionaries(st.sampled_from("ABC"), st.integers(0, 5), max_size=3))
def test_no_pod_is_held_beyond_the_longest_wait_and_somebody_looks_again_before(
    pods: list[tuple[str, str, float]], exists: bool, replicas: dict[str, int]
) -> None:
    made = []
    for i, (workload, kind, age_s) in enumerate(pods):
        if kind == "stuck":
            made.append(unschedulable(f"p{i}", workload, age_s))
        else:
            made.append(pod(f"p{i}", workload, gated=kind == "gated", node="n" if kind == "bound" else "", age_s=age_s))
    order = {"A": 1, "B": 2, "C": 3} if exists else {}
    group = GroupQueue(order, exists=exists, pods=made, replicas=replicas, members=9, seen_at={})
    gated = {p.metadata.key for p in made if p.gated}
    now = plan_release(group, CREATED, CONFIG)
    assert {r.pod.metadata.key for r in now.releases} | set(now.waiting) == gated
    assert not {r.pod.metadata.key for r in now.releases} & set(now.waiting)
    if now.waiting:
        assert now.again_s is not None
        assert now.again_s <= CONFIG.max_wait_s
    late = plan_release(group, CREATED + CONFIG.max_wait_s, CONFIG)
    assert {r.pod.metadata.key for r in late.releases} == gated
