"""Gates open in the order of the group's workloads, and every wait is bounded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster.pods import GATE, Pod
from controller.scheduler.config import GatesConfig
from controller.scheduler.gating.release import (
    CREATION_PAUSE_S,
    ReleaseInputs,
    decide_releases,
    seconds_until_complete,
)
from kubekit.wire import format_time
from tests.unit.controller import scheduler_objects

NOW_S = 1_700_000_000.0
CONFIG = GatesConfig(max_wait_s=100, missing_workload_timeout_s=20)


def make_pod(name: str, workload: str, *, gated: bool = True, node: str = "", age_s: float = 0, **status: Any) -> Pod:
    metadata = {"namespace": "d", "creationTimestamp": format_time(NOW_S - age_s)}
    gates = [{"name": GATE}] if gated and not node else None
    return scheduler_objects.make_pod(
        workload, node, name=name, group="g", metadata=metadata, status=status, schedulingGates=gates
    )


def make_unschedulable_pod(name: str, workload: str, since_s: float, reason: str = "Unschedulable") -> Pod:
    since = format_time(NOW_S - since_s)
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "lastTransitionTime": since}
    return make_pod(name, workload, gated=False, conditions=[condition])


def make_inputs(*pods: Pod, order: str = "ABC", **fields: Any) -> ReleaseInputs:
    """Inputs of a group whose workloads come in this order."""
    positions = {selector: i for i, selector in enumerate(order, start=1)}
    return ReleaseInputs(pods, positions, **fields)


def list_releases(inputs: ReleaseInputs, after_s: float = 0) -> list[tuple[str, str]]:
    """Name and cause of each pod that is released then."""
    decision = decide_releases(inputs, NOW_S + after_s, CONFIG)
    return [(release.pod.metadata.name, release.cause) for release in decision.releases]


def as_terminating(pod: Pod) -> Pod:
    metadata = msgspec.structs.replace(pod.metadata, deletion_timestamp=format_time(NOW_S))
    return msgspec.structs.replace(pod, metadata=metadata)


def without_times(pod: Pod) -> Pod:
    body = msgspec.to_builtins(pod)
    body["metadata"].pop("creationTimestamp")
    for condition in body["status"].get("conditions", ()):
        condition.pop("lastTransitionTime")
    return msgspec.convert(body, Pod)


def with_spec(pod: Pod, **fields: Any) -> Pod:
    body = msgspec.to_builtins(pod)
    body["spec"] |= fields
    return msgspec.convert(body, Pod)


def make_pods_of_kinds(pods: list[tuple[str, str, float]]) -> list[Pod]:
    """Pods p0, p1, ... given as workload, kind and age, or time since they are unschedulable."""
    return [
        make_unschedulable_pod(f"p{i}", workload, age_s)
        if kind == "unschedulable"
        else make_pod(f"p{i}", workload, gated=kind == "gated", node="n" if kind == "bound" else "", age_s=age_s)
        for i, (workload, kind, age_s) in enumerate(pods)
    ]


A, B, C = make_pod("a", "A"), make_pod("b", "B"), make_pod("c", "C")
BOUND_A, BOUND_B1 = make_pod("a", "A", node="n"), make_pod("b1", "B", node="n")
UNTRIED_A, FINISHED_A = make_pod("a", "A", gated=False), make_pod("a-done", "A", gated=False, phase="Succeeded")
WAIT_S = CONFIG.missing_workload_timeout_s
FAILED_B = make_pod("b", "B", gated=False, phase="Failed")
POD_AFFINITY = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}
OTHER_GATE = {"name": "kueue.x-k8s.io/admission"}
UNPLACED_A = frozenset({"d/a"})
KINDS = st.sampled_from(["gated", "pending", "bound", "unschedulable"])
PODS = st.lists(st.tuples(st.sampled_from("ABCX"), KINDS, st.floats(0, 90, allow_nan=False)), max_size=8)
REPLICAS = st.dictionaries(st.sampled_from("ABC"), st.integers(0, 5), max_size=3)
# kube-scheduler sets the reason SchedulerError if the pod's volume cannot be bound.
UNBOUND_VOLUME = make_unschedulable_pod("a", "A", WAIT_S, reason="SchedulerError")
GATED_AGAIN = make_unschedulable_pod("a", "A", WAIT_S, reason="SchedulingGated")
NEW_UNSCHEDULABLE_A = make_unschedulable_pod("a", "A", since_s=0)


@pytest.mark.parametrize(
    ("inputs", "after_s", "released"),
    [
        pytest.param(make_inputs(B, make_pod("a1", "A"), make_pod("a2", "A"), C), 0, "a1 a2", id="the first workload"),
        pytest.param(make_inputs(make_pod("a1", "A", node="n"), make_pod("a2", "A", gated=False), B, C), 0, "", id="one of two is bound"),
        pytest.param(make_inputs(BOUND_A, B, declared_replicas={"A": 2, "B": 1}), 0, "", id="a declared replica is missing"),
        pytest.param(make_inputs(BOUND_A, B, declared_replicas={"A": 2, "B": 1}), WAIT_S, "b", id="a declared replica is overdue"),
        pytest.param(make_inputs(B), 0, "", id="the workload has no pods"),
        pytest.param(make_inputs(A, is_plan_pending=True, placed=UNPLACED_A), 0, "a", id="the outdated plan has a node for it"),
        pytest.param(make_inputs(B), WAIT_S, "b", id="the workload's pods are overdue"),
        pytest.param(make_inputs(B, declared_replicas={"A": 0}), 0, "b", id="no replica is declared"),
        pytest.param(make_inputs(FINISHED_A, as_terminating(make_pod("a-gone", "A")), BOUND_A, B), 0, "b", id="a terminating pod does not count"),
        pytest.param(make_inputs(make_unschedulable_pod("a", "A", since_s=1), B), 0, "", id="unschedulable"),
        pytest.param(make_inputs(make_unschedulable_pod("a", "A", since_s=WAIT_S), B), 0, "b", id="unschedulable for long"),
        pytest.param(make_inputs(UNBOUND_VOLUME, B), 0, "b", id="an unbound volume for long"),
        pytest.param(make_inputs(GATED_AGAIN, B), 0, "", id="the condition of a gated pod"),
        pytest.param(make_inputs(without_times(NEW_UNSCHEDULABLE_A), B), 0, "b", id="unschedulable without a time"),
        pytest.param(make_inputs(NEW_UNSCHEDULABLE_A, B, unplaced=UNPLACED_A), 0, "b", id="unschedulable and unplaced"),
        pytest.param(make_inputs(with_spec(NEW_UNSCHEDULABLE_A, affinity=POD_AFFINITY), B), 0, "b", id="unschedulable with affinity to a later pod"),
        pytest.param(make_inputs(with_spec(UNTRIED_A, affinity=POD_AFFINITY), B), 0, "", id="not tried yet, with affinity"),
        pytest.param(make_inputs(UNTRIED_A, B, unplaced=UNPLACED_A), 0, "", id="not tried yet, unplaced"),
        pytest.param(make_inputs(FINISHED_A, B), 0, "b", id="finished"),
        pytest.param(make_inputs(as_terminating(FINISHED_A), B), 0, "", id="finished and deleted"),
        pytest.param(make_inputs(BOUND_B1, make_pod("b2", "B")), 0, "b2", id="the Job of an earlier workload was deleted"),
        pytest.param(make_inputs(BOUND_A, BOUND_B1, make_pod("b2", "B"), declared_replicas={"A": 2}), 0, "", id="a scale-out of both"),
        pytest.param(make_inputs(B, make_pod("c", "C", gated=False), declared_replicas={"A": 0, "B": 1}), 0, "b", id="a later pod is not gated"),
    ],
)  # fmt: skip
def test_a_workload_is_released_when_earlier_workloads_are_bound_finished_or_overdue(
    inputs: ReleaseInputs, after_s: float, released: str
) -> None:
    assert list_releases(inputs, after_s) == [(name, "turn") for name in released.split()]


@pytest.mark.parametrize(
    ("after_s", "is_released"), [(0, False), (CREATION_PAUSE_S - 0.1, False), (CREATION_PAUSE_S, True)]
)
def test_an_unplaced_pod_of_an_incomplete_group_is_released_when_no_more_pods_are_created(
    after_s: float, *, is_released: bool
) -> None:
    inputs = make_inputs(A, order="A", unplaced=UNPLACED_A, num_members=2, first_seen_at={"d/a": NOW_S})
    assert list_releases(inputs, after_s) == [("a", "unplaced")] * is_released


def test_the_order_follows_positions_and_not_names_or_the_order_of_the_list() -> None:
    pods = (
        make_pod("m", "M"), make_pod("x", "nowhere"), make_pod("a2", "A"), make_pod("a1", "A"), make_pod("z", "Z"),
    )  # fmt: skip
    inputs = ReleaseInputs(pods, {"M": 3, "A": 2, "Z": 1})
    decision = decide_releases(inputs, NOW_S, CONFIG)
    assert list_releases(inputs) == [("z", "turn")]
    reasons = {decision.wait_reasons["d/a1"], decision.wait_reasons["d/m"]}
    assert reasons == {"workload Z comes first, and its pod z is not bound yet"}

    late_names = [name for name, _ in list_releases(inputs, CONFIG.max_wait_s)]
    assert late_names == ["z", "a1", "a2", "m", "x"], "unknown workloads come last"


def test_unplaced_pods_are_released_at_once_and_together() -> None:
    pods = [UNTRIED_A, B, make_pod("c1", "C"), make_pod("c2", "C")]
    assert list_releases(make_inputs(*pods)) == []
    inputs = make_inputs(*pods, unplaced=frozenset({"d/c1", "d/c2"}))
    assert list_releases(inputs) == [("c1", "unplaced"), ("c2", "unplaced")]
    assert decide_releases(inputs, NOW_S, CONFIG).wait_reasons.keys() == {"d/b"}


@pytest.mark.parametrize(
    ("inputs", "cause", "reason"),
    [
        (ReleaseInputs((make_pod("x", "A"),)), "no-group", "its AppGroup does not exist"),
        (make_inputs(make_pod("x", "no-such-workload")), "no-workload", "its AppGroup has no such workload"),
        (make_inputs(make_pod("x", "")), "no-workload", "its AppGroup has no such workload"),
    ],
)
def test_pods_without_a_group_or_workload_are_released_after_the_timeout(
    inputs: ReleaseInputs, cause: str, reason: str
) -> None:
    early = decide_releases(inputs, NOW_S + WAIT_S - 1, CONFIG)
    assert early.releases == ()
    assert early.wait_reasons == {"d/x": reason}
    assert early.next_check_s == pytest.approx(1)
    assert list_releases(inputs, WAIT_S) == [("x", cause)]


@given(pod_tuples=PODS, has_group=st.booleans(), replicas=REPLICAS)
def test_every_pod_is_released_after_max_wait_and_checked_before(
    pod_tuples: list[tuple[str, str, float]], has_group: bool, replicas: dict[str, int]
) -> None:
    pods = make_pods_of_kinds(pod_tuples)
    positions = {"A": 1, "B": 2, "C": 3} if has_group else None
    inputs = ReleaseInputs(pods, positions, declared_replicas=replicas, num_members=9)
    gated_names = {pod.metadata.name for pod in pods if pod.is_gated}

    released = {name for name, _ in list_releases(inputs)}
    decision = decide_releases(inputs, NOW_S, CONFIG)
    waiting = {key.removeprefix("d/") for key in decision.wait_reasons}
    assert released | waiting == gated_names
    assert not released & waiting
    assert not waiting or (decision.next_check_s is not None and decision.next_check_s <= CONFIG.max_wait_s)
    while_planning = msgspec.structs.replace(inputs, is_plan_pending=True)
    assert {name for name, _ in list_releases(while_planning, CONFIG.max_wait_s)} == gated_names


@pytest.mark.parametrize("age_s", [0.0, CONFIG.max_wait_s, 100 * CONFIG.max_wait_s])
def test_a_pod_with_another_gate_delays_no_other_pod_and_keeps_our_gate(age_s: float) -> None:
    """An open gate would freeze the pod's affinity before there is a plan: plans omit such pods."""
    held_pod = with_spec(make_pod("a", "A", age_s=age_s), schedulingGates=[{"name": GATE}, OTHER_GATE])
    inputs = make_inputs(held_pod, B, order="AB")
    assert list_releases(inputs) == [("b", "turn")]
    reason = "held by another scheduling gate: kueue.x-k8s.io/admission"
    assert decide_releases(inputs, NOW_S, CONFIG).wait_reasons == {"d/a": reason}


@pytest.mark.parametrize(
    ("gang", "other_gates", "age_s", "released"),
    [
        pytest.param("gang", [], 0, [("a", "turn"), ("c", "turn")], id="together"),
        pytest.param("gang", [OTHER_GATE], 0, [], id="one has another gate"),
        pytest.param("gang", [OTHER_GATE], CONFIG.max_wait_s, [("a", "waited")], id="overdue"),
        pytest.param("", [], 0, [("a", "turn")], id="no PodGroup"),
    ],
)
def test_pods_of_one_pod_group_are_released_together(
    gang: str, other_gates: list[dict[str, str]], age_s: float, released: list[tuple[str, str]]
) -> None:
    """Pods outside the PodGroup wait as before: b is before c in the order."""
    in_gang = {"schedulingGroup": {"podGroupName": gang}}
    gates = [{"name": GATE}, *other_gates]
    a = with_spec(make_pod("a", "A", age_s=age_s), **in_gang)
    c = with_spec(make_pod("c", "C", age_s=age_s), schedulingGates=gates, **in_gang)
    assert list_releases(make_inputs(a, c, B)) == released


def test_max_wait_counts_from_the_opening_of_the_last_other_gate() -> None:
    old_b = make_pod("b", "B", age_s=10 * CONFIG.max_wait_s)
    inputs = make_inputs(old_b, A, other_gates_opened_at={"d/b": NOW_S - 1})
    assert list_releases(inputs) == [("a", "turn")]
    assert ("b", "waited") in list_releases(inputs, CONFIG.max_wait_s)


@pytest.mark.parametrize(
    ("expected_pods", "is_complete"),
    [
        pytest.param({"num_members": 2, "declared_replicas": {"A": 1, "B": 1}}, True, id="complete"),
        pytest.param({"num_members": 3}, False, id="a member is missing"),
        pytest.param({"num_members": 2, "declared_replicas": {"A": 1, "B": 2}}, False, id="a replica is missing"),
    ],
)
def test_a_group_waits_for_declared_replicas_and_num_members(
    expected_pods: dict[str, Any], *, is_complete: bool
) -> None:
    inputs = make_inputs(A, B, order="AB", first_seen_at={"d/a": NOW_S, "d/b": NOW_S}, **expected_pods)
    assert list_releases(inputs) == [("a", "turn")] * is_complete


def test_an_incomplete_group_waits_from_the_creation_of_its_newest_pod() -> None:
    first_seen_at = {"d/a": NOW_S - 9, "d/b": NOW_S - CREATION_PAUSE_S + 0.2}
    inputs = make_inputs(A, B, order="AB", num_members=3, first_seen_at=first_seen_at)
    assert decide_releases(inputs, NOW_S, CONFIG).next_check_s == pytest.approx(0.2)
    assert seconds_until_complete(inputs, NOW_S) == pytest.approx(0.2)
    assert seconds_until_complete(inputs, NOW_S + 9) == 0


@pytest.mark.parametrize(
    "inputs",
    [
        make_inputs(A, B, order="AB", num_members=3),
        # After a finished pod no more pods are expected.
        make_inputs(A, FAILED_B, order="AB", num_members=3, first_seen_at={"d/b": NOW_S}),
    ],
    ids=["pods that were not seen", "a finished pod"],
)
def test_an_incomplete_group_does_not_wait_for_more_pods(inputs: ReleaseInputs) -> None:
    assert seconds_until_complete(inputs, NOW_S) == 0


@pytest.mark.parametrize(
    ("inputs", "after_s", "next_check_s"),
    [
        pytest.param(make_inputs(UNTRIED_A, make_pod("b", "B", age_s=30)), 0, 70, id="only maxWaitS ends the wait: 100 - 30"),
        pytest.param(make_inputs(UNTRIED_A, make_pod("b", "B", age_s=-5)), 0, 100, id="a clock that is slow"),
        pytest.param(make_inputs(UNTRIED_A, without_times(B)), 0, 100, id="no creation time"),
        pytest.param(make_inputs(UNTRIED_A, make_pod("b", "B", age_s=99)), 0.99, 0.05, id="the shortest time between checks"),
        pytest.param(make_inputs(BOUND_A, make_pod("b", "B", age_s=5), declared_replicas={"A": 2}), 0, 15, id="a replica is missing: 20 - 5"),
        pytest.param(make_inputs(make_unschedulable_pod("a", "A", since_s=5), B), 0, 15, id="unschedulable: 20 - 5"),
        pytest.param(make_inputs(make_unschedulable_pod("a", "A", since_s=19), B), 0.5, 0.5, id="unschedulable: 20 - 19 - 0.5"),
        pytest.param(make_inputs(make_unschedulable_pod("a", "A", since_s=20), B, C), 0, 100, id="b is released, c waits for b"),
        pytest.param(make_inputs(make_unschedulable_pod("a", "A", since_s=5)), 0, None, id="no pod waits"),
    ],
)  # fmt: skip
def test_the_next_check_is_at_the_end_of_the_first_wait(
    inputs: ReleaseInputs, after_s: float, next_check_s: float | None
) -> None:
    decision = decide_releases(inputs, NOW_S + after_s, CONFIG)
    assert decision.next_check_s == (None if next_check_s is None else pytest.approx(next_check_s, abs=1e-6))


@pytest.mark.parametrize("replicas", [{"A": 3, "C": 1}, {"B": 2, "C": 1}], ids=["too few", "none known"])
def test_the_reason_of_the_earlier_of_two_workloads_is_reported(replicas: dict[str, int]) -> None:
    decision = decide_releases(make_inputs(C, declared_replicas=replicas), NOW_S, CONFIG)
    assert decision.wait_reasons["d/c"].startswith("workload A comes first, and ")
