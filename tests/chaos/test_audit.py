"""Faults of a seed repeat, and the readers of the audit log find what is wrong and nothing else."""

from __future__ import annotations

import itertools
import json
from typing import Any

from netperf.results import failure_key, sample_key
from netperf.sample import Place
from tests.chaos import audit
from tests.chaos.faults import KINDS, World, draw
from tests.chaos.usage import Usage, leaks

WORLD = World(("controller", "extender", "agent-n1"), ("n1", "n2"), ("z1", "z2", "z3"), ("n1", "n2"))
ACCOUNT = "system:serviceaccount:netaware-system:"
LEASE = "netaware-controller"
NOON = "2026-01-01T12:00:00.000000Z"


def event(account: str, resource: str, name: str, revision: int, **fields: Any) -> bytes:
    """One line of an audit log."""
    claim = audit.NODE_CLAIM if account.endswith("agent") else audit.POD_CLAIM
    body = {
        "stage": "ResponseComplete",
        "verb": fields.get("verb", "patch"),
        "user": {"username": ACCOUNT + account, "extra": {claim: [fields.get("by", "")]}},
        "objectRef": {"resource": resource, "namespace": "netaware-system", "name": name},
        "responseStatus": {"code": fields.get("code", 200)},
        "requestReceivedTimestamp": fields.get("begun", ""),
        "stageTimestamp": fields.get("at", NOON),
        "requestObject": fields.get("asked"),
        "responseObject": {"metadata": {"resourceVersion": str(revision)}, "spec": fields.get("spec")},
    }
    return json.dumps(body).encode()


def lease(pod: str, revision: int, *, holder: str | None = None, renewed: str = NOON, second: int = 0) -> bytes:
    """A write of the Lease, that many seconds after noon."""
    spec = {"holderIdentity": pod if holder is None else holder, "acquireTime": NOON, "renewTime": renewed}
    at = NOON.replace(":00.", f":{second:02}.")
    return event("netaware-controller", "leases", LEASE, revision, by=pod, spec=spec, at=at)


def written(pod: str, revision: int, **fields: Any) -> bytes:
    """A write of something that is fenced."""
    return event("netaware-controller", "networktopologies", "nt-default", revision, by=pod, **fields)


def value(origin: str, destination: str) -> str:
    """A sample, as far as the checker reads it."""
    ends = {"origin": {"node": origin, "zone": f"z-{origin}"}, "destination": {"node": destination, "zone": "z-b"}}
    return json.dumps(ends)


def test_a_seed_repeats_its_faults_and_another_gives_others() -> None:
    one = draw(7, 600, WORLD)
    assert one == draw(7, 600, WORLD)
    assert one != draw(8, 600, WORLD)
    assert {fault.kind for fault in draw(7, 6000, WORLD)} == set(KINDS)
    assert all(a.at_s < b.at_s < 600 for a, b in itertools.pairwise(one))
    assert {fault.kind for fault in draw(7, 600, WORLD, ("cut", "kill"))} == {"cut", "kill"}


def test_only_the_holder_of_the_lease_may_write() -> None:
    log = [lease("a", 10), written("a", 11), lease("b", 20), written("b", 21), written("a", 22)]
    assert audit.foreign_writes(audit.read(log[:-1]), LEASE) == []
    (found,) = audit.foreign_writes(audit.read(log), LEASE)
    assert "a wrote networktopologies" in found
    assert "revision 22, held by b" in found


def test_writes_are_ordered_by_revision_and_not_by_line() -> None:
    late = [written("a", 11), lease("b", 20), lease("a", 10)]
    assert audit.foreign_writes(audit.read(late), LEASE) == []


def test_nobody_writes_after_the_lease_was_given_up() -> None:
    log = [lease("a", 10), lease("a", 12, holder=""), written("a", 13), lease("b", 20)]
    (found,) = audit.foreign_writes(audit.read(log), LEASE)
    assert "held by nobody" in found


def test_a_lost_line_of_the_log_is_no_violation() -> None:
    # b's taking of the Lease was not kept, its renewal was.
    log = [lease("a", 10), written("b", 15), lease("b", 20, renewed="2026-01-01T12:00:02.000000Z")]
    assert audit.foreign_writes(audit.read([*log, b'{"stage": "Respon']), LEASE) == []


def test_a_refused_write_and_one_that_changed_nothing_are_no_writes() -> None:
    later = NOON.replace(":00.", ":09.")
    log = [lease("a", 10), written("a", 11), lease("b", 20), written("a", 11, at=later), written("a", 22, code=409)]
    assert audit.foreign_writes(audit.read(log), LEASE) == []


def test_a_patch_that_changes_nothing_of_what_an_agent_wrote_under_another_leader_is_no_write() -> None:
    # As a new leader removes results whose agent has removed them a moment before.
    agents = event("netaware-agent", "configmaps", "netperf-metrics", 15, by="n1", at=NOON.replace(":00.", ":05."))

    def swept(revision: int) -> bytes:
        late = NOON.replace(":00.", ":21.")
        return event("netaware-controller", "configmaps", "netperf-metrics", revision, by="b", at=late)

    log = [lease("a", 10), agents, lease("b", 20, second=20)]
    assert audit.foreign_writes(audit.read([*log, swept(15)]), LEASE) == []
    assert audit.foreign_writes(audit.read([*log, lease("c", 30, second=20), swept(31)]), LEASE) != []


def test_a_write_of_a_deposed_leader_whose_answer_took_long_is_one_though_others_went_further_meanwhile() -> None:
    def at(second: int) -> str:
        return NOON.replace(":00.", f":{second:02}.")

    taken = [lease("a", 10), lease("b", 20, second=10)]
    slow = written("a", 22, begun=at(11), at=at(15))
    meanwhile = written("b", 25, begun=at(12), at=at(13))
    (found,) = audit.foreign_writes(audit.read([*taken, slow, meanwhile]), LEASE)
    assert "a wrote networktopologies" in found


def test_a_line_that_ended_late_with_an_early_revision_does_not_hide_how_far_all_was() -> None:
    def at(second: int) -> str:
        return NOON.replace(":00.", f":{second:02}.")

    log = [lease("a", 10), written("a", 15, at=at(2)), lease("b", 20, second=4), written("a", 12, at=at(5))]
    unchanged = written("b", 15, begun=at(21), at=at(21))
    assert audit.foreign_writes(audit.read([*log, unchanged]), LEASE) == []


def test_an_agent_may_write_and_remove_its_own_keys_alone() -> None:
    key = sample_key(Place("n1", "z-n1"), Place("n2", "z-b"), "TCP_RR")
    failed = failure_key(Place("n1", "z-n1"), Place("n2", "z-b"), "TCP_RR")

    def results(by: str, data: dict[str, str | None]) -> bytes:
        return event("netaware-agent", "configmaps", "netperf-metrics", 5, by=by, asked={"data": data})

    own = [results("n1", {key: value("n1", "n2"), failed: None}), results("n1", {key: None})]
    assert audit.foreign_keys(audit.read(own)) == []
    foreign = audit.read([*own, results("n2", {key: value("n1", "n2")}), results("n2", {key: None})])
    assert len(audit.foreign_keys(foreign)) == 2


def test_an_agent_may_write_its_own_node_alone() -> None:
    log = [event("netaware-agent", "nodes", name, 5, by="n1") for name in ("n1", "n2")]
    assert audit.foreign_keys(audit.read(log)) == ["foreign node: the agent of n1 wrote node n2"]


def test_a_cost_needs_a_measurement_within_its_lifetime_or_a_way_over_others() -> None:
    words = {("a", "b"): [100.0], ("b", "c"): [100.0], ("c", "d"): [140.0]}
    costs = {("a", "b"): 1, ("c", "a"): 2, ("d", "a"): 3}
    assert audit.unsupported_costs([audit.CostSnapshot(150.0, costs)], words, 60.0) == []
    late = audit.unsupported_costs([audit.CostSnapshot(170.0, costs), audit.CostSnapshot(171.0, costs)], words, 60.0)
    assert late == [
        "unsupported cost: a to b, last measured 70 s ago",
        "unsupported cost: a to c, last measured never",
        "unsupported cost: a to d, last measured never",
    ]


def test_a_leader_that_begins_keeps_what_stood_for_one_more_lifetime() -> None:
    # Nobody led for 72 s, since etcd was away, and who led then knew nothing but what was written.
    words, costs = {("a", "b"): [100.0]}, {("a", "b"): 1}
    late, later = audit.CostSnapshot(220.0, costs), audit.CostSnapshot(275.0, costs)
    assert len(audit.unsupported_costs([late], words, 60.0)) == 1
    assert audit.unsupported_costs([late], words, 60.0, [audit.Handover(110.0, 210.0)]) == []
    assert len(audit.unsupported_costs([later], words, 60.0, [audit.Handover(110.0, 210.0)])) == 1
    # Nor does one leader after the other keep it for ever.
    assert (
        len(audit.unsupported_costs([later], words, 60.0, [audit.Handover(110.0, 210.0), audit.Handover(220.0, 230.0)]))
        == 1
    )


def test_a_leadership_that_its_own_holder_takes_up_again_is_another_one() -> None:
    renewals = [lease(pod, at, second=at) for pod, at in (("a", 10), ("a", 12), ("a", 40), ("b", 41))]
    found = audit.handovers(audit.read(renewals), LEASE)
    assert [round(handover.begun - handover.ended) for handover in found] == [28, 1]


def test_leaks_are_told_and_growth_that_is_none_is_not() -> None:
    before = {"a": Usage(100 << 20, 20, 1), "b": Usage(100 << 20, 20, 1), "c": Usage(1, 1, 1)}
    after = {"a": Usage(120 << 20, 25, 2), "b": Usage(300 << 20, 90, 9)}
    assert [text.split(":")[0] for text in leaks(before, after)] == [
        "memory",
        "descriptors",
        "processes",
        "not running",
    ]
    # etcd keeps its history until it is compacted.
    assert leaks({"etcd": Usage(50 << 20, 20, 1)}, {"etcd": Usage(300 << 20, 20, 1)}) == []
