"""Decoding of rtnetlink, on messages recorded from a kernel, and on rubbish."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.bandwidth import tbf
from agent.bandwidth.state import ROOT, Device, Filter, Qdisc
from agent.bandwidth.traffic_control import parse_device, parse_filter, parse_qdisc
from agent.capacity.kernel import parse_routes
from agent.capacity.links import Route
from agent.rtnetlink import attributes, read_text, read_u32

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "recordings" / "rtnetlink.messages").read_text())
VETH, IFB, BRIDGE = RECORDED["veth"], RECORDED["ifb"], RECORDED["br"]
HEADER = 16


def messages(kind: str) -> list[bytes]:
    return [bytes.fromhex(text) for text in RECORDED[kind]]


def test_devices_with_their_kind_alias_and_the_namespace_at_their_other_end() -> None:
    devices = {device.index: device for device in (parse_device(m, HEADER, len(m)) for m in messages("links"))}
    assert devices[VETH] == Device(index=VETH, name="nav0", kind="veth", namespace_id=0, peer=devices[VETH].peer)
    assert devices[VETH].peer is not None
    assert devices[IFB] == Device(index=IFB, name="bwp0123456789ab", kind="ifb", alias="netaware:u1")


def test_token_buckets_with_their_exact_shape_up_to_rates_of_64_bits() -> None:
    qdiscs = [parse_qdisc(m, HEADER, len(m)) for m in messages("qdiscs")]
    by_place = {(q.device, q.kind): q for q in qdiscs}
    limit = tbf.plugin_shape(10_000_000, 536_870_911)
    assert by_place[VETH, "tbf"] == Qdisc(device=VETH, kind="tbf", handle=0x10000, parent=ROOT, shape=limit)
    assert by_place[IFB, "tbf"].shape == tbf.bounded_shape(100 * 10**9, 1500)
    assert by_place[VETH, "ingress"].parent == 0xFFFFFFF1


def test_of_the_filters_only_the_one_that_matches_and_redirects_is_left() -> None:
    found = [one for m in messages("filters") if (one := parse_filter(m, HEADER, len(m))) is not None]
    assert found == [Filter(device=VETH, kind="u32", priority=1, matches_all=True, redirects_to=IFB)]


def test_routes_of_the_main_table_with_every_next_hop() -> None:
    routes = [route for m in messages("routes") for route in parse_routes(m, HEADER, len(m)) or ()]
    assert Route(device=VETH, metric=100) in routes
    assert Route(device=BRIDGE, metric=100) in routes
    assert Route(device=VETH, metric=1024, family=6) in routes
    assert Route(device=BRIDGE, destination="192.168.5.0/24") in routes
    assert [route for route in routes if route.destination.startswith("10.77")] == []
    assert [route for route in routes if route.destination.startswith("127.")] == []


@given(st.binary(max_size=200))
def test_rubbish_is_read_without_an_end_or_an_error(data: bytes) -> None:
    spans = attributes(data, 0, len(data))
    for kind, (begin, end) in spans.items():
        assert 0 <= begin <= end
        read_text(data, spans, kind)
        assert read_u32(data[:end], spans, kind) is None or end - begin >= 4


@pytest.mark.parametrize("kind", ["links", "qdiscs", "filters"])
def test_a_message_that_is_cut_after_any_attribute_is_still_read(kind: str) -> None:
    parse = {"links": parse_device, "qdiscs": parse_qdisc, "filters": parse_filter}[kind]
    fixed = HEADER + (16 if kind == "links" else 20)
    for message in messages(kind):
        ends = [fixed]
        while ends[-1] + 4 <= len(message):
            length = struct.unpack_from("=H", message, ends[-1])[0]
            if length < 4:
                break
            ends.append(ends[-1] + ((length + 3) & ~3))
        for end in ends:
            cut = message[: min(end, len(message))]
            parse(cut, HEADER, len(cut))
