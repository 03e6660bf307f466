"""The checkers of an audit log find what is wrong with costs and with pods, and nothing else."""

from __future__ import annotations

import json
from typing import Any

from tests.chaos import audit
from tests.chaos.checker import check

OURS = "system:serviceaccount:netaware-system:"
POD_GATE = [{"name": "netaware.io/plan"}]


def at(second: float) -> str:
    return f"2026-01-01T12:{int(second) // 60:02}:{second % 60:09.6f}Z"


def line(second: float, verb: str, resource: str, name: str, **fields: Any) -> bytes:
    """One event of an audit log, that many seconds after noon."""
    resource, _, sub = resource.partition("/")
    body = {
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": fields.get("user", "somebody"), "extra": {audit.NODE_CLAIM: ["n1"]}},
        "objectRef": {"resource": resource, "subresource": sub, "namespace": "shop", "name": name},
        "responseStatus": {"code": fields.get("code", 200)},
        "requestReceivedTimestamp": at(fields.get("asked_at", second)),
        "stageTimestamp": at(second),
        "requestObject": fields.get("asked"),
        "responseObject": fields.get("answer"),
    }
    return json.dumps(body).encode()


def pod(uid: str, *, gated: bool) -> dict[str, Any]:
    """A pod as an answer shows it."""
    spec: dict[str, Any] = {"containers": []} | ({"schedulingGates": POD_GATE} if gated else {})
    return {"metadata": {"name": f"pod-{uid}", "uid": uid, "namespace": "shop"}, "spec": spec}


def created(second: float, uid: str, *, gated: bool = True) -> bytes:
    # With generateName the reference has no name.
    return line(second, "create", "pods", "", answer=pod(uid, gated=gated))


def released(second: float, uid: str, asked_at: float | None = None) -> bytes:
    asked_at = second if asked_at is None else asked_at
    return line(second, "patch", "pods", f"pod-{uid}", answer=pod(uid, gated=False), asked_at=asked_at)


def bound(second: float, uid: str, node: str = "n1", code: int = 201) -> bytes:
    asked = {"target": {"kind": "Node", "name": node}}
    return line(second, "create", "pods/binding", f"pod-{uid}", asked=asked, code=code)


def measured(second: float, one: str, other: str) -> bytes:
    sample = json.dumps({"origin": {"node": "n1", "zone": one}, "destination": {"node": "n2", "zone": other}})
    asked = {"data": {f"netaware.v1.{one}.{other}": sample}}
    return line(second, "patch", "configmaps", "netperf-metrics", user=OURS + "netaware-agent", asked=asked)


def priced(second: float, **costs: int) -> bytes:
    """A write of the topology; ``a_b=3`` is the cost from a to b."""
    rows = [
        {"origin": pair.split("_")[0], "costList": [{"destination": pair.split("_")[1], "networkCost": cost}]}
        for pair, cost in costs.items()
    ]
    lists = [{"topologyKey": "topology.kubernetes.io/zone", "originList": rows}]
    answer = {"metadata": {"name": "nt"}, "spec": {"weights": [{"name": "NetperfCosts", "topologyList": lists}]}}
    return line(second, "patch", "networktopologies", "nt", user=OURS + "netaware-controller", answer=answer)


def found(*lines: bytes, away: tuple[tuple[float, float], ...] = ()) -> list[str]:
    """Violations of a log."""
    return check(audit.read(lines), lifetime_s=60.0, gate_s=30.0, away=away).violations


def test_a_pods_way_is_followed_from_creation_to_its_node() -> None:
    log = [created(0, "a"), released(4, "a"), bound(5, "a"), created(1, "b", gated=False), bound(3, "b")]
    history = check(audit.read(log), lifetime_s=60.0, gate_s=30.0)
    assert (history.pods, history.released, history.bound, history.violations) == (2, 1, 2, [])
    assert (history.gated_s.max, history.binding_s.max) == (4.0, 2.0)


def test_two_nodes_for_one_pod_are_told_but_not_a_refused_second() -> None:
    log = [created(0, "a", gated=False), bound(1, "a", "n1"), bound(2, "a", "n2", code=409), bound(3, "a", "n1")]
    assert found(*log) == []
    assert found(*log, bound(4, "a", "n3")) == ["bound twice: pod shop/pod-a to n1 and n3"]


def test_a_node_before_the_gate_is_open_is_told() -> None:
    assert found(created(0, "a"), bound(3, "a"), released(5, "a")) == [
        "bound while gated: pod shop/pod-a, 2.0 s too early"
    ]


def test_a_node_between_the_openings_request_and_its_answer_is_in_order() -> None:
    assert found(created(0, "a"), bound(4.9, "a"), released(5, "a", asked_at=4.8)) == []
    assert found(created(0, "a"), bound(4.7, "a"), released(5, "a", asked_at=4.8)) == [
        "bound while gated: pod shop/pod-a, 0.1 s too early"
    ]


def test_a_gate_that_stays_shut_is_told_even_of_a_pod_that_nothing_more_is_said_of() -> None:
    quiet = line(50, "create", "events", "e")
    assert found(created(0, "a"), quiet) == ["gated: pod shop/pod-a for 50 s, 0 s of it with nobody to open it"]
    assert found(created(30, "a"), quiet) == []
    assert found(created(0, "a"), line(20, "delete", "pods", "pod-a"), quiet) == []


def test_a_gated_pod_that_goes_with_its_namespace_is_not_gated_any_more() -> None:
    # A namespace's controller deletes all pods in one request, and those without a node are gone by it.
    all_of_it = line(20, "deletecollection", "pods", "", answer={"kind": "PodList", "items": [pod("a", gated=True)]})
    quiet = line(50, "create", "events", "e")
    assert found(created(0, "a"), all_of_it, quiet) == []
    assert len(found(created(0, "a"), created(0, "b"), all_of_it, quiet)) == 1


def test_time_without_anybody_who_could_open_a_gate_does_not_count() -> None:
    log = [created(0, "a"), released(50, "a")]
    noon = audit.read([created(0, "a")])[0].when
    assert len(found(*log)) == 1
    assert found(*log, away=((noon + 10, noon + 31),)) == []
    assert len(found(*log, away=((noon - 100, noon + 5),))) == 1


def test_a_lost_line_of_a_release_is_no_violation() -> None:
    assert found(created(0, "a"), bound(5, "a"), line(100, "create", "events", "e")) == []


def test_a_cost_is_written_only_within_a_measurements_lifetime() -> None:
    assert found(measured(0, "a", "b"), priced(59, a_b=3, b_a=3)) == []
    assert found(measured(0, "a", "b"), priced(70, a_b=3)) == ["unsupported cost: a to b, last measured 70 s ago"]
    assert found(priced(5, a_b=3), measured(6, "a", "b")) == ["unsupported cost: a to b, last measured never"]
