"""Reads the link snapshot: links, qdiscs and routes over rtnetlink, hardware from sysfs, speeds from sysfs or psutil.

Most links belong to pods (veth, ifb) and add nothing to the node's capacity, so sysfs and bond options are not read for them.
"""

from __future__ import annotations

import socket
import struct
import time
from functools import partial
from pathlib import Path

import msgspec
from pyroute2.netlink.rtnl import RTM_GETLINK, RTM_GETQDISC, RTM_GETROUTE
from pyroute2.netlink.rtnl.ifinfmsg import IFF_LOOPBACK, IFF_UP, ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from agent import rtnetlink as rtnl
from agent.capacity.links import Link, LinkSnapshot, Route
from agent.capacity.sysfs import NetDirectory, read_machine, read_psutil_mbps
from agent.netlink import align

_ROUTE = struct.Struct("=BBBBBBBBI")
"""struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags."""
_IFLA_MASTER, _IFLA_CARRIER = 10, 33
_IFLA_INFO_DATA, _IFLA_INFO_SLAVE_KIND, _IFLA_INFO_SLAVE_DATA = 2, 4, 5
_IFLA_BOND_MODE, _IFLA_BOND_ACTIVE_SLAVE, _IFLA_BOND_AD_INFO, _IFLA_BOND_AD_INFO_AGGREGATOR = 1, 2, 23, 1
_IFLA_BOND_SLAVE_AD_AGGREGATOR_ID = 6
_RTA_OIF, _RTA_PRIORITY, _RTA_MULTIPATH, _RTA_TABLE = 4, 6, 9, 15
_NEXT_HOP = struct.Struct("=HBBi")
"""struct rtnexthop: length, flags, hops, device."""
_RTN_UNICAST = 1
_RT_TABLE_MAIN = 254
_IP_VERSIONS = {int(socket.AF_INET): 4, int(socket.AF_INET6): 6}
_POD_LINK_KINDS = frozenset({"veth", "ifb"})
ROUTES_INTERVAL_S = 50.0
"""Shorter than the period of link reads, so that each periodic read also reads routes, and reads after link events do not."""


class LinkReader:
    """Reads links every time, and routes at most every `ROUTES_INTERVAL_S`, because a node may have tens of thousands of routes."""

    def __init__(self, sys: Path, proc: Path) -> None:
        self._sys, self._proc = sys, proc
        self._routes: tuple[Route, ...] = ()
        self._routes_read_at_s = -ROUTES_INTERVAL_S

    async def read(self) -> LinkSnapshot:
        """Read the node's links, routes and machine.

        Raises:
            KernelError: netlink refused or did not answer.
        """
        directory = NetDirectory(self._sys)
        async with rtnl.open_rtnetlink("cannot read links") as netlink:
            links = await rtnl.dump(netlink, ifinfmsg, RTM_GETLINK, partial(parse_link, directory=directory))
            qdiscs = await rtnl.dump(netlink, rtnl.make_tc_request, RTM_GETQDISC, rtnl.parse_qdisc)
            if time.monotonic() - self._routes_read_at_s >= ROUTES_INTERVAL_S:
                routes = await rtnl.dump(netlink, rtmsg, RTM_GETROUTE, parse_default_route)
                self._routes = tuple(route for parsed in routes for route in parsed)
                self._routes_read_at_s = time.monotonic()
        root_by_device = {qdisc.device_index: qdisc for qdisc in qdiscs if qdisc.parent == rtnl.ROOT}
        links = [_add_root_qdisc_and_speed(link, root_by_device.get(link.index), directory) for link in links]
        return LinkSnapshot(links=tuple(links), routes=self._routes, machine=read_machine(self._sys, self._proc))


def parse_link(data: bytes, begin: int, end: int, directory: NetDirectory) -> Link:
    """Parse an RTM_NEWLINK message (struct ifinfomsg, IFLA_* attributes), and read the hardware's attributes from sysfs."""
    _, _, index, flags, _ = rtnl.IFINFO.unpack_from(data, begin)
    spans = rtnl.parse_attributes(data, begin + rtnl.IFINFO.size, end)
    name, info = rtnl.read_text(data, spans, rtnl.IFLA_IFNAME), rtnl.parse_nested(data, spans, rtnl.IFLA_LINKINFO)
    kind = rtnl.read_text(data, info, rtnl.IFLA_INFO_KIND)
    link = Link(
        index=index,
        name=name,
        kind=kind,
        is_up=bool(flags & IFF_UP) and rtnl.read_number(data, spans, _IFLA_CARRIER) != 0,
        parent_index=rtnl.read_number(data, spans, rtnl.IFLA_LINK),
        is_parent_elsewhere=rtnl.IFLA_LINK_NETNSID in spans,
        master_index=rtnl.read_number(data, spans, _IFLA_MASTER),
    )
    if kind in _POD_LINK_KINDS:
        return link
    is_physical = directory.is_physical(name)
    is_bond_slave = rtnl.read_text(data, info, _IFLA_INFO_SLAVE_KIND) == "bond"
    bond = rtnl.parse_nested(data, info, _IFLA_INFO_DATA) if kind == "bond" else {}
    slave = rtnl.parse_nested(data, info, _IFLA_INFO_SLAVE_DATA) if is_bond_slave else {}
    ad_info = rtnl.parse_nested(data, bond, _IFLA_BOND_AD_INFO)
    return msgspec.structs.replace(
        link,
        is_physical=is_physical,
        driver=directory.read_driver(name) if is_physical else "",
        is_loopback=bool(flags & IFF_LOOPBACK),
        bond_mode=rtnl.read_number(data, bond, _IFLA_BOND_MODE),
        active_slave_index=rtnl.read_number(data, bond, _IFLA_BOND_ACTIVE_SLAVE),
        active_aggregator=rtnl.read_number(data, ad_info, _IFLA_BOND_AD_INFO_AGGREGATOR) or None,
        slave_aggregator=rtnl.read_number(data, slave, _IFLA_BOND_SLAVE_AD_AGGREGATOR_ID),
        is_virtual_function=is_physical and directory.is_virtual_function(name),
    )


def parse_default_route(data: bytes, begin: int, end: int) -> list[Route] | None:
    """Parse an RTM_NEWROUTE message: a route per next hop; None unless it is a unicast default route of the main table."""
    family, prefix_length, _, _, table, _, _, kind, _ = _ROUTE.unpack_from(data, begin)
    if prefix_length or kind != _RTN_UNICAST or family not in _IP_VERSIONS:
        return None
    spans = rtnl.parse_attributes(data, begin + _ROUTE.size, end)
    if (rtnl.read_number(data, spans, _RTA_TABLE) or table) != _RT_TABLE_MAIN:
        return None
    device_index = rtnl.read_number(data, spans, _RTA_OIF)
    hop_indexes = [device_index] if device_index is not None else _parse_next_hops(data, spans.get(_RTA_MULTIPATH))
    metric = rtnl.read_number(data, spans, _RTA_PRIORITY) or 0
    return [
        Route(device_index=index, metric=metric, family=_IP_VERSIONS[family], is_multipath=len(hop_indexes) > 1)
        for index in hop_indexes
    ]


def _parse_next_hops(data: bytes, span: tuple[int, int] | None) -> list[int]:
    """Parse the device indexes of the hops of a multipath route."""
    device_indexes: list[int] = []
    begin, end = span or (0, 0)
    while begin + _NEXT_HOP.size <= end:
        length, _, _, device_index = _NEXT_HOP.unpack_from(data, begin)
        if length < _NEXT_HOP.size:
            break
        device_indexes.append(device_index)
        begin += align(length)
    return device_indexes


def _add_root_qdisc_and_speed(link: Link, root: rtnl.Qdisc | None, directory: NetDirectory) -> Link:
    """Add the root qdisc to a link, and the speed to a device that may have one; links of pods stay as they are."""
    if link.kind in _POD_LINK_KINDS:
        return link
    if root is not None:
        mbps = root.params.rate_bytes_per_s * 8 // 1_000_000 if root.params is not None else None
        link = msgspec.structs.replace(link, root_qdisc=root.kind, root_qdisc_mbps=mbps)
    if link.is_physical or not (link.kind or link.is_loopback):
        link = msgspec.structs.replace(link, sysfs_mbps=directory.read_speed_mbps(link.name))
        if link.is_up and link.sysfs_mbps is None:
            link = msgspec.structs.replace(link, psutil_mbps=read_psutil_mbps(link.name))
    return link
