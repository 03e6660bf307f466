"""Agents and controllers of 0.1.0 and of today side by side: what one stores the other reads.

``version_0_1_0/stored.json`` was written by the encoders of commit d04764e; ``readers.zip`` holds its decoders, run as they were.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.cluster.zones import facts_of
from controller.topology.planner import oldest_forms, plan_changes
from kubekit.wire import ConfigMap, Node, ObjectMeta
from netperf.contract import AGENT_ANNOTATION, PLAN_FORM, ZONE_LABEL, Announcement, read_announcement
from netperf.errors import PlanRefusedError
from netperf.pairs import PlanOptions, ProbeNode, plan_pairs
from netperf.plans import COMPACT_KEY, PLAN_KEY, ZonePlan, decode_plan, encode_plan, form_of, plan_object_name
from netperf.results import decode_results, encode_failure, encode_samples
from netperf.sample import Failure, Measurement, Place, Sample

VERSION_0_1_0 = Path(__file__).parent / "version_0_1_0"
STORED: dict[str, Any] = json.loads((VERSION_0_1_0 / "stored.json").read_text())
PLACES = {
    f"node-{z}{i}": Place(f"node-{z}{i}", f"zone-{z}", "north" if z < "c" else "south") for z in "abcd" for i in (1, 2)
}
FACTS = [
    ProbeNode(name=place.node, address=f"10.{n // 2}.0.{n % 2 + 1}", zone=place.zone, region=place.region)
    for n, place in enumerate(PLACES.values())
]
NOW_S = 1_763_700_120.0

READ = """
import json, sys
from netperf.errors import PlanRefusedError
from netperf.plans import decode_plan
from netperf.results import decode_results
from netperf.sample import Place
asked, found = json.load(sys.stdin), {}
for name, data in asked["plans"].items():
    try:
        decoded = decode_plan(data)
        found[name] = [[p.origin.node, p.destination.node, p.slot, p.rank] for p in decoded.plan.probes]
    except PlanRefusedError as error:
        found[name] = error.reason
results = decode_results(asked["results"], {node: Place(*place) for node, place in asked["places"].items()})
medians = {key: sample.measurement.p50_us for key, sample in results.samples.items()}
print(json.dumps({"plans": found, "medians": medians, "refused": results.refused}))
"""


def read_by_0_1_0(plans: Mapping[str, Mapping[str, str]], results: Mapping[str, str | None]) -> dict[str, Any]:
    asked = {
        "plans": plans,
        "results": results,
        "places": {node: msgspec.structs.astuple(place) for node, place in PLACES.items()},
    }
    folders = [str(VERSION_0_1_0 / "readers.zip"), str(Path(msgspec.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-P", "-c", READ],
        env={"PYTHONPATH": ":".join(folders)},
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def plans_of_today(previous: Mapping[str, ZonePlan] | None = None) -> dict[str, ZonePlan]:
    return dict(plan_pairs(FACTS, PlanOptions(), previous, NOW_S).zones)


def test_the_old_readers_read_what_the_old_encoders_wrote() -> None:
    read = read_by_0_1_0(STORED["plans"], STORED["results"])
    assert all(isinstance(probes, list) for probes in read["plans"].values())
    assert len(read["medians"]) == 7
    assert read["refused"] == {}


def test_todays_agent_follows_an_old_controllers_plan() -> None:
    read = read_by_0_1_0(STORED["plans"], {})["plans"]
    for name, data in STORED["plans"].items():
        decoded = decode_plan(data)
        assert not decoded.refusals
        assert plan_object_name(decoded.plan.zone) == name
        assert [[p.origin.node, p.destination.node, p.slot, p.rank] for p in decoded.plan.probes] == read[name]


def test_todays_controller_reads_old_results_and_an_old_announcement() -> None:
    decoded = decode_results(STORED["results"], PLACES)
    assert decoded.refused == {}
    assert {k: s.measurement.p50_us for k, s in decoded.samples.items()} == read_by_0_1_0({}, STORED["results"])[
        "medians"
    ]
    assert read_announcement(STORED["announcement"]) == Announcement("10.0.0.1", 12865, "0.1.0", "netperf", 1)


def test_an_old_agent_follows_todays_plan_where_it_announced_itself() -> None:
    plans = plans_of_today()
    assert {p.rank for plan in plans.values() for p in plan.probes} > {0, 1}
    plain = {plan_object_name(zone): encode_plan(plan) for zone, plan in plans.items()}
    assert set(read_by_0_1_0(plain, {})["plans"].values()) == {"bad-field"}, "why form 1 is written for them"
    both = {plan_object_name(zone): encode_plan(plan, form=1) for zone, plan in plans.items()}
    read = read_by_0_1_0(both, {})["plans"]
    for zone, plan in plans.items():
        name = plan_object_name(zone)
        assert read[name] == [[p.origin.node, p.destination.node, p.slot, p.rank] for p in plan.probes if p.rank < 2]
        assert decode_plan(both[name]).plan == plan, "today's agents of the zone miss nothing"


def test_a_broken_plan_of_either_form_is_refused() -> None:
    data = STORED["plans"][plan_object_name("zone-a")]
    plan = json.loads(data[PLAN_KEY])
    plan["probes"][0]["slot"] = "first"
    with pytest.raises(PlanRefusedError, match="bad-field"):
        decode_plan({PLAN_KEY: json.dumps(plan)})
    both = encode_plan(plans_of_today()["zone-a"], form=1)
    with pytest.raises(PlanRefusedError, match="half-written"):
        decode_plan({**both, COMPACT_KEY: both[COMPACT_KEY][:-9]})


def test_an_old_controller_prices_what_todays_agents_measure() -> None:
    """What it does not know, such as failures and what datagrams read, it refuses key by key."""
    origin, destination = PLACES["node-a1"], PLACES["node-b1"]
    run = Measurement(prober="netperf", test="TCP_RR", p50_us=1000.0, p90_us=1100.0, transactions=900)
    paced = Measurement(prober="datagrams", test="UDP_RR", p50_us=990.0, p90_us=1050.0, transactions=60, held_us=3.0)
    sample = Sample(
        origin=origin,
        destination=destination,
        measurement=run,
        sequence=4,
        taken_at=NOW_S,
        datagrams=paced,
        prices="datagrams",
    )
    failure = Failure(origin=destination, destination=origin, failure="refused", taken_at=NOW_S)
    read = read_by_0_1_0({}, {**encode_samples([sample]), **encode_failure(failure, "TCP_RR")})
    assert list(read["medians"].values()) == [1000.0]
    assert read["refused"] == {"bad-field": 1}


def node(name: str, announcement: str) -> Node:
    place = PLACES[name]
    return Node(
        metadata=ObjectMeta(name=name, labels={ZONE_LABEL: place.zone}, annotations={AGENT_ANNOTATION: announcement})
    )


def test_form_1_is_written_to_zones_with_an_old_agent_until_it_is_replaced() -> None:
    today = msgspec.json.encode(Announcement("10.0.0.1", 12865, "0.1.0", "netperf", PLAN_FORM)).decode()
    nodes = [node("node-a1", today), node("node-a2", STORED["announcement"]), node("node-b1", today)]
    forms = oldest_forms(facts_of(one, {}) for one in nodes)
    assert forms == {"zone-a": 1, "zone-b": PLAN_FORM}
    plan = plan_pairs(FACTS, PlanOptions(), None, NOW_S)
    objects = stored({zone: encode_plan(found) for zone, found in plan.zones.items()})
    changes = plan_changes(plan, plan.zones, objects, forms)
    assert list(changes.write) == [plan_object_name("zone-a")]
    objects |= stored({"zone-a": encode_plan(plan.zones["zone-a"], form=1)})
    assert form_of(objects[plan_object_name("zone-a")].data) == 1
    assert plan_changes(plan, plan.zones, objects, forms).write == {}
    spoilt = objects | stored({"zone-a": {**encode_plan(plan.zones["zone-a"], form=1), PLAN_KEY: "{"}})
    assert list(plan_changes(plan, plan.zones, spoilt, forms).write) == [plan_object_name("zone-a")]
    assert list(plan_changes(plan, plan.zones, objects, {"zone-a": PLAN_FORM}).write) == [plan_object_name("zone-a")]


def stored(data: Mapping[str, dict[str, str]]) -> dict[str, ConfigMap]:
    return {
        plan_object_name(zone): ConfigMap(metadata=ObjectMeta(name=plan_object_name(zone)), data=found)
        for zone, found in data.items()
    }


def test_plans_go_on_over_an_upgrade_and_a_downgrade_of_the_controller() -> None:
    before = {plan.zone: plan for plan in (decode_plan(data).plan for data in STORED["plans"].values())}
    after = plans_of_today(before)
    assert zone_pairs(before.values()) == zone_pairs(after.values())
    for zone, plan in after.items():
        assert plan.epoch > before[zone].epoch
        # The old controller cannot read this and begins anew, with an epoch by the clock: agents must take it.
        again = msgspec.structs.replace(before[zone], epoch=int(NOW_S) + 60)
        text = msgspec.json.encode(again).decode()
        assert decode_plan({PLAN_KEY: text}, zone=zone, in_force=plan).plan == again


def zone_pairs(plans: Iterable[ZonePlan]) -> set[frozenset[str]]:
    return {frozenset((p.origin.zone, p.destination.zone)) for plan in plans for p in plan.probes if p.rank == 0}
