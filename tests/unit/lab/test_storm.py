"""A storm repeats itself, and its judge finds what is wrong and nothing else."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kubekit.errors import ConfigError
from lab.__main__ import build_parser
from lab.cluster import Lab
from lab.scale.readings import percentile
from lab.storm import audit
from lab.storm.faults import KINDS, World, draw
from lab.storm.levels import Highest, Level, read_tasks, risen
from netperf.results import failure_key, sample_key
from netperf.sample import Place

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
    """A sample, as far as the judge reads it."""
    ends = {"origin": {"node": origin, "zone": f"z-{origin}"}, "destination": {"node": destination, "zone": "z-b"}}
    return json.dumps(ends)


def test_a_seed_repeats_a_storm_and_another_is_another() -> None:
    one = draw(7, 600, WORLD)
    assert one == draw(7, 600, WORLD)
    assert one != draw(8, 600, WORLD)
    assert {fault.kind for fault in draw(7, 6000, WORLD)} == set(KINDS)
    assert all(a.at_s < b.at_s < 600 for a, b in itertools.pairwise(one))


def test_a_shorter_storm_is_the_beginning_of_a_longer_one() -> None:
    short = draw(7, 60, WORLD)
    assert short == draw(7, 600, WORLD)[: len(short)]


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
    assert audit.unsupported_costs([audit.Seen(150.0, costs)], words, 60.0) == []
    late = audit.unsupported_costs([audit.Seen(170.0, costs), audit.Seen(171.0, costs)], words, 60.0)
    assert late == [
        "unsupported cost: a to b, last measured 70 s ago",
        "unsupported cost: a to c, last measured never",
        "unsupported cost: a to d, last measured never",
    ]


def test_a_leader_that_begins_keeps_what_stood_for_one_more_lifetime() -> None:
    # Seed 2 of the storm: nobody led for 72 s, since etcd was away, and who led then knew nothing but what was written.
    words, costs = {("a", "b"): [100.0]}, {("a", "b"): 1}
    late, later = audit.Seen(220.0, costs), audit.Seen(275.0, costs)
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


def test_words_on_two_zones_are_read_from_the_log() -> None:
    key = sample_key(Place("n1", "z-n1"), Place("n2", "z-b"), "TCP_RR")
    log = [event("netaware-agent", "configmaps", "m", 5, by="n1", asked={"data": {key: value("n1", "n2")}})]
    ((pair, times),) = audit.measured(audit.read(log)).items()
    assert pair == ("z-b", "z-n1")
    assert len(times) == 1


def test_kinds_can_be_chosen_and_the_command_tells_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert {fault.kind for fault in draw(7, 600, WORLD, ("clock", "api-status"))} == {"clock", "api-status"}
    with pytest.raises(SystemExit):
        build_parser().parse_args(["storm", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert all(f"{name} (" in told.replace("- ", "-") for name in KINDS)


def test_levels_that_rise_are_told_and_room_is_left() -> None:
    before = {"a": Level(100 << 20, 20, 1, 30), "b": Level(100 << 20, 20, 1, 30), "c": Level(1, 1, 1)}
    after = {"a": Level(120 << 20, 25, 2, 40), "b": Level(300 << 20, 90, 9, 90)}
    words = [text.split(":")[0] for text in risen(before, after)]
    assert words == ["memory", "descriptors", "processes", "tasks", "not running"]


def test_a_program_that_no_longer_says_its_tasks_is_told() -> None:
    before, after = {"a": Level(1, 1, 1, 30)}, {"a": Level(1, 1, 1)}
    assert risen(before, after) == ["tasks: a from 30 to no answer"]


def test_what_a_program_gathered_between_two_kills_is_told_whoever_led_before() -> None:
    before = {
        "controller": Level(120 << 20, 30, 2, 41),
        "controller-2": Level(70 << 20, 23, 1, 25),
        "agent-n1": Level(55 << 20, 22, 2, 30),
        "etcd": Level(60 << 20, 80, 1),
    }
    highest = Highest(cast("Lab", None), {name: "" for name in before if name != "etcd"})
    highest.take({name: level for name, level in before.items() if name != "controller-2"})
    highest.take(
        {"controller-2": Level(121 << 20, 33, 2, 73), "agent-n1": Level(56 << 20, 22, 2), "etcd": Level(1, 999, 9)}
    )
    assert highest.violations(before) == [], "it leads now, and the agent was not asked in time"
    highest.take({"controller-2": Level(70 << 20, 23, 1, 108), "agent-n1": Level(55 << 20, 70, 2, 31)})
    assert highest.violations(before) == [
        "at its highest, descriptors: agent-n1 from 44 to 70",
        "at its highest, tasks: controller-2 from 82 to 108",
    ]


async def test_who_answers_with_an_error_says_no_tasks_and_one_who_is_late_is_asked_again() -> None:
    answers = iter(
        [web.Response(status=500, text="500 Internal Server Error"), web.Response(text="netaware_loop_tasks 7\n")]
    )

    async def serve(_: web.Request) -> web.Response:
        return next(answers)

    app = web.Application()
    app.router.add_get("/metrics", serve)
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        assert await read_tasks({"agent-n1": url, "gone": "http://127.0.0.1:9"}) == {}
        assert await read_tasks({"agent-n1": url}, attempts=2) == {"agent-n1": 7}


def test_what_etcd_keeps_until_it_is_compacted_is_no_leak_of_ours() -> None:
    before, after = Level(50 << 20, 20, 1), Level(300 << 20, 90, 1)
    assert [text.split(":")[0] for text in risen({"etcd": before}, {"etcd": after})] == ["descriptors"]


def test_percentiles_of_few_values() -> None:
    assert percentile([], 0.99) == 0.0
    assert [percentile([1.0, 2.0, 3.0], share) for share in (0.5, 0.99, 1.0)] == [2.0, 3.0, 3.0]


def test_a_folder_without_a_controller_is_no_second_version(tmp_path: Path) -> None:
    args = build_parser().parse_args(["storm", "--second-version", str(tmp_path)])
    with pytest.raises(ConfigError, match=r"--second-version.*has no controller"):
        args.run(args)
