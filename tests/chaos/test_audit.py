"""Faults of a seed repeat, and the invariants find what is wrong in an audit log and nothing else."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.chaos.audit import POD_CLAIM, AuditEvent, gated_too_long, read, unfenced_writes
from tests.chaos.faults import WEIGHTS, World, draw
from tests.chaos.usage import Usage, leaks

WORLD = World(("controller", "extender", "agent-n1"), ("z1", "z2", "z3"), ("n1", "n2"))
CONTROLLER = "system:serviceaccount:netaware-system:netaware-controller"
LEASE = "netaware-controller"
GATE = "netaware.io/topological-order"
NOON_S = 1767268800.0


def at(second: float) -> str:
    return f"2026-01-01T12:{int(second) // 60:02}:{second % 60:09.6f}Z"


def line(second: float, verb: str, resource: str, name: str = "", **fields: Any) -> bytes:
    """One event of an audit log, that many seconds after noon."""
    resource, _, sub = resource.partition("/")
    body = {
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": fields.get("user", "somebody"), "extra": {POD_CLAIM: [fields.get("by", "n1")]}},
        "objectRef": {"resource": resource, "subresource": sub, "namespace": "shop", "name": name},
        "responseStatus": {"code": fields.get("code", 200)},
        "requestReceivedTimestamp": at(fields.get("asked_at", second)),
        "stageTimestamp": at(second),
        "responseObject": fields.get("answer"),
    }
    return json.dumps(body).encode()


def lease(pod: str, revision: int, second: float = 0, *, holder: str | None = None, renewed: float = 0) -> bytes:
    spec = {"holderIdentity": pod if holder is None else holder, "acquireTime": at(0), "renewTime": at(renewed)}
    answer = {"metadata": {"resourceVersion": str(revision)}, "spec": spec}
    return line(second, "update", "leases", LEASE, user=CONTROLLER, by=pod, answer=answer)


def written(pod: str, revision: int, second: float = 0, **fields: Any) -> bytes:
    """A write of something that is fenced."""
    answer = {"metadata": {"resourceVersion": str(revision)}}
    return line(second, "patch", "configmaps", "plan", user=CONTROLLER, by=pod, answer=answer, **fields)


def pod(uid: str, *gates: str) -> dict[str, Any]:
    spec = {"containers": [], "schedulingGates": [{"name": gate} for gate in gates]}
    return {"metadata": {"name": f"pod-{uid}", "uid": uid, "namespace": "shop"}, "spec": spec}


def created(second: float, uid: str) -> bytes:
    # With generateName the reference has no name.
    return line(second, "create", "pods", answer=pod(uid, GATE))


def released(second: float, uid: str) -> bytes:
    return line(second, "patch", "pods", f"pod-{uid}", answer=pod(uid))


def bound(second: float, uid: str) -> bytes:
    return line(second, "create", "pods/binding", f"pod-{uid}")


AB, BA, AWAY = [lease("a", 10), lease("b", 20)], [lease("b", 20), lease("a", 10)], line(50, "create", "events", "e")
GONE = line(20, "deletecollection", "pods", answer={"kind": "PodList", "items": [pod("a", GATE)]})
# What it shows, the log, and the beginnings of what is violated.
LOGS: dict[str, tuple[list[bytes], list[str]]] = {
    "only the holder writes": ([*AB, written("a", 11), written("b", 21)], []),
    "a deposed leader": ([*AB, written("a", 22)], ["deposed: a wrote configmaps shop/plan at revision 22, held by b"]),
    "revisions order, not lines": ([written("a", 11), *BA], []),
    "nobody holds it": (
        [lease("a", 10), lease("a", 12, holder=""), written("a", 13), lease("b", 20)],
        ["deposed: a wrote configmaps shop/plan at revision 13, held by nobody"],
    ),
    # b's taking of the Lease was not kept, its renewal was.
    "a lost line": ([lease("a", 10), written("b", 15), lease("b", 20, renewed=2), b'{"stage": "Respon'], []),
    "refused, or unchanged": ([*AB, written("a", 11), written("a", 11, 9), written("a", 22, code=409)], []),
    "a slow answer": (
        [lease("a", 10), lease("b", 20, 10), written("a", 22, 15, asked_at=11), written("b", 25, 13, asked_at=12)],
        ["deposed: a wrote"],
    ),
    "a late line of an early revision": (
        [lease("a", 10), written("a", 15, 2), lease("b", 20, 4), written("a", 12, 5), written("b", 15, 21)],
        [],
    ),
    "a gate that stays shut": ([created(0, "a"), AWAY], ["gated: pod shop/pod-a for 50 s"]),
    "released in time": ([created(0, "a"), released(20, "a"), AWAY], []),
    "a gate that is young": ([created(30, "a"), AWAY], []),
    "deleted while gated": ([created(0, "a"), line(20, "delete", "pods", "pod-a"), AWAY], []),
    # A namespace's controller deletes all pods in one request, and those without a node are gone by it.
    "gone with its namespace": ([created(0, "a"), created(0, "b"), GONE, AWAY], ["gated: pod shop/pod-b"]),
    "a lost line of a release": ([created(0, "a"), bound(5, "a"), line(100, "create", "events", "e")], []),
}


def violations(log: list[bytes], *away: tuple[float, float]) -> list[str]:
    events: list[AuditEvent] = read(log)
    return [*unfenced_writes(events), *gated_too_long(events, 30.0, away)]


@pytest.mark.parametrize("name", LOGS)
def test_log_has_these_violations(name: str) -> None:
    log, expected = LOGS[name]
    assert [text[: len(start)] for text, start in zip(violations(log), expected, strict=True)] == expected


def test_time_without_a_leader_does_not_count() -> None:
    log = [created(0, "a"), released(50, "a")]
    assert violations(log, (NOON_S + 10, NOON_S + 31)) == []
    assert len(violations(log, (NOON_S - 100, NOON_S + 5))) == 1


def test_leaks_are_reported_and_expected_growth_is_not() -> None:
    before = {"a": Usage(100 << 20, 20, 1), "b": Usage(100 << 20, 20, 1), "c": Usage(1, 1, 1), "etcd": Usage(1, 1, 1)}
    # etcd keeps its history until it is compacted.
    after = {"a": Usage(120 << 20, 25, 2), "b": Usage(300 << 20, 90, 9), "etcd": Usage(300 << 20, 1, 1)}
    kinds = [text.split(":")[0] for text in leaks(before, after)]
    assert kinds == ["memory", "descriptors", "processes", "not running"]


def test_a_seed_repeats_its_faults_and_another_gives_others() -> None:
    one = draw(7, 600, WORLD)
    assert one == draw(7, 600, WORLD) != draw(8, 600, WORLD)
    assert {fault.kind for fault in draw(7, 6000, WORLD)} == set(WEIGHTS)
    assert all(a.at_s < b.at_s < 600 for a, b in itertools.pairwise(one))
