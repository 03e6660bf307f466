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
    ReleaseDecision,
    ReleaseInputs,
    decide_releases,
    seconds_until_complete,
)
from kubekit.wire import format_time
from tests.unit.controller import scheduler_objects

CREATED = 1_700_000_000.0
CONFIG = GatesConfig(max_wait_s=100, missing_workload_timeout_s=20)


def pod(name: str, workload: str, *, gated: bool = True, node: str = "", age_s: float = 0, **status: Any) -> Pod:
    metadata = {"namespace": "d", "creationTimestamp": format_time(CREATED - age_s)}
    gates = [{"name": GATE}] if gated and not node else None
    return scheduler_objects.make_pod(
        workload, node, name=name, group="g", metadata=metadata, status=status, schedulingGates=gates
    )


def unschedulable(name: str, workload: str, since_s: float, reason: str = "Unschedulable") -> Pod:
    since = format_time(CREATED - since_s)
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "lastTransitionTime": since}
    return pod(name, workload, gated=False, conditions=[condition])


def inputs_of(*pods: Pod, order: str = "ABC", **changes: Any) -> ReleaseInputs:
    positions = {selector: i for i, selector in enumerate(order, start=1)}
    return ReleaseInputs(pods, positions, **changes)


def released(decision: ReleaseDecision) -> list[tuple[str, str]]:
    return [(r.pod.metadata.name, r.cause) for r in decision.releases]


def terminating(made: Pod) -> Pod:
    meta = msgspec.structs.replace(made.metadata, deletion_timestamp=format_time(CREATED))
    return msgspec.structs.replace(made, metadata=meta)


def without_times(made: Pod) -> Pod:
    body = msgspec.to_builtins(made)
    body["metadata"].pop("creationTimestamp")
    for condition in body["status"].get("conditions", ()):
        condition.pop("lastTransitionTime")
    return msgspec.convert(body, Pod)


def with_pod_affinity(made: Pod) -> Pod:
    body = msgspec.to_builtins(made)
    terms = [{"topologyKey": "zone"}]
    body["spec"]["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return msgspec.convert(body, Pod)


A, B, BOUND = pod("a", "A"), pod("b", "B"), pod("a", "A", node="n")
DONE, UNTRIED = pod("a-done", "A", gated=False, phase="Succeeded"), pod("a", "A", gated=False)
WAIT_S = CONFIG.missing_workload_timeout_s
LONE = inputs_of(A, order="A", unplaced=frozenset({"d/a"}), num_members=2, first_seen_at={"d/a": CREATED})
SHORT = inputs_of(pod("a1", "A", node="n"), B, declared_replicas={"A": 2, "B": 1})


@pytest.mark.parametrize(
    ("group", "after_s", "expected"),
    [
        (inputs_of(B, pod("a1", "A"), pod("a2", "A"), pod("c", "C")), 0, "a1 a2"),
        (inputs_of(pod("a1", "A", node="n"), pod("a2", "A", gated=False), B, pod("c", "C")), 0, ""),
        (inputs_of(pod("a1", "A", node="n"), pod("a2", "A", node="n"), B, pod("c", "C")), 0, "b"),
        (SHORT, 0, ""),
        (SHORT, WAIT_S, "b"),
        (inputs_of(B), 0, ""),
        (inputs_of(B), WAIT_S, "b"),
        (inputs_of(B, declared_replicas={"A": 0}), 0, "b"),
        (inputs_of(DONE, terminating(pod("a-gone", "A")), BOUND, B), 0, "b"),
        (inputs_of(unschedulable("a", "A", since_s=1), B), 0, ""),
        (inputs_of(unschedulable("a", "A", since_s=WAIT_S), B), 0, "b"),
        # kube-scheduler sets this reason if the pod's volume cannot be bound.
        (inputs_of(unschedulable("a", "A", WAIT_S, reason="SchedulerError"), B), 0, "b"),
        (inputs_of(unschedulable("a", "A", WAIT_S, reason="SchedulingGated"), B), 0, ""),
        (inputs_of(without_times(unschedulable("a", "A", since_s=0)), B), 0, "b"),
        (inputs_of(unschedulable("a", "A", since_s=0), B, unplaced=frozenset({"d/a"})), 0, "b"),
        (inputs_of(with_pod_affinity(unschedulable("a", "A", since_s=0)), B), 0, "b"),
        (inputs_of(with_pod_affinity(UNTRIED), B), 0, ""),
        (inputs_of(UNTRIED, B, unplaced=frozenset({"d/a"})), 0, ""),
        (inputs_of(DONE, B), 0, "b"),
        (inputs_of(terminating(DONE), B), 0, ""),
        (inputs_of(pod("b1", "B", node="n"), pod("b2", "B")), 0, "b2"),  # A's Job has finished and was deleted
        (inputs_of(BOUND, pod("b1", "B", node="n"), pod("b2", "B"), declared_replicas={"A": 2}), 0, ""),
        (inputs_of(BOUND, B, declared_replicas={"A": 1, "B": 4, "C": 4}), 0, "b"),
        (inputs_of(B, pod("c", "C", gated=False), declared_replicas={"A": 0, "B": 1}), 0, "b"),
        (LONE, CREATION_PAUSE_S - 0.1, ""),
        (LONE, CREATION_PAUSE_S, "a"),
    ],
)
def test_a_workload_is_released_when_earlier_workloads_are_bound_finished_or_overdue(
    group: ReleaseInputs, after_s: float, expected: str
) -> None:
    decision = decide_releases(group, CREATED + after_s, CONFIG)
    cause = "unplaced" if group is LONE else "turn"
    assert released(decision) == [(name, cause) for name in expected.split()]


def test_the_order_follows_positions_and_not_names_or_the_order_of_the_list() -> None:
    positions = {"M": 3, "A": 2, "Z": 1}
    pods = (pod("m", "M"), pod("x", "nowhere"), pod("a2", "A"), pod("a1", "A"), pod("z", "Z"))
    decision = decide_releases(ReleaseInputs(pods, positions), CREATED, CONFIG)
    assert released(decision) == [("z", "turn")]
    reasons = {decision.wait_reasons["d/a1"], decision.wait_reasons["d/m"]}
    assert reasons == {"workload Z comes first, and its pod z is not bound yet"}
    late = decide_releases(ReleaseInputs(pods, positions), CREATED + 100, CONFIG)
    assert [r.pod.metadata.name for r in late.releases] == ["z", "a1", "a2", "m", "x"], "unknown workloads come last"


def test_unplaced_pods_are_released_at_once_and_together() -> None:
    pods = [pod("a", "A", gated=False), pod("b", "B"), pod("c1", "C"), pod("c2", "C")]
    assert released(decide_releases(inputs_of(*pods), CREATED, CONFIG)) == []
    decision = decide_releases(inputs_of(*pods, unplaced=frozenset({"d/c1", "d/c2"})), CREATED, CONFIG)
    assert released(decision) == [("c1", "unplaced"), ("c2", "unplaced")]
    assert set(decision.wait_reasons) == {"d/b"}
    growing = inputs_of(*pods, unplaced=frozenset({"d/c1"}), num_members=9, first_seen_at={"d/c1": CREATED})
    assert released(decide_releases(growing, CREATED, CONFIG)) == []


@pytest.mark.parametrize(
    ("unknown", "cause"),
    [
        (ReleaseInputs((pod("x", "A"),)), "no-group"),
        (inputs_of(pod("x", "no-such-workload")), "no-workload"),
        (inputs_of(pod("x", "")), "no-workload"),
    ],
)
def test_pods_without_a_group_or_workload_are_released_after_the_timeout(unknown: ReleaseInputs, cause: str) -> None:
    early = decide_releases(unknown, CREATED + CONFIG.missing_workload_timeout_s - 1, CONFIG)
    reason = "its AppGroup does not exist" if cause == "no-group" else "its AppGroup has no such workload"
    assert (early.releases, set(early.wait_reasons.values())) == ((), {reason})
    assert early.next_check_s == pytest.approx(1)
    assert released(decide_releases(unknown, CREATED + CONFIG.missing_workload_timeout_s, CONFIG)) == [("x", cause)]


KINDS = st.sampled_from(["gated", "pending", "bound", "unschedulable"])
PODS = st.lists(st.tuples(st.sampled_from("ABCX"), KINDS, st.floats(0, 90, allow_nan=False)), max_size=8)


@given(pods=PODS, exists=st.booleans(), replicas=st.dictionaries(st.sampled_from("ABC"), st.integers(0, 5), max_size=3))
def test_every_pod_is_released_after_max_wait_and_checked_before(
    pods: list[tuple[str, str, float]], exists: bool, replicas: dict[str, int]
) -> None:
    made = []
    for i, (workload, kind, age_s) in enumerate(pods):
        if kind == "unschedulable":
            made.append(unschedulable(f"p{i}", workload, age_s))
        else:
            made.append(pod(f"p{i}", workload, gated=kind == "gated", node="n" if kind == "bound" else "", age_s=age_s))
    positions = {"A": 1, "B": 2, "C": 3} if exists else None
    group = ReleaseInputs(made, positions, declared_replicas=replicas, num_members=9)
    gated = {p.metadata.key for p in made if p.is_gated}
    now = decide_releases(group, CREATED, CONFIG)
    assert {r.pod.metadata.key for r in now.releases} | set(now.wait_reasons) == gated
    assert not {r.pod.metadata.key for r in now.releases} & set(now.wait_reasons)
    if now.wait_reasons:
        assert now.next_check_s is not None
        assert now.next_check_s <= CONFIG.max_wait_s
    late = decide_releases(group, CREATED + CONFIG.max_wait_s, CONFIG)
    assert {r.pod.metadata.key for r in late.releases} == gated


@pytest.mark.parametrize("age_s", [0.0, CONFIG.max_wait_s, 100 * CONFIG.max_wait_s])
def test_a_pod_with_another_gate_delays_no_other_pod_and_keeps_our_gate(age_s: float) -> None:
    """An open gate would freeze the pod's affinity before there is a plan: plans omit such pods."""
    made = msgspec.to_builtins(pod("a", "A", age_s=age_s))
    made["spec"]["schedulingGates"].append({"name": "kueue.x-k8s.io/admission"})
    decision = decide_releases(inputs_of(msgspec.convert(made, Pod), pod("b", "B"), order="AB"), CREATED, CONFIG)
    assert released(decision) == [("b", "turn")]
    assert decision.wait_reasons == {"d/a": "held by another scheduling gate: kueue.x-k8s.io/admission"}


@pytest.mark.parametrize(
    ("gang", "others", "age_s", "expected"),
    [
        ("gang", [], 0, [("a", "turn"), ("c", "turn")]),
        ("gang", ["kueue.x-k8s.io/admission"], 0, []),
        ("gang", ["kueue.x-k8s.io/admission"], CONFIG.max_wait_s, [("a", "waited")]),
        ("", [], 0, [("a", "turn")]),
    ],
)
def test_pods_of_one_pod_group_are_released_together(
    gang: str, others: list[str], age_s: float, expected: list[tuple[str, str]]
) -> None:
    """Pods outside the PodGroup wait as before: b is before c in the order."""
    pods = [msgspec.to_builtins(pod(name, name.upper(), age_s=age_s)) for name in ("a", "c")]
    for made in pods:
        made["spec"]["schedulingGroup"] = {"podGroupName": gang}
    pods[1]["spec"]["schedulingGates"] += [{"name": name} for name in others]
    members = [msgspec.convert(made, Pod) for made in pods]
    assert released(decide_releases(inputs_of(*members, pod("b", "B")), CREATED, CONFIG)) == expected


def test_max_wait_counts_from_the_opening_of_the_last_other_gate() -> None:
    opened_at = {"d/b": CREATED - 1}
    inputs = inputs_of(pod("b", "B", age_s=10 * CONFIG.max_wait_s), pod("a", "A"), other_gates_opened_at=opened_at)
    assert released(decide_releases(inputs, CREATED, CONFIG)) == [("a", "turn")]
    assert ("b", "waited") in released(decide_releases(inputs, CREATED + CONFIG.max_wait_s, CONFIG))


def test_a_group_is_complete_with_declared_replicas_and_num_members() -> None:
    seen = {"d/a": CREATED, "d/b": CREATED}
    pods = (pod("a", "A"), pod("b", "B"))
    complete = inputs_of(*pods, order="AB", num_members=2, declared_replicas={"A": 1, "B": 1}, first_seen_at=seen)
    assert released(decide_releases(complete, CREATED, CONFIG)) == [("a", "turn")]
    for short in ({"num_members": 3}, {"declared_replicas": {"A": 1, "B": 2}}):
        growing = inputs_of(*pods, order="AB", first_seen_at=seen, **{"num_members": 2, **short})
        assert released(decide_releases(growing, CREATED, CONFIG)) == []
    seen = {"d/a": CREATED - 9, "d/b": CREATED - CREATION_PAUSE_S + 0.2}
    almost = inputs_of(*pods, order="AB", num_members=3, first_seen_at=seen)
    assert decide_releases(almost, CREATED, CONFIG).next_check_s == pytest.approx(0.2), "the newest pod counts"
    assert seconds_until_complete(almost, CREATED) == pytest.approx(0.2)
    assert seconds_until_complete(almost, CREATED + 9) == 0
    unseen = inputs_of(*pods, order="AB", num_members=3)
    assert seconds_until_complete(unseen, CREATED) == 0
    failed = pod("b", "B", gated=False, phase="Failed")
    finished = inputs_of(pod("a", "A"), failed, order="AB", num_members=3, first_seen_at={"d/b": CREATED})
    assert seconds_until_complete(finished, CREATED) == 0, "after a finished pod no more pods are expected"


@pytest.mark.parametrize(
    ("group", "after_s", "next_check_s"),
    [
        (inputs_of(UNTRIED, pod("b", "B", age_s=30)), 0, 70),  # only maxWaitS ends the wait
        (inputs_of(UNTRIED, pod("b", "B", age_s=-5)), 0, 100),  # a clock that is slow
        (inputs_of(UNTRIED, without_times(B)), 0, 100),
        (inputs_of(UNTRIED, pod("b", "B", age_s=99)), 0.99, 0.05),  # the shortest time between checks
        (inputs_of(BOUND, pod("b", "B", age_s=5), declared_replicas={"A": 2}), 0, 15),
        (inputs_of(unschedulable("a", "A", since_s=5), B), 0, 15),
        (inputs_of(unschedulable("a", "A", since_s=19), B), 0.5, 0.5),
        (inputs_of(unschedulable("a", "A", since_s=20), B, pod("c", "C")), 0, 100),  # b is released, c waits for b
        (inputs_of(BOUND), 0, None),
        (inputs_of(A), 0, None),
        (inputs_of(unschedulable("a", "A", since_s=5)), 0, None),  # no pod waits
    ],
)
def test_the_next_check_is_at_the_end_of_the_first_wait(
    group: ReleaseInputs, after_s: float, next_check_s: float | None
) -> None:
    found = decide_releases(group, CREATED + after_s, CONFIG).next_check_s
    assert found == (None if next_check_s is None else pytest.approx(next_check_s, abs=1e-6))


@pytest.mark.parametrize("replicas", [{"A": 3, "C": 1}, {"B": 2, "C": 1}], ids=["too few", "none known"])
def test_the_reason_of_the_earlier_of_two_workloads_is_reported(replicas: dict[str, int]) -> None:
    missing = inputs_of(pod("c", "C"), declared_replicas=replicas)
    assert decide_releases(missing, CREATED, CONFIG).wait_reasons["d/c"].startswith("workload A comes first, and ")
