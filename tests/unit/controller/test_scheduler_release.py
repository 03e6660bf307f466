"""Which gates open, and when: the group's order, and bounded waits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster.pods import GATE, Pod
from controller.scheduler.config import GatesConfig
from controller.scheduler.gating.release import DEBOUNCE_S, GroupQueue, ReleaseDecision, plan_release, settles_in_s
from kubekit.wire import format_time
from tests.unit.controller import scheduling

CREATED = 1_700_000_000.0
CONFIG = GatesConfig(max_wait_s=100, missing_workload_timeout_s=20)


def pod(name: str, workload: str, *, gated: bool = True, node: str = "", age_s: float = 0, **status: Any) -> Pod:
    metadata = {"namespace": "d", "creationTimestamp": format_time(CREATED - age_s)}
    gates = [{"name": GATE}] if gated and not node else None
    return scheduling.pod(workload, node, name=name, group="g", metadata=metadata, status=status, schedulingGates=gates)


def unschedulable(name: str, workload: str, since_s: float, reason: str = "Unschedulable") -> Pod:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "lastTransitionTime": format_time(CREATED - since_s),
    }
    return pod(name, workload, gated=False, conditions=[condition])


def queue(*pods: Pod, order: str = "ABC", **changes: Any) -> GroupQueue:
    places = {selector: i for i, selector in enumerate(order, start=1)}
    return GroupQueue(pods, places, **changes)


def released(turns: ReleaseDecision) -> list[tuple[str, str]]:
    return [(r.pod.metadata.name, r.cause) for r in turns.releases]


def leaving(made: Pod) -> Pod:
    meta = msgspec.structs.replace(made.metadata, deletion_timestamp=format_time(CREATED))
    return msgspec.structs.replace(made, metadata=meta)


def near_another(made: Pod) -> Pod:
    body = msgspec.to_builtins(made)
    body["spec"]["affinity"] = {
        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
    }
    return msgspec.convert(body, Pod)


A, B, BOUND = pod("a", "A"), pod("b", "B"), pod("a", "A", node="n")
DONE, UNTRIED = pod("a-done", "A", gated=False, phase="Succeeded"), pod("a", "A", gated=False)
WAIT_S = CONFIG.missing_workload_timeout_s
LONE = queue(A, order="A", unplaced=frozenset({"d/a"}), members=2, seen_at={"d/a": CREATED})
SHORT = queue(pod("a1", "A", node="n"), B, replicas={"A": 2, "B": 1})


@pytest.mark.parametrize(
    ("group", "after_s", "expected"),
    [
        (queue(B, pod("a1", "A"), pod("a2", "A"), pod("c", "C")), 0, "a1 a2"),
        (queue(pod("a1", "A", node="n"), pod("a2", "A", gated=False), B, pod("c", "C")), 0, ""),
        (queue(pod("a1", "A", node="n"), pod("a2", "A", node="n"), B, pod("c", "C")), 0, "b"),
        (SHORT, 0, ""),
        (SHORT, WAIT_S, "b"),
        (queue(B), 0, ""),
        (queue(B), WAIT_S, "b"),
        (queue(B, replicas={"A": 0}), 0, "b"),
        (queue(DONE, leaving(pod("a-gone", "A")), BOUND, B), 0, "b"),
        (queue(unschedulable("a", "A", since_s=1), B), 0, ""),
        (queue(unschedulable("a", "A", since_s=WAIT_S), B), 0, "b"),
        # kube-scheduler says so of a pod whose volume cannot be bound.
        (queue(unschedulable("a", "A", WAIT_S, reason="SchedulerError"), B), 0, "b"),
        (queue(unschedulable("a", "A", WAIT_S, reason="SchedulingGated"), B), 0, ""),
        (queue(unschedulable("a", "A", since_s=0), B, unplaced=frozenset({"d/a"})), 0, "b"),
        (queue(near_another(unschedulable("a", "A", since_s=0)), B), 0, "b"),
        (queue(near_another(UNTRIED), B), 0, ""),
        (queue(UNTRIED, B, unplaced=frozenset({"d/a"})), 0, ""),
        (queue(DONE, B), 0, "b"),
        (queue(leaving(DONE), B), 0, ""),
        (queue(pod("b1", "B", node="n"), pod("b2", "B")), 0, "b2"),  # A's Job is done and swept away
        (queue(BOUND, pod("b1", "B", node="n"), pod("b2", "B"), replicas={"A": 2}), 0, ""),
        (queue(BOUND, B, replicas={"A": 1, "B": 4, "C": 4}), 0, "b"),
        (queue(B, pod("c", "C", gated=False), replicas={"A": 0, "B": 1}), 0, "b"),
        (LONE, DEBOUNCE_S - 0.1, ""),
        (LONE, DEBOUNCE_S, "a"),
    ],
)
def test_a_workload_is_released_when_earlier_ones_are_bound_finished_or_overdue(
    group: GroupQueue, after_s: float, expected: str
) -> None:
    turns = plan_release(group, CREATED + after_s, CONFIG)
    cause = "unplaced" if group is LONE else "turn"
    assert released(turns) == [(name, cause) for name in expected.split()]


def test_the_order_follows_positions_and_not_names_or_the_order_of_the_list() -> None:
    """Z is first, A second, M last."""
    places = {"M": 3, "A": 2, "Z": 1}
    waiting = GroupQueue((pod("m", "M"), pod("x", "nowhere"), pod("a2", "A"), pod("a1", "A"), pod("z", "Z")), places)
    turns = plan_release(waiting, CREATED, CONFIG)
    assert released(turns) == [("z", "turn")]
    assert turns.waiting["d/a1"] == turns.waiting["d/m"] == "workload Z comes first, and its pod z is not bound yet"
    late = plan_release(waiting, CREATED + 100, CONFIG)
    assert [r.pod.metadata.name for r in late.releases] == ["z", "a1", "a2", "m", "x"], "unknown workloads come last"


def test_unplaced_pods_are_released_at_once_and_together() -> None:
    pods = [pod("a", "A", gated=False), pod("b", "B"), pod("c1", "C"), pod("c2", "C")]
    held = queue(*pods)
    assert released(plan_release(held, CREATED, CONFIG)) == []
    turns = plan_release(queue(*pods, unplaced=frozenset({"d/c1", "d/c2"})), CREATED, CONFIG)
    assert released(turns) == [("c1", "unplaced"), ("c2", "unplaced")]
    assert set(turns.waiting) == {"d/b"}
    growing = queue(*pods, unplaced=frozenset({"d/c1"}), members=9, seen_at={"d/c1": CREATED})
    assert released(plan_release(growing, CREATED, CONFIG)) == []


@pytest.mark.parametrize(
    ("unknown", "cause"),
    [
        (GroupQueue((pod("x", "A"),)), "no-group"),
        (queue(pod("x", "no-such-workload")), "no-workload"),
        (queue(pod("x", "")), "no-workload"),
    ],
)
def test_pods_without_a_group_or_workload_are_released_after_the_timeout(unknown: GroupQueue, cause: str) -> None:
    early = plan_release(unknown, CREATED + CONFIG.missing_workload_timeout_s - 1, CONFIG)
    assert early.releases == ()
    assert set(early.waiting.values()) == {
        "its AppGroup does not exist" if cause == "no-group" else "its AppGroup has no such workload"
    }
    assert early.next_check_s == pytest.approx(1)
    assert released(plan_release(unknown, CREATED + CONFIG.missing_workload_timeout_s, CONFIG)) == [("x", cause)]


PODS = st.lists(
    st.tuples(
        st.sampled_from("ABCX"),
        st.sampled_from(["gated", "pending", "bound", "stuck"]),
        st.floats(0, 90, allow_nan=False),
    ),
    max_size=8,
)


@given(pods=PODS, exists=st.booleans(), replicas=st.dictionaries(st.sampled_from("ABC"), st.integers(0, 5), max_size=3))
def test_every_pod_is_released_after_max_wait_and_checked_before(
    pods: list[tuple[str, str, float]], exists: bool, replicas: dict[str, int]
) -> None:
    made = []
    for i, (workload, kind, age_s) in enumerate(pods):
        if kind == "stuck":
            made.append(unschedulable(f"p{i}", workload, age_s))
        else:
            made.append(pod(f"p{i}", workload, gated=kind == "gated", node="n" if kind == "bound" else "", age_s=age_s))
    order = {"A": 1, "B": 2, "C": 3} if exists else None
    group = GroupQueue(made, order, replicas=replicas, members=9)
    gated = {p.metadata.key for p in made if p.is_gated}
    now = plan_release(group, CREATED, CONFIG)
    assert {r.pod.metadata.key for r in now.releases} | set(now.waiting) == gated
    assert not {r.pod.metadata.key for r in now.releases} & set(now.waiting)
    if now.waiting:
        assert now.next_check_s is not None
        assert now.next_check_s <= CONFIG.max_wait_s
    late = plan_release(group, CREATED + CONFIG.max_wait_s, CONFIG)
    assert {r.pod.metadata.key for r in late.releases} == gated


@pytest.mark.parametrize("age_s", [0.0, CONFIG.max_wait_s, 100 * CONFIG.max_wait_s])
def test_a_pod_with_another_gate_delays_no_other_and_keeps_our_gate(age_s: float) -> None:
    """Opening ours would freeze a decision that has not been made: a plan leaves such pods out."""
    made = msgspec.to_builtins(pod("a", "A", age_s=age_s))
    made["spec"]["schedulingGates"].append({"name": "kueue.x-k8s.io/admission"})
    turns = plan_release(queue(msgspec.convert(made, Pod), pod("b", "B"), order="AB"), CREATED, CONFIG)
    assert released(turns) == [("b", "turn")]
    assert turns.waiting == {"d/a": "held by another scheduling gate: kueue.x-k8s.io/admission"}


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
    """Whoever is not of it waits as before: b comes before c."""
    pods = [msgspec.to_builtins(pod(name, name.upper(), age_s=age_s)) for name in ("a", "c")]
    for made in pods:
        made["spec"]["schedulingGroup"] = {"podGroupName": gang}
    pods[1]["spec"]["schedulingGates"] += [{"name": name} for name in others]
    members = [msgspec.convert(made, Pod) for made in pods]
    assert released(plan_release(queue(*members, pod("b", "B")), CREATED, CONFIG)) == expected


def test_max_wait_counts_from_the_opening_of_the_last_other_gate() -> None:
    freed = queue(pod("b", "B", age_s=10 * CONFIG.max_wait_s), pod("a", "A"), others_opened_at={"d/b": CREATED - 1})
    assert released(plan_release(freed, CREATED, CONFIG)) == [("a", "turn")]
    assert ("b", "waited") in released(plan_release(freed, CREATED + CONFIG.max_wait_s, CONFIG))


def test_a_group_is_complete_with_declared_replicas_and_num_members() -> None:
    seen = {"d/a": CREATED, "d/b": CREATED}
    pods = (pod("a", "A"), pod("b", "B"))
    complete = queue(*pods, order="AB", members=2, replicas={"A": 1, "B": 1}, seen_at=seen)
    assert released(plan_release(complete, CREATED, CONFIG)) == [("a", "turn")]
    for short in ({"members": 3}, {"replicas": {"A": 1, "B": 2}}):
        growing = queue(*pods, order="AB", seen_at=seen, **{"members": 2, **short})
        assert released(plan_release(growing, CREATED, CONFIG)) == []
    almost = queue(*pods, order="AB", members=3, seen_at={"d/a": CREATED - 9, "d/b": CREATED - DEBOUNCE_S + 0.2})
    assert plan_release(almost, CREATED, CONFIG).next_check_s == pytest.approx(0.2), "the newest pod counts"
    assert settles_in_s(almost, CREATED) == pytest.approx(0.2)
    assert settles_in_s(almost, CREATED + 9) == 0
    unseen = queue(*pods, order="AB", members=3)
    assert settles_in_s(unseen, CREATED) == 0
    over = queue(
        pod("a", "A"), pod("b", "B", gated=False, phase="Failed"), order="AB", members=3, seen_at={"d/b": CREATED}
    )
    assert settles_in_s(over, CREATED) == 0, "nobody waits for company of one that is done"


@pytest.mark.parametrize(
    ("group", "next_check_s"),
    [
        (queue(pod("a", "A", gated=False), pod("b", "B", age_s=30)), 70),  # the longest wait alone ends it
        (queue(pod("a", "A", gated=False), pod("b", "B", age_s=-5)), 100),  # a clock that is behind
        (queue(pod("a", "A", node="n"), pod("b", "B", age_s=5), replicas={"A": 2}), 15),
        (queue(unschedulable("a", "A", since_s=5), pod("b", "B")), 15),
        (queue(unschedulable("a", "A", since_s=19), pod("b", "B")), 1.0),
        (queue(unschedulable("a", "A", since_s=20), pod("b", "B"), pod("c", "C")), 100),  # b goes, c waits for it
        (queue(pod("a", "A", node="n")), None),
        (queue(pod("a", "A")), None),
        (queue(unschedulable("a", "A", since_s=5)), None),  # nobody waits for it
    ],
)
def test_the_next_check_is_at_the_end_of_the_first_wait(group: GroupQueue, next_check_s: float | None) -> None:
    found = plan_release(group, CREATED, CONFIG).next_check_s
    assert found == (None if next_check_s is None else pytest.approx(next_check_s, abs=1e-6))


def test_a_check_just_before_the_end_of_a_wait_is_not_repeated_at_once() -> None:
    nearly = plan_release(queue(pod("a", "A", gated=False), pod("b", "B", age_s=99)), CREATED + 0.99, CONFIG)
    assert (nearly.releases, nearly.next_check_s) == ((), 0.05)
    stuck = plan_release(queue(unschedulable("a", "A", since_s=19), pod("b", "B")), CREATED + 0.5, CONFIG)
    assert stuck.releases == ()
    assert stuck.next_check_s == pytest.approx(0.5)


def test_pods_without_timestamps_count_as_new_and_as_refused_for_long() -> None:
    def without(made: Pod) -> Pod:
        body = msgspec.to_builtins(made)
        body["metadata"].pop("creationTimestamp")
        for condition in body["status"].get("conditions", ()):
            condition.pop("lastTransitionTime")
        return msgspec.convert(body, Pod)

    held = queue(pod("a", "A", gated=False), without(pod("b", "B")))
    assert plan_release(held, CREATED, CONFIG).next_check_s == 100
    passed = queue(without(unschedulable("a", "A", since_s=0)), pod("b", "B"))
    assert released(plan_release(passed, CREATED, CONFIG)) == [("b", "turn")]


@pytest.mark.parametrize("replicas", [{"A": 3, "C": 1}, {"B": 2, "C": 1}], ids=["too few", "none known"])
def test_the_reason_of_the_earlier_of_two_workloads_is_reported(replicas: dict[str, int]) -> None:
    missing = queue(pod("c", "C"), replicas=replicas)
    assert plan_release(missing, CREATED, CONFIG).waiting["d/c"].startswith("workload A comes first, and ")
