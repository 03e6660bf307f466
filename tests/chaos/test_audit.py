"""Audit logs show writes without the Lease, and pods that were gated too long."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.chaos.audit import (
    CONTROLLER_USER,
    LEASE,
    POD_CLAIM,
    find_pods_gated_too_long,
    find_unfenced_writes,
    read_events,
)

GATE = "netaware.io/topological-order"
NOON_S = 1767268800.0  # 1 January 2026
GATE_LIMIT_S = 30.0


def format_time(after_noon_s: float) -> str:
    return f"2026-01-01T12:{int(after_noon_s) // 60:02}:{after_noon_s % 60:09.6f}Z"


def make_event(
    at_s: float,
    verb: str,
    resource: str,
    name: str = "",
    *,
    user: str = "other",
    pod: str = "",
    code: int = 200,
    requested_s: float | None = None,
    response: object = None,
) -> bytes:
    """A line of an audit log, of a request by ``pod``. Times are in seconds after noon; ``at_s`` is when it ended."""
    resource, _, subresource = resource.partition("/")
    body = {
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": user, "extra": {POD_CLAIM: [pod]}},
        "objectRef": {"resource": resource, "subresource": subresource, "namespace": "shop", "name": name},
        "responseStatus": {"code": code},
        "requestReceivedTimestamp": format_time(at_s if requested_s is None else requested_s),
        "stageTimestamp": format_time(at_s),
        "responseObject": response,
    }
    return json.dumps(body).encode()


def make_lease_write(
    pod: str, *, revision: int, at_s: float = 0, holder: str | None = None, renewed_s: float = 0
) -> bytes:
    """A write of the Lease, which makes ``pod`` or ``holder`` its holder."""
    spec = {
        "holderIdentity": pod if holder is None else holder,
        "acquireTime": format_time(0),
        "renewTime": format_time(renewed_s),
    }
    response = {"metadata": {"resourceVersion": str(revision)}, "spec": spec}
    return make_event(at_s, "update", "leases", LEASE, user=CONTROLLER_USER, pod=pod, response=response)


def make_fenced_write(pod: str, *, revision: int, at_s: float = 0, **options: Any) -> bytes:
    """A write that only the holder of the Lease may do."""
    response = {"metadata": {"resourceVersion": str(revision)}}
    return make_event(at_s, "patch", "configmaps", "plan", user=CONTROLLER_USER, pod=pod, response=response, **options)


def make_pod(uid: str, *gates: str) -> dict[str, Any]:
    spec = {"containers": [], "schedulingGates": [{"name": gate} for gate in gates]}
    return {"metadata": {"name": f"pod-{uid}", "uid": uid, "namespace": "shop"}, "spec": spec}


def make_creation(at_s: float, uid: str) -> bytes:
    # With generateName the reference to the object has no name.
    return make_event(at_s, "create", "pods", response=make_pod(uid, GATE))


def make_release(at_s: float, uid: str) -> bytes:
    return make_event(at_s, "patch", "pods", f"pod-{uid}", response=make_pod(uid))


def make_log_end(at_s: float) -> bytes:
    return make_event(at_s, "create", "events", "last")


def find_violations(log: list[bytes], *outages: tuple[float, float]) -> list[str]:
    events = read_events(log)
    return [*find_unfenced_writes(events), *find_pods_gated_too_long(events, GATE_LIMIT_S, outages)]


A_ACQUIRES, B_ACQUIRES = make_lease_write("a", revision=10), make_lease_write("b", revision=20)
TRUNCATED_LINE = b'{"stage": "Respon'
DELETED_PODS = {"kind": "PodList", "items": [make_pod("a", GATE)]}
# Case -> its log, and the beginnings of its violations.
CASES: dict[str, tuple[list[bytes], list[str]]] = {
    "only the holder of the Lease writes": (
        [A_ACQUIRES, B_ACQUIRES, make_fenced_write("a", revision=11), make_fenced_write("b", revision=21)],
        [],
    ),
    "a former leader writes": (
        [A_ACQUIRES, B_ACQUIRES, make_fenced_write("a", revision=22)],
        ["former leader: a wrote configmaps shop/plan at revision 22, held by b"],
    ),
    "lines are not in the order of revisions": ([make_fenced_write("a", revision=11), B_ACQUIRES, A_ACQUIRES], []),
    "a replica writes after it released the Lease": (
        [A_ACQUIRES, make_lease_write("a", revision=12, holder=""), make_fenced_write("a", revision=13), B_ACQUIRES],
        ["former leader: a wrote configmaps shop/plan at revision 13, held by no replica"],
    ),
    "the line in which b acquires the Lease is lost, that of its renewal is not": (
        [
            A_ACQUIRES,
            make_fenced_write("b", revision=15),
            make_lease_write("b", revision=20, renewed_s=2),
            TRUNCATED_LINE,
        ],
        [],
    ),
    "a former leader's write changes nothing or is refused": (
        [
            A_ACQUIRES,
            B_ACQUIRES,
            make_fenced_write("a", revision=11),
            # It changed nothing, because revision 11 is of the earlier write.
            make_fenced_write("a", revision=11, at_s=9),
            make_fenced_write("a", revision=22, code=409),
        ],
        [],
    ),
    "the response to a former leader's write is slow": (
        [
            A_ACQUIRES,
            make_lease_write("b", revision=20, at_s=10),
            make_fenced_write("a", revision=22, at_s=15, requested_s=11),
            make_fenced_write("b", revision=25, at_s=13, requested_s=12),
        ],
        ["former leader: a wrote"],
    ),
    "the line of an early revision is late": (
        [
            A_ACQUIRES,
            make_fenced_write("a", revision=15, at_s=2),
            make_lease_write("b", revision=20, at_s=4),
            make_fenced_write("a", revision=12, at_s=5),
            make_fenced_write("b", revision=15, at_s=21),
        ],
        [],
    ),
    "a gate stays closed": ([make_creation(0, "a"), make_log_end(50)], ["gated: pod shop/pod-a for 50 s"]),
    "a gate is opened in time": ([make_creation(0, "a"), make_release(20, "a"), make_log_end(50)], []),
    "a gate has been closed for less than the limit": ([make_creation(30, "a"), make_log_end(50)], []),
    "a gated pod is deleted": (
        [make_creation(0, "a"), make_event(20, "delete", "pods", "pod-a"), make_log_end(50)],
        [],
    ),
    # The namespace controller deletes all unbound pods by one request. Only the pods in its response are deleted.
    "a gated pod is deleted with its namespace": (
        [
            make_creation(0, "a"),
            make_creation(0, "b"),
            make_event(20, "deletecollection", "pods", response=DELETED_PODS),
            make_log_end(50),
        ],
        ["gated: pod shop/pod-b"],
    ),
    "the line of a release is lost": (
        [make_creation(0, "a"), make_event(5, "create", "pods/binding", "pod-a"), make_log_end(100)],
        [],
    ),
}


@pytest.mark.parametrize(("log", "expected_prefixes"), CASES.values(), ids=CASES)
def test_a_log_shows_exactly_its_violations(log: list[bytes], expected_prefixes: list[str]) -> None:
    for violation, prefix in zip(find_violations(log), expected_prefixes, strict=True):
        assert violation.startswith(prefix)


def test_time_without_a_leader_does_not_count_as_gated() -> None:
    log = [make_creation(0, "a"), make_release(50, "a")]
    # 50 s - 21 s of outage are within the limit of 30 s, 50 s - 5 s are not.
    assert find_violations(log, (NOON_S + 10, NOON_S + 31)) == []
    assert len(find_violations(log, (NOON_S - 100, NOON_S + 5))) == 1
