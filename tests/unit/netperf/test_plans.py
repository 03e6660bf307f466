"""Encoded plans and announcements are decoded unchanged, and invalid ones are refused."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from netperf.configmap_size import ConfigMapTooLargeError
from netperf.contract import MAX_ANNOTATION_BYTES, Announcement, decode_announcement, encode_announcement
from netperf.plans import PLAN_KEY, ZonePlan, decode_plan, encode_plan, plan_object_name
from netperf.refusals import PlanRefusedError
from tests.unit.netperf.builders import make_plan

PLANS = make_plan([1] * 6).plan_by_zone
PLAN = max(PLANS.values(), key=lambda p: len(p.probes))
ZONE_NAMES = st.text(alphabet="abcXYZ019-._", min_size=1, max_size=63)


def encode_with_probe(**probe_fields: object) -> dict[str, str]:
    probe = replace(PLAN.probes[0], **probe_fields)
    return encode_plan(replace(PLAN, probes=(probe, *PLAN.probes[1:])))


def make_destination(**fields: object) -> object:
    return replace(PLAN.probes[0].destination, **fields)


def test_an_encoded_plan_is_decoded_unchanged() -> None:
    for plan in PLANS.values():
        decoded = decode_plan(encode_plan(plan), zone=plan.zone, current=plan)
        assert decoded.plan == plan
        assert decoded.refusals == ()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "missing"),
        ({"other": "{}"}, "missing"),
        ({PLAN_KEY: "{"}, "bad-json"),
        ({PLAN_KEY: encode_plan(PLAN)[PLAN_KEY][:-7]}, "bad-json"),
        ({PLAN_KEY: "{}"}, "bad-field"),
        (encode_plan(replace(PLAN, interval_s=0.0)), "bad-field"),
        (encode_plan(replace(PLAN, slot_count=0)), "bad-field"),
        (encode_plan(replace(PLAN, zone="elsewhere")), "wrong-zone"),
        (encode_plan(replace(PLAN, epoch=PLAN.epoch - 1)), "past-epoch"),
    ],
)
def test_an_invalid_plan_is_refused_with_a_reason(data: dict[str, str] | None, reason: str) -> None:
    with pytest.raises(PlanRefusedError) as caught:
        decode_plan(data, zone=PLAN.zone, current=PLAN)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        *(
            ({"destination": make_destination(address=address)}, "bad-address")
            for address in ("db.example.com", "10.0.0.256", "0.0.0.0", "-Z", "127.0.0.1", "::ffff:127.0.0.1")
        ),
        ({"destination": make_destination(address=f"::ffff:{PLAN.probes[0].origin.address}")}, "self-probe"),
        ({"destination": make_destination(address=PLAN.probes[0].origin.address)}, "self-probe"),
        ({"destination": PLAN.probes[0].origin}, "self-probe"),
        ({"origin": make_destination()}, "wrong-zone"),
        ({"slot": 99}, "bad-slot"),
    ],
)
def test_an_invalid_probe_is_left_out_and_the_others_stay(fields: dict[str, object], reason: str) -> None:
    decoded = decode_plan(encode_with_probe(**fields))
    assert [r.reason for r in decoded.refusals] == [reason]
    assert decoded.refusals[0].key == "probes[0]"
    assert decoded.plan.probes == PLAN.probes[1:]


def test_a_refusal_names_the_probe_by_its_index_in_the_object() -> None:
    plan = msgspec.json.decode(encode_with_probe(slot=99)[PLAN_KEY])
    plan["probes"].insert(0, [0, 99, 0, 0, 0])  # a probe of origin 0 and destination 99
    decoded = decode_plan({PLAN_KEY: msgspec.json.encode(plan).decode()})
    assert [(r.key, r.reason) for r in decoded.refusals] == [("probes[0]", "unknown-node"), ("probes[1]", "bad-slot")]


def test_a_plan_is_measured_in_bytes_and_not_in_characters() -> None:
    probes = tuple(
        replace(PLAN.probes[0], destination=make_destination(node=f"n{i}", zone="ä" * 63, region="ö" * 63))
        for i in range(4000)
    )
    plan: ZonePlan = replace(PLAN, probes=probes)
    with pytest.raises(ConfigMapTooLargeError, match=re.escape(plan_object_name(PLAN.zone))):
        encode_plan(plan)


@given(ZONE_NAMES, ZONE_NAMES)
def test_zones_have_legal_and_distinct_object_names(zone: str, other_zone: str) -> None:
    name = plan_object_name(zone)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
    assert len(name) <= 63
    assert (plan_object_name(other_zone) == name) == (zone == other_zone)


def test_announcements_of_other_versions_are_decoded() -> None:
    assert decode_announcement('{"address":"10.0.0.1","port":12865,"later":1}') == Announcement("10.0.0.1", 12865)


def test_malformed_announcements_are_refused() -> None:
    too_large = encode_announcement(Announcement(address="x" * MAX_ANNOTATION_BYTES))
    for malformed in ("", "{", "[]", '{"port":"x"}', too_large):
        assert decode_announcement(malformed) is None, malformed


def test_the_problem_in_an_announcement_is_cut_to_the_annotations_limit() -> None:
    announcement = Announcement("10.0.0.1", 12865, "1.2.3", "netperf", "the probing passphrase has 5 bytes")
    assert decode_announcement(encode_announcement(announcement)) == announcement
    for long_problem in ("\n" * 500, "x" * 400, "ä" * 2000):
        decoded = decode_announcement(encode_announcement(replace(announcement, problem=long_problem)))
        assert decoded is not None
        assert decoded.problem
        assert long_problem.startswith(decoded.problem)
