"""Faults follow from their seed; audit logs and usage of resources show violations."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.chaos.audit import POD_CLAIM, find_pods_gated_too_long, find_unfenced_writes, read_events
from tests.chaos.faults import WEIGHT_BY_KIND, FaultTargets, draw_faults
from tests.chaos.usage import Usage, find_leaks

TARGETS = FaultTargets(("controller", "extender", "agent-n1"), ("z1", "z2", "z3"), ("n1", "n2"))
CONTROLLER = "system:serviceaccount:netaware-system:netaware-controller"
LEASE = "netaware-controller"
GATE = "netaware.io/topological-order"
NOON_S = 1767268800.0  # 1 January 2026
GATE_LIMIT_S = 30.0


def format_time(second: float) -> str:
    return f"2026-01-01T12:{int(second) // 60:02}:{second % 60:09.6f}Z"


def audit_line(second: float, verb: str, resource: str, name: str = "", **fields: Any) -> bytes:
    """Event of an audit log, at a number of seconds after noon."""
    resource, _, sub = resource.partition("/")
    body = {
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": fields.get("user", "other"), "extra": {POD_CLAIM: [fields.get("by", "n1")]}},
        "objectRef": {"resource": resource, "subresource": sub, "namespace": "shop", "name": name},
        "responseStatus": {"code": fields.get("code", 200)},
        "requestReceivedTimestamp": format_time(fields.get("requested_s", second)),
        "stageTimestamp": format_time(second),
        "responseObject": fields.get("answer"),
    }
    return json.dumps(body).encode()


def lease(pod: str, revision: int, second: float = 0, *, holder: str | None = None, renewed: float = 0) -> bytes:
    spec = {
        "holderIdentity": pod if holder is None else holder,
        "acquireTime": format_time(0),
        "renewTime": format_time(renewed),
    }
    answer = {"metadata": {"resourceVersion": str(revision)}, "spec": spec}
    return audit_line(second, "update", "leases", LEASE, user=CONTROLLER, by=pod, answer=answer)


def fenced_write(pod: str, revision: int, second: float = 0, **fields: Any) -> bytes:
    """Write of a fenced object."""
    answer = {"metadata": {"resourceVersion": str(revision)}}
    return audit_line(second, "patch", "configmaps", "plan", user=CONTROLLER, by=pod, answer=answer, **fields)


def pod(uid: str, *gates: str) -> dict[str, Any]:
    spec = {"containers": [], "schedulingGates": [{"name": gate} for gate in gates]}
    return {"metadata": {"name": f"pod-{uid}", "uid": uid, "namespace": "shop"}, "spec": spec}


def created(second: float, uid: str) -> bytes:
    # With generateName the reference to the object has no name.
    return audit_line(second, "create", "pods", answer=pod(uid, GATE))


def released(second: float, uid: str) -> bytes:
    return audit_line(second, "patch", "pods", f"pod-{uid}", answer=pod(uid))


def bound(second: float, uid: str) -> bytes:
    return audit_line(second, "create", "pods/binding", f"pod-{uid}")


B_FOLLOWS_A = [lease("a", 10), lease("b", 20)]
LATER_LINE = audit_line(50, "create", "events", "e")
POD_A_DELETED = audit_line(20, "deletecollection", "pods", answer={"kind": "PodList", "items": [pod("a", GATE)]})
# Case -> its log, and the beginnings of its violations.
CASES: dict[str, tuple[list[bytes], list[str]]] = {
    "only the holder of the Lease writes": ([*B_FOLLOWS_A, fenced_write("a", 11), fenced_write("b", 21)], []),
    "a former leader writes": (
        [*B_FOLLOWS_A, fenced_write("a", 22)],
        ["former leader: a wrote configmaps shop/plan at revision 22, held by b"],
    ),
    "lines are not in the order of revisions": ([fenced_write("a", 11), *reversed(B_FOLLOWS_A)], []),
    "a replica writes after it released the Lease": (
        [lease("a", 10), lease("a", 12, holder=""), fenced_write("a", 13), lease("b", 20)],
        ["former leader: a wrote configmaps shop/plan at revision 13, held by no replica"],
    ),
    # The line in which b acquires the Lease is lost, the line of its renewal is not.
    "the line of an acquisition is lost": (
        [lease("a", 10), fenced_write("b", 15), lease("b", 20, renewed=2), b'{"stage": "Respon'],
        [],
    ),
    "a former leader's write is refused or changes nothing": (
        [*B_FOLLOWS_A, fenced_write("a", 11), fenced_write("a", 11, 9), fenced_write("a", 22, code=409)],
        [],
    ),
    "a response is slow": (
        [
            lease("a", 10),
            lease("b", 20, 10),
            fenced_write("a", 22, 15, requested_s=11),
            fenced_write("b", 25, 13, requested_s=12),
        ],
        ["former leader: a wrote"],
    ),
    "the line of an early revision is late": (
        [
            lease("a", 10),
            fenced_write("a", 15, 2),
            lease("b", 20, 4),
            fenced_write("a", 12, 5),
            fenced_write("b", 15, 21),
        ],
        [],
    ),
    "a gate stays closed": ([created(0, "a"), LATER_LINE], ["gated: pod shop/pod-a for 50 s"]),
    "a gate opens in time": ([created(0, "a"), released(20, "a"), LATER_LINE], []),
    "a gate was closed for less than the limit": ([created(30, "a"), LATER_LINE], []),
    "a gated pod is deleted": ([created(0, "a"), audit_line(20, "delete", "pods", "pod-a"), LATER_LINE], []),
    # The namespace controller deletes all unbound pods by one request.
    "a gated pod is deleted with its namespace": (
        [created(0, "a"), created(0, "b"), POD_A_DELETED, LATER_LINE],
        ["gated: pod shop/pod-b"],
    ),
    "the line of a release is lost": ([created(0, "a"), bound(5, "a"), audit_line(100, "create", "events", "e")], []),
}


def find_violations(log: list[bytes], *outages: tuple[float, float]) -> list[str]:
    events = read_events(log)
    return [*find_unfenced_writes(events), *find_pods_gated_too_long(events, GATE_LIMIT_S, outages)]


@pytest.mark.parametrize("name", CASES)
def test_a_log_shows_exactly_its_violations(name: str) -> None:
    log, expected = CASES[name]
    assert [text[: len(start)] for text, start in zip(find_violations(log), expected, strict=True)] == expected


def test_time_without_a_leader_does_not_count_as_gated() -> None:
    log = [created(0, "a"), released(50, "a")]
    assert find_violations(log, (NOON_S + 10, NOON_S + 31)) == []
    assert len(find_violations(log, (NOON_S - 100, NOON_S + 5))) == 1


def test_leaks_are_reported_and_expected_growth_is_not() -> None:
    before = {"a": Usage(100 << 20, 20, 1), "b": Usage(100 << 20, 20, 1), "c": Usage(1, 1, 1), "etcd": Usage(1, 1, 1)}
    # etcd keeps old versions until a compaction.
    after = {"a": Usage(120 << 20, 25, 2), "b": Usage(300 << 20, 90, 9), "etcd": Usage(300 << 20, 1, 1)}
    assert [text.split(":")[0] for text in find_leaks(before, after)] == [
        "memory",
        "descriptors",
        "processes",
        "not running",
    ]


def test_equal_seeds_draw_equal_faults_and_other_seeds_others() -> None:
    faults = draw_faults(7, 600, TARGETS)
    assert faults == draw_faults(7, 600, TARGETS) != draw_faults(8, 600, TARGETS)
    assert {fault.kind for fault in draw_faults(7, 6000, TARGETS)} == set(WEIGHT_BY_KIND)
    assert all(a.at_s < b.at_s < 600 for a, b in itertools.pairwise(faults))
