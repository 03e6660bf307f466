"""Messages of rtnetlink, recorded from a kernel or encoded by pyroute2, are parsed into devices, qdiscs, routes and links."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from agent.bandwidth.state import Device
from agent.bandwidth.tc_reader import parse_device
from agent.capacity.link_reader import parse_default_route, parse_link
from agent.capacity.links import Link, Route
from agent.capacity.sysfs import NetDirectory
from agent.rtnetlink import ROOT, Qdisc, TbfParams, parse_qdisc
from tests.support.plugin_bucket import compute_plugin_params

RECORDING: dict[str, Any] = json.loads((Path(__file__).parent / "recordings" / "rtnetlink.messages").read_text())
VETH, IFB, BRIDGE = RECORDING["veth"], RECORDING["ifb"], RECORDING["br"]
HEADER_BYTES = 16
"""Size of struct nlmsghdr."""
T = TypeVar("T")
Attribute = Sequence[object]
AGGREGATOR = ["IFLA_BOND_AD_INFO", {"attrs": [["IFLA_BOND_AD_INFO_AGGREGATOR", 3]]}]


def parse_recorded(kind: str, parse: Callable[[bytes, int, int], T]) -> list[T]:
    """Parse each recorded message of a kind."""
    messages = [bytes.fromhex(text) for text in RECORDING[kind]]
    return [parse(message, HEADER_BYTES, len(message)) for message in messages]


def encode_link(*attributes: Attribute, flags: int = 1) -> bytes:
    """A link's message as pyroute2 writes it, for kinds that not every kernel can make; it is up (IFF_UP) by default."""
    message = ifinfmsg()
    message["index"], message["flags"], message["attrs"] = 7, flags, [["IFLA_IFNAME", "x0"], *attributes]
    message.encode()
    return bytes(message.data)


make_link = partial(Link, index=7, name="x0")


def make_link_info(kind: str, *options: Attribute) -> Attribute:
    return ["IFLA_LINKINFO", {"attrs": [["IFLA_INFO_KIND", kind], ["IFLA_INFO_DATA", {"attrs": list(options)}]]}]


def make_port_info(kind: str, *options: Attribute) -> Attribute:
    """What a link has as a port of a bond or bridge."""
    port_data = {"attrs": list(options)}
    return ["IFLA_LINKINFO", {"attrs": [["IFLA_INFO_SLAVE_KIND", kind], ["IFLA_INFO_SLAVE_DATA", port_data]]}]


def test_devices_are_parsed_with_kind_alias_and_the_namespace_of_their_peer() -> None:
    device_by_index = {device.index: device for device in parse_recorded("links", parse_device)}
    peer_index = device_by_index[VETH].peer_index
    assert peer_index is not None
    assert device_by_index[VETH] == Device(index=VETH, name="nav0", kind="veth", namespace_id=0, peer_index=peer_index)
    assert device_by_index[IFB] == Device(index=IFB, name="bwp0123456789ab", kind="ifb", alias="netaware:u1")


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
        pytest.param(
            [make_link_info("bond", ["IFLA_BOND_MODE", 4], AGGREGATOR)],
            make_link(kind="bond", bond_mode=4, active_aggregator=3),
            id="bond of 802.3ad",
        ),
        pytest.param(
            [make_link_info("bond", ["IFLA_BOND_MODE", 1], ["IFLA_BOND_ACTIVE_SLAVE", 9])],
            make_link(kind="bond", bond_mode=1, active_slave_index=9),
            id="bond with an active slave",
        ),
        pytest.param(
            [make_port_info("bond", ["IFLA_BOND_SLAVE_AD_AGGREGATOR_ID", 2]), ["IFLA_MASTER", 4]],
            make_link(slave_aggregator=2, master_index=4),
            id="slave of a bond",
        ),
        pytest.param(
            [make_link_info("vlan", ["IFLA_VLAN_ID", 5]), ["IFLA_LINK", 6]],
            make_link(kind="vlan", parent_index=6),
            id="vlan",
        ),
        pytest.param([["IFLA_CARRIER", 0]], make_link(is_up=False), id="no carrier"),
        pytest.param(
            [["IFLA_LINK", 6], ["IFLA_LINK_NETNSID", 0]],
            make_link(parent_index=6, is_parent_elsewhere=True),
            id="parent in another namespace",
        ),
    ],
)
def test_links_of_every_kind_are_parsed(attributes: list[Attribute], link: Link, tmp_path: Path) -> None:
    message = encode_link(*attributes)
    assert parse_link(message, HEADER_BYTES, len(message), NetDirectory(tmp_path)) == link
