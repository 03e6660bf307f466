"""Requests over rtnetlink are repeated, fail or time out by the kernel's answers, whose messages are parsed."""

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
from typing import Any, TypeVar
from unittest.mock import Mock

import pytest
from pyroute2 import AsyncIPRoute
from pyroute2.netlink import NLM_F_ACK_TLVS, NLM_F_DUMP_INTR, NLM_F_MULTI, NLMSG_DONE, NLMSG_ERROR
from pyroute2.netlink.rtnl import RTM_GETLINK, RTM_NEWLINK
from pyroute2.netlink.rtnl.ifinfmsg import IFF_UP, ifinfmsg

from agent import netlink as netlink_module
from agent import rtnetlink as rtnetlink_module
from agent.bandwidth.state import Device, SetIngressLimit
from agent.bandwidth.tc_reader import ALL_PROTOCOLS, parse_device, parse_filter
from agent.bandwidth.tc_writer import execute
from agent.capacity.link_reader import parse_default_route, parse_link
from agent.capacity.links import Link, Route
from agent.capacity.sysfs import NetDirectory
from agent.netlink import KernelError
from agent.rtnetlink import ROOT, Qdisc, TbfParams, dump, open_rtnetlink, parse_qdisc
from lab.polling import poll_until
from tests.support.plugin_bucket import compute_plugin_params
from tests.support.tasks import running_tasks

INTERRUPTED = NLM_F_MULTI | NLM_F_DUMP_INTR
Answer = Callable[[bytes, int], list[bytes]]
"""Makes the datagrams that answer a request, from the request and its sequence number."""
RECORDING: dict[str, Any] = json.loads((Path(__file__).parent / "recordings" / "rtnetlink.messages").read_text())
VETH, IFB, BRIDGE = RECORDING["veth"], RECORDING["ifb"], RECORDING["br"]
HEADER_BYTES = 16
"""Size of struct nlmsghdr."""
T = TypeVar("T")
Attribute = Sequence[object]
ACTIVE_BACKUP, LACP = 1, 4
"""Modes of bonds."""
AGGREGATOR = {"attrs": [["IFLA_BOND_AD_INFO_AGGREGATOR", 3]]}
PORT_DATA = ["IFLA_INFO_SLAVE_DATA", {"attrs": [["IFLA_BOND_SLAVE_AD_AGGREGATOR_ID", 2]]}]
BOND_PORT = ["IFLA_LINKINFO", {"attrs": [["IFLA_INFO_SLAVE_KIND", "bond"], PORT_DATA]}]
make_link = partial(Link, index=7, name="x0")


def encode_message(kind: int, payload: bytes, *, flags: int = 0, sequence: int = 1) -> bytes:
    return struct.pack("=IHHII", 16 + len(payload), kind, flags, sequence, 0) + payload + bytes(-len(payload) % 4)


@asynccontextmanager
async def simulated_kernel(monkeypatch: pytest.MonkeyPatch, *answers: Answer) -> AsyncIterator[None]:
    """A stand-in for the kernel, the other end of a pair of sockets: one answer for each request of pyroute2, in turn."""
    client_socket, kernel_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    monkeypatch.setattr(rtnetlink_module, "AsyncIPRoute", partial(AsyncIPRoute, use_socket=client_socket))
    with client_socket, kernel_socket:
        client_socket.settimeout(0)
        kernel_socket.settimeout(0)
        async with running_tasks(serve_answers(kernel_socket, answers)):
            yield


async def serve_answers(kernel_socket: socket.socket, answers: Sequence[Answer]) -> None:
    loop = asyncio.get_running_loop()
    for answer in answers:
        request = await loop.sock_recv(kernel_socket, 1 << 16)
        sequence = struct.unpack_from("=I", request, 8)[0]
        for datagram in answer(request, sequence):
            await loop.sock_sendall(kernel_socket, datagram)


async def dump_links() -> list[bytes]:
    """Bodies of the messages that answer a request for all links."""
    async with open_rtnetlink("cannot ask") as netlink:
        return await dump(netlink, ifinfmsg, RTM_GETLINK, lambda datagram, begin, end: datagram[begin:end])


def answer_with(*bodies: bytes, flags: int = NLM_F_MULTI, error: int = 0) -> Answer:
    """A dump of some messages in one datagram, and its end in another."""
    return lambda _, sequence: [
        b"".join(encode_message(RTM_NEWLINK, body, flags=flags, sequence=sequence) for body in bodies),
        encode_message(NLMSG_DONE, struct.pack("=i", -error), flags=flags, sequence=sequence),
    ]


def answer_after_another(request: bytes, sequence: int) -> list[bytes]:
    """An answer to another request comes first."""
    other_answer = encode_message(RTM_NEWLINK, b"late", flags=NLM_F_MULTI, sequence=sequence + 1)
    return [other_answer, *answer_with(b"one!", b"two!")(request, sequence)]


def refuse(request: bytes, sequence: int) -> list[bytes]:
    """A refusal with the kernel's message in an extended acknowledgement (NLMSGERR_ATTR_MSG)."""
    reason = b"Specified qdisc kind is unknown\0"
    body = struct.pack("=i", -errno.EINVAL) + request + struct.pack("=HH", 4 + len(reason), 1) + reason
    return [encode_message(NLMSG_ERROR, body, flags=NLM_F_ACK_TLVS, sequence=sequence)]


def parse_recorded(kind: str, parse: Callable[[bytes, int, int], T]) -> list[T]:
    """Parse each recorded message of a kind."""
    messages = [bytes.fromhex(text) for text in RECORDING[kind]]
    return [parse(message, HEADER_BYTES, len(message)) for message in messages]


def encode_link(*attributes: Attribute) -> bytes:
    """A message of a link that is up, as pyroute2 writes it, for kinds that not every kernel can make."""
    message = ifinfmsg()
    message["index"], message["flags"], message["attrs"] = 7, IFF_UP, [["IFLA_IFNAME", "x0"], *attributes]
    message.encode()
    return bytes(message.data)


def make_link_info(kind: str, *options: Attribute) -> Attribute:
    return ["IFLA_LINKINFO", {"attrs": [["IFLA_INFO_KIND", kind], ["IFLA_INFO_DATA", {"attrs": list(options)}]]}]


@pytest.mark.parametrize(
    ("answers", "bodies"),
    [
        pytest.param([answer_after_another], [b"one!", b"two!"], id="an answer to another request is skipped"),
        pytest.param([answer_with(b"half", flags=INTERRUPTED), answer_with(b"good")], [b"good"], id="repeated"),
        pytest.param(
            [answer_with(b"%04d" % number, flags=INTERRUPTED) for number in range(1, 5)],
            [b"0003"],
            id="the third attempt counts, though interrupted",
        ),
    ],
)
async def test_an_interrupted_dump_is_repeated(
    answers: list[Answer], bodies: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with simulated_kernel(monkeypatch, *answers):
        assert await dump_links() == bodies


async def test_a_dump_that_ends_with_an_error_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async with simulated_kernel(monkeypatch, answer_with(b"one!", error=errno.ENODEV)):
        with pytest.raises(KernelError, match="cannot ask: No such device"):
            await dump_links()


async def test_a_refusal_has_the_kernels_message(monkeypatch: pytest.MonkeyPatch) -> None:
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
    reader.settimeout(0)
    monkeypatch.setattr(netlink_module, "open_socket", lambda *_, **__: reader)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    on_datagram = Mock(side_effect=[OSError(errno.EIO, "disk"), None])

    async with running_tasks(netlink_module.listen(0, 0, 0, on_datagram)) as (listening,):
        with writer:
            writer.send(b"event")
            writer.send(b"event")
            await poll_until(lambda: on_datagram.call_count == 2)
        assert not listening.done()


def test_devices_are_parsed_with_kind_alias_and_the_namespace_of_their_peer() -> None:
    device_by_index = {device.index: device for device in parse_recorded("links", parse_device)}
    peer_index = device_by_index[VETH].peer_index
    assert peer_index is not None
    assert device_by_index[VETH] == Device(index=VETH, name="nav0", kind="veth", namespace_id=0, peer_index=peer_index)
    assert device_by_index[IFB] == Device(index=IFB, name="bwp0123456789ab", kind="ifb", alias="netaware:u1")


@pytest.mark.parametrize(("mark", "matches_all"), [(b"", True), (struct.pack("=HHIII", 16, 10, 7, 0xFF, 0), False)])
def test_a_filter_with_a_mark_does_not_match_all_packets(*, mark: bytes, matches_all: bool) -> None:
    header = struct.pack("=BxxxiIII", 0, 7, 0x10000, 0xFFFFFFFF, 1 << 16 | ALL_PROTOCOLS)
    options = struct.pack("=HH32x", 36, 5) + mark
    data = header + struct.pack("=HH4s", 8, 1, b"u32") + struct.pack("=HH", 4 + len(options), 2) + options
    parsed = parse_filter(data, 0, len(data))
    assert parsed is not None
    assert parsed.matches_all is matches_all


def test_token_buckets_are_parsed_exactly_up_to_rates_of_64_bits() -> None:
    qdisc_by_device = {(qdisc.device_index, qdisc.kind): qdisc for qdisc in parse_recorded("qdiscs", parse_qdisc)}
    assert qdisc_by_device[VETH, "tbf"] == Qdisc(
        device_index=VETH, kind="tbf", handle=0x10000, parent=ROOT, params=compute_plugin_params(10_000_000)
    )
    assert qdisc_by_device[IFB, "tbf"].params == TbfParams(
        rate_bytes_per_s=12_500_000_000, buffer_ticks=156_250, limit_bytes=625_000_000
    )
    assert qdisc_by_device[VETH, "ingress"].parent == 0xFFFFFFF1, "TC_H_INGRESS"


def test_default_routes_of_the_main_table_are_parsed_with_every_next_hop() -> None:
    routes = [route for hops in parse_recorded("routes", parse_default_route) for route in hops or ()]
    assert len(routes) == 3
    assert Route(device_index=VETH, metric=100, is_multipath=True) in routes
    assert Route(device_index=BRIDGE, metric=100, is_multipath=True) in routes
    assert Route(device_index=VETH, metric=1024, family=6) in routes


@pytest.mark.parametrize(
    ("attributes", "link"),
    [
        (
            [make_link_info("bond", ["IFLA_BOND_MODE", LACP], ["IFLA_BOND_AD_INFO", AGGREGATOR])],
            make_link(kind="bond", bond_mode=LACP, active_aggregator=3),
        ),
        (
            [make_link_info("bond", ["IFLA_BOND_MODE", ACTIVE_BACKUP], ["IFLA_BOND_ACTIVE_SLAVE", 9])],
            make_link(kind="bond", bond_mode=ACTIVE_BACKUP, active_slave_index=9),
        ),
        ([BOND_PORT, ["IFLA_MASTER", 4]], make_link(slave_aggregator=2, master_index=4)),
        ([make_link_info("vlan", ["IFLA_VLAN_ID", 5]), ["IFLA_LINK", 6]], make_link(kind="vlan", parent_index=6)),
        ([["IFLA_CARRIER", 0]], make_link(is_up=False)),
        ([["IFLA_LINK", 6], ["IFLA_LINK_NETNSID", 0]], make_link(parent_index=6, is_parent_elsewhere=True)),
    ],
)
def test_links_of_every_kind_are_parsed(attributes: list[Attribute], link: Link, tmp_path: Path) -> None:
    message = encode_link(*attributes)
    assert parse_link(message, HEADER_BYTES, len(message), NetDirectory(tmp_path)) == link
