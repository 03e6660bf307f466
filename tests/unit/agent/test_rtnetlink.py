"""Decoding of rtnetlink messages recorded from a kernel, and of noise; requests of pyroute2 to a stand-in for the kernel."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2 import AsyncIPRoute
from pyroute2.netlink import NLM_F_ACK_TLVS, NLM_F_DUMP_INTR, NLM_F_MULTI, NLMSG_DONE, NLMSG_ERROR
from pyroute2.netlink.rtnl import RTM_GETLINK, RTM_NEWLINK
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from agent import netlink as netlink_module
from agent import rtnetlink as rtnetlink_module
from agent.bandwidth.state import Device, SetIngressLimit
from agent.bandwidth.tc_reader import parse_device
from agent.bandwidth.tc_writer import execute
from agent.capacity.link_reader import parse_default_route, parse_link
from agent.capacity.links import Link, Route
from agent.capacity.sysfs import NetDirectory
from agent.netlink import KernelError
from agent.rtnetlink import (
    ROOT,
    Qdisc,
    TbfParams,
    dump,
    open_rtnetlink,
    parse_attributes,
    parse_qdisc,
    read_number,
    read_text,
)
from tests.support.plugin_bucket import compute_plugin_params

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "recordings" / "rtnetlink.messages").read_text())
VETH, IFB, BRIDGE = RECORDED["veth"], RECORDED["ifb"], RECORDED["br"]
HEADER = 16


def recorded(kind: str) -> list[bytes]:
    return [bytes.fromhex(text) for text in RECORDED[kind]]


def test_devices_are_parsed_with_kind_alias_and_the_namespace_of_their_peer() -> None:
    devices = {device.index: device for device in (parse_device(m, HEADER, len(m)) for m in recorded("links"))}
    assert devices[VETH] == Device(
        index=VETH, name="nav0", kind="veth", namespace_id=0, peer_index=devices[VETH].peer_index
    )
    assert devices[VETH].peer_index is not None
    assert devices[IFB] == Device(index=IFB, name="bwp0123456789ab", kind="ifb", alias="netaware:u1")


def test_token_buckets_are_parsed_exactly_up_to_rates_of_64_bits() -> None:
    qdiscs = [parse_qdisc(m, HEADER, len(m)) for m in recorded("qdiscs")]
    by_place = {(q.device_index, q.kind): q for q in qdiscs}
    limit = compute_plugin_params(10_000_000)
    assert by_place[VETH, "tbf"] == Qdisc(device_index=VETH, kind="tbf", handle=0x10000, parent=ROOT, params=limit)
    assert by_place[IFB, "tbf"].params == TbfParams(
        rate_bytes_per_s=12_500_000_000, buffer_ticks=156_250, limit_bytes=625_000_000
    )
    assert by_place[VETH, "ingress"].parent == 0xFFFFFFF1


def test_default_routes_of_the_main_table_are_parsed_with_every_next_hop() -> None:
    routes = [route for m in recorded("routes") for route in parse_default_route(m, HEADER, len(m)) or ()]
    assert Route(device_index=VETH, metric=100, is_multipath=True) in routes
    assert Route(device_index=BRIDGE, metric=100, is_multipath=True) in routes
    assert Route(device_index=VETH, metric=1024, family=6) in routes
    assert len(routes) == 3


Attribute = Sequence[object]


def encode_link(*attributes: Attribute, flags: int = 1) -> bytes:
    """A link's message as pyroute2 writes it, for kinds that not every kernel can make."""
    message = ifinfmsg()
    message["index"], message["flags"], message["attrs"] = 7, flags, [["IFLA_IFNAME", "x0"], *attributes]
    message.encode()
    return bytes(message.data)


def link_info(kind: str, *options: Attribute, port: str = "", port_options: tuple[Attribute, ...] = ()) -> Attribute:
    parts: list[Attribute] = [["IFLA_INFO_KIND", kind]] if kind else []
    parts += [["IFLA_INFO_DATA", {"attrs": list(options)}]] if options else []
    parts += [["IFLA_INFO_SLAVE_KIND", port], ["IFLA_INFO_SLAVE_DATA", {"attrs": list(port_options)}]] if port else []
    return ["IFLA_LINKINFO", {"attrs": parts}]


AGGREGATOR = ["IFLA_BOND_AD_INFO", {"attrs": [["IFLA_BOND_AD_INFO_AGGREGATOR", 3]]}]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ((link_info("bond", ["IFLA_BOND_MODE", 4], AGGREGATOR),), {"bond_mode": 4, "active_aggregator": 3}),
        (
            (link_info("bond", ["IFLA_BOND_MODE", 1], ["IFLA_BOND_ACTIVE_SLAVE", 9]),),
            {"bond_mode": 1, "active_slave_index": 9},
        ),
        (
            (link_info("", port="bond", port_options=(["IFLA_BOND_SLAVE_AD_AGGREGATOR_ID", 2],)), ["IFLA_MASTER", 4]),
            {"slave_aggregator": 2, "master_index": 4},
        ),
        ((link_info("vlan", ["IFLA_VLAN_ID", 5]), ["IFLA_LINK", 6]), {"parent_index": 6}),
        ((["IFLA_CARRIER", 0],), {"is_up": False}),
        ((["IFLA_LINK", 6], ["IFLA_LINK_NETNSID", 0]), {"parent_index": 6, "is_parent_elsewhere": True}),
    ],
)
def test_links_of_every_kind_are_parsed(
    attributes: tuple[Attribute, ...], expected: dict[str, object], tmp_path: Path
) -> None:
    message = encode_link(*attributes)
    found = parse_link(message, HEADER, len(message), NetDirectory(tmp_path))
    assert found == msgspec.structs.replace(Link(index=7, name="x0", kind=found.kind), **expected)


@given(st.binary(max_size=200))
def test_noise_is_read_without_an_error(data: bytes) -> None:
    spans = parse_attributes(data, 0, len(data))
    for kind, (begin, end) in spans.items():
        assert 0 <= begin <= end
        read_text(data, spans, kind)
        assert read_number(data, spans, kind) is None or end > begin


def encode_message(kind: int, payload: bytes, *, flags: int = 0, sequence: int = 1) -> bytes:
    return struct.pack("=IHHII", 16 + len(payload), kind, flags, sequence, 0) + payload + bytes(-len(payload) % 4)


INTERRUPTED = NLM_F_MULTI | NLM_F_DUMP_INTR
Answer = Callable[[bytes, int], list[bytes]]
"""Makes the datagrams that answer a request, from the request and its sequence number."""


@asynccontextmanager
async def simulated_kernel(monkeypatch: pytest.MonkeyPatch, *answers: Answer) -> AsyncIterator[None]:
    """A stand-in for the kernel, the other end of a pair of sockets: one answer for each request of pyroute2, in turn."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    loop = asyncio.get_running_loop()

    async def serve() -> None:
        for answer in answers:
            request = await loop.sock_recv(theirs, 1 << 16)
            for datagram in answer(request, struct.unpack_from("=I", request, 8)[0]):
                await loop.sock_sendall(theirs, datagram)

    monkeypatch.setattr(rtnetlink_module, "AsyncIPRoute", partial(AsyncIPRoute, use_socket=ours))
    with ours, theirs:
        ours.settimeout(0)
        theirs.settimeout(0)
        serving = asyncio.create_task(serve())
        yield
        serving.cancel()


def read_body(data: bytes, begin: int, end: int) -> bytes:
    return data[begin:end]


async def dump_links() -> list[bytes]:
    async with open_rtnetlink("cannot ask") as netlink:
        return await dump(netlink, ifinfmsg, RTM_GETLINK, read_body)


def answer_with(*texts: bytes, flags: int = NLM_F_MULTI, code: int = 0) -> Answer:
    """A dump of some messages in one datagram, and its end in another."""
    return lambda _, sequence: [
        b"".join(encode_message(RTM_NEWLINK, text, flags=flags, sequence=sequence) for text in texts),
        encode_message(NLMSG_DONE, struct.pack("=i", -code), flags=flags, sequence=sequence),
    ]


def answer_late(request: bytes, sequence: int) -> list[bytes]:
    """An answer to another request comes first."""
    other = encode_message(RTM_NEWLINK, b"late", flags=NLM_F_MULTI, sequence=sequence + 1)
    return [other, *answer_with(b"one!", b"two!")(request, sequence)]


@pytest.mark.parametrize(
    ("answers", "read"),
    [
        ([answer_late], [b"one!", b"two!"]),
        # At most three times.
        ([answer_with(b"half", flags=INTERRUPTED), answer_with(b"good")], [b"good"]),
        ([answer_with(b"%04d" % number, flags=INTERRUPTED) for number in range(1, 5)], [b"0003"]),
    ],
)
async def test_an_interrupted_dump_is_repeated(
    answers: list[Answer], read: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with simulated_kernel(monkeypatch, *answers):
        assert await dump_links() == read


async def test_a_dump_that_ends_with_an_error_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async with simulated_kernel(monkeypatch, answer_with(b"one!", code=errno.ENODEV)):
        with pytest.raises(KernelError, match="cannot ask: No such device"):
            await dump_links()


async def test_a_refusal_has_the_kernels_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: bytes, sequence: int) -> list[bytes]:
        words = b"Specified qdisc kind is unknown\0"
        body = struct.pack("=i", -errno.EINVAL) + request + struct.pack("=HH", 4 + len(words), 1) + words
        return [encode_message(NLMSG_ERROR, body, flags=NLM_F_ACK_TLVS, sequence=sequence)]

    async with simulated_kernel(monkeypatch, refuse):
        with pytest.raises(KernelError, match="SetIngressLimit on x0: Specified qdisc kind is unknown"):
            await execute(SetIngressLimit(7, "x0", compute_plugin_params(10_000_000)))


async def test_a_request_without_an_answer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtnetlink_module, "DEADLINE_S", 0.01)
    async with simulated_kernel(monkeypatch):
        with pytest.raises(KernelError, match="cannot ask: no response in time"):
            await dump_links()


async def test_an_os_error_of_a_listener_is_not_taken_for_one_of_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    reader.setblocking(False)  # noqa: FBT003  the name of the argument is not part of the socket interface
    monkeypatch.setattr(netlink_module, "open_socket", lambda *_, **__: reader)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    received: list[bytes | None] = []

    def fail_once(data: bytes | None) -> None:
        received.append(data)
        if len(received) == 1:
            raise OSError(errno.EIO, "disk")

    with writer:
        listening = asyncio.create_task(netlink_module.listen(0, 0, 0, fail_once))
        for _ in range(2):
            writer.send(b"event")
            await asyncio.sleep(0.05)
        assert (received, listening.done()) == ([b"event", b"event"], False)
        listening.cancel()
