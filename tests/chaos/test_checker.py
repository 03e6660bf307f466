"""Faults of a seed repeat, and the invariants find what is wrong in an audit log and nothing else."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from netperf.results import failure_key, sample_key
from netperf.sample import Place
from tests.chaos import audit
from tests.chaos.checker import check, cost_writes
from tests.chaos.faults import WEIGHTS, World, draw
from tests.chaos.usage import Usage, leaks

WORLD = World(("controller", "extender", "agent-n1"), ("z1", "z2", "z3"), ("n1", "n2"))
CONTROLLER, AGENT = (f"system:serviceaccount:netaware-system:netaware-{name}" for name in ("controller", "agent"))
LEASE = "netaware-controller"
GATE = [{"name": "netaware.io/plan"}]
NOON_S = 1767268800.0


def at(second: float) -> str:
    return f"2026-01-01T12:{int(second) // 60:02}:{second % 60:09.6f}Z"


def line(second: float, verb: str, resource: str, name: str = "", **fields: Any) -> bytes:
    """One event of an audit log, that many seconds after noon."""
    resource, _, sub = resource.partition("/")
    claim = audit.NODE_CLAIM if fields.get("user") == AGENT else audit.POD_CLAIM
    body = {
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": fields.get("user", "somebody"), "extra": {claim: [fields.get("by", "n1")]}},
        "objectRef": {"resource": resource, "subresource": sub, "namespace": "shop", "name": name},
        "responseStatus": {"code": fields.get("code", 200)},
        "requestReceivedTimestamp": at(fields.get("asked_at", second)),
        "stageTimestamp": at(second),
        "requestObject": fields.get("asked"),
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


def pod(uid: str, *, gated: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": []} | ({"schedulingGates": GATE} if gated else {})
    return {"metadata": {"name": f"pod-{uid}", "uid": uid, "namespace": "shop"}, "spec": spec}


def created(second: float, uid: str, *, gated: bool = True) -> bytes:
    # With generateName the reference has no name.
    return line(second, "create", "pods", answer=pod(uid, gated=gated))


def released(second: float, uid: str, asked_at: float | None = None) -> bytes:
    asked_at = second if asked_at is None else asked_at
    return line(second, "patch", "pods", f"pod-{uid}", answer=pod(uid, gated=False), asked_at=asked_at)


def bound(second: float, uid: str, node: str = "n1", code: int = 201) -> bytes:
    asked = {"target": {"kind": "Node", "name": node}}
    return line(second, "create", "pods/binding", f"pod-{uid}", asked=asked, code=code)


def results(by: str, data: dict[str, str | None], second: float = 0) -> bytes:
    return line(second, "patch", "configmaps", "netperf-metrics", user=AGENT, by=by, asked={"data": data})


def ends(origin: str, destination: str, zones: str = "ab") -> str:
    """A sample, as far as the checker reads it."""
    a, b = ({"node": node, "zone": zone} for node, zone in zip((origin, destination), zones, strict=True))
    return json.dumps({"origin": a, "destination": b})


def measured(second: float, zones: str) -> bytes:
    return results("n1", {f"netaware.v1.{zones}": ends("n1", "n2", zones)}, second)


def priced(second: float, **costs: int) -> bytes:
    """A write of the topology; ``ab=3`` is the cost from a to b."""
    rows = [{"origin": p[0], "costList": [{"destination": p[1], "networkCost": cost}]} for p, cost in costs.items()]
    lists = [{"topologyKey": "topology.kubernetes.io/zone", "originList": rows}]
    answer = {"metadata": {"name": "nt"}, "spec": {"weights": [{"name": "NetperfCosts", "topologyList": lists}]}}
    return line(second, "patch", "networktopologies", "nt", user=CONTROLLER, answer=answer)


OWN = sample_key(Place("n1", "a"), Place("n2", "b"), "TCP_RR")
FAILED = failure_key(Place("n1", "a"), Place("n2", "b"), "TCP_RR")
AB, BA, AWAY = [lease("a", 10), lease("b", 20)], [lease("b", 20), lease("a", 10)], line(50, "create", "events", "e")
GONE = line(20, "deletecollection", "pods", answer={"kind": "PodList", "items": [pod("a", gated=True)]})
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
    "an agent's own keys": ([results("n1", {OWN: ends("n1", "n2"), FAILED: None}), results("n1", {OWN: None})], []),
    "another agent's keys": (
        [
            results("n1", {OWN: ends("n1", "n2")}),
            results("n2", {OWN: ends("n1", "n2")}),
            results("n2", {OWN: None}),
        ],
        ["foreign key: the agent of n2", "foreign key: the agent of n2"],
    ),
    "an agent's own node": ([line(0, "patch", "nodes", "n1", user=AGENT)], []),
    "another node": ([line(0, "patch", "nodes", "n2", user=AGENT)], ["foreign node: the agent of n1 wrote node n2"]),
    "two nodes": (
        [created(0, "a", gated=False), bound(1, "a"), bound(2, "a", "n2", code=409), bound(4, "a", "n3")],
        ["bound twice: pod shop/pod-a to n1 and n3"],
    ),
    "bound before the gate": (
        [created(0, "a"), bound(3, "a"), released(5, "a")],
        ["bound while gated: pod shop/pod-a, 2.0 s too early"],
    ),
    "bound while the opening is answered": ([created(0, "a"), bound(4.9, "a"), released(5, "a", asked_at=4.8)], []),
    "a gate that stays shut": ([created(0, "a"), AWAY], ["gated: pod shop/pod-a for 50 s"]),
    "a gate that is young": ([created(30, "a"), AWAY], []),
    "deleted while gated": ([created(0, "a"), line(20, "delete", "pods", "pod-a"), AWAY], []),
    # A namespace's controller deletes all pods in one request, and those without a node are gone by it.
    "gone with its namespace": ([created(0, "a"), created(0, "b"), GONE, AWAY], ["gated: pod shop/pod-b"]),
    "a lost line of a release": ([created(0, "a"), bound(5, "a"), line(100, "create", "events", "e")], []),
    "a measured cost": ([measured(0, "ab"), priced(59, ab=3, ba=3)], []),
    "costs over others": ([measured(0, "ab"), measured(0, "bc"), measured(40, "cd"), priced(50, ab=1, ca=2, da=3)], []),
    "an old measurement": ([measured(0, "ab"), priced(70, ab=3)], ["unsupported cost: a to b, last measured 70 s ago"]),
    "never measured": ([priced(5, ab=3), measured(6, "ab")], ["unsupported cost: a to b, last measured never"]),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_log_violates(name: str) -> None:
    log, expected = LOGS[name]
    found = check(audit.read(log), lifetime_s=60.0, gate_s=30.0)
    assert [text[: len(start)] for text, start in zip(found, expected, strict=True)] == expected


def test_time_without_anybody_who_could_open_a_gate_does_not_count() -> None:
    events = audit.read([created(0, "a"), released(50, "a")])
    away = ((NOON_S + 10, NOON_S + 31),)
    assert check(events, lifetime_s=60.0, gate_s=30.0, away=away) == []
    assert len(check(events, lifetime_s=60.0, gate_s=30.0, away=((NOON_S - 100, NOON_S + 5),))) == 1


def test_a_leader_that_begins_keeps_what_stood_for_one_more_lifetime() -> None:
    # Nobody led for 100 s, since etcd was away, and who led then knew nothing but what was written.
    words, costs = {("a", "b"): [100.0]}, cost_writes(audit.read([priced(0, ab=1)]))[0].costs
    late, later = audit.CostSnapshot(220.0, costs), audit.CostSnapshot(275.0, costs)
    handed = [audit.Handover(110.0, 210.0)]
    assert len(audit.unsupported_costs([late], words, 60.0)) == 1
    assert audit.unsupported_costs([late], words, 60.0, handed) == []
    # Nor does one leader after the other keep it for ever.
    for more in (handed, [*handed, audit.Handover(220.0, 230.0)]):
        assert len(audit.unsupported_costs([later], words, 60.0, more)) == 1


def test_a_leadership_that_its_own_holder_takes_up_again_is_another_one() -> None:
    renewals = [lease(pod, second, second) for pod, second in (("a", 10), ("a", 12), ("a", 40), ("b", 41))]
    found = audit.handovers(audit.read(renewals), LEASE)
    assert [round(handover.begun - handover.ended) for handover in found] == [28, 1]


def test_leaks_are_told_and_growth_that_is_none_is_not() -> None:
    before = {"a": Usage(100 << 20, 20, 1), "b": Usage(100 << 20, 20, 1), "c": Usage(1, 1, 1), "etcd": Usage(1, 1, 1)}
    # etcd keeps its history until it is compacted.
    after = {"a": Usage(120 << 20, 25, 2), "b": Usage(300 << 20, 90, 9), "etcd": Usage(300 << 20, 1, 1)}
    told = [text.split(":")[0] for text in leaks(before, after)]
    assert told == ["memory", "descriptors", "processes", "not running"]


def test_a_seed_repeats_its_faults_and_another_gives_others() -> None:
    one = draw(7, 600, WORLD)
    assert one == draw(7, 600, WORLD) != draw(8, 600, WORLD)
    assert {fault.kind for fault in draw(7, 6000, WORLD)} == set(WEIGHTS)
    assert all(a.at_s < b.at_s < 600 for a, b in itertools.pairwise(one))
