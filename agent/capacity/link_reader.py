"""Reads the link snapshot: links and routes over rtnetlink, speeds from sysfs or psutil.

Most links belong to pods (veth, ifb) and add nothing to the node's capacity, so sysfs and bond options are not read for them.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec
from pyroute2.netlink.rtnl import RTM_GETLINK, RTM_GETQDISC, RTM_GETROUTE
from pyroute2.netlink.rtnl.ifinfmsg import IFF_LOOPBACK, IFF_UP, ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from agent import rtnetlink as rtnl
from agent.capacity.links import Link, LinkSnapshot, Route
from agent.capacity.sysfs import NetDirectory, psutil_speeds, read_machine
from agent.netlink import aligned

_ROUTE = struct.Struct("=BBBBBBBBI")
"""struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags."""
_IFLA_MASTER, _IFLA_CARRIER = 10, 33
_IFLA_INFO_DATA, _IFLA_INFO_SLAVE_KIND, _IFLA_INFO_SLAVE_DATA = 2, 4, 5
_IFLA_BOND_MODE, _IFLA_BOND_ACTIVE_SLAVE, _IFLA_BOND_AD_INFO, _IFLA_BOND_AD_INFO_AGGREGATOR = 1, 2, 23, 1
_IFLA_BOND_SLAVE_AD_AGGREGATOR_ID = 6
_RTA_OIF, _RTA_PRIORITY, _RTA_MULTIPATH, _RTA_TABLE = 4, 6, 9, 15
_TC_H_ROOT = 0xFFFFFFFF
_NEXT_HOP = struct.Struct("=HBBi")
"""struct rtnexthop: length, flags, hops, device."""
_RTN_UNICAST, _RT_TABLE_MAIN = 1, 254
_IP_VERSIONS = {int(socket.AF_INET): 4, int(socket.AF_INET6): 6}
_POD_LINK_KINDS = frozenset({"veth", "ifb"})
ROUTES_INTERVAL_S = 50.0
"""Shortest time between reads of routes; less than the publisher's interval of reading links."""


class LinkReader:
    """Reads links every time, and routes less often, because a node may have tens of thousands of them."""

    def __init__(self, sys: Path, proc: Path) -> None:
        self._sys, self._proc = sys, proc
        self._routes: tuple[Route, ...] = ()
        self._routes_read_at_s = -ROUTES_INTERVAL_S

    async def read(self) -> LinkSnapshot:
        """Read the node's links, routes and machine.

        Raises:
            KernelError: netlink did not answer.
        """
        directory = NetDirectory(self._sys)
        async with rtnl.open_socket("cannot read links") as netlink:
            links = await rtnl.dump(netlink, ifinfmsg, RTM_GETLINK, partial(parse_link, directory=directory))
            roots = dict(await rtnl.dump(netlink, rtnl.tc_request, RTM_GETQDISC, parse_root))
            if time.monotonic() - self._routes_read_at_s >= ROUTES_INTERVAL_S:
                dumped = await rtnl.dump(netlink, rtmsg, RTM_GETROUTE, parse_default_route)
                self._routes = tuple(route for hops in dumped for route in hops)
                self._routes_read_at_s = time.monotonic()
        links = _with_roots_and_speeds(links, roots, directory)
        return LinkSnapshot(links=tuple(links), routes=self._routes, machine=read_machine(self._sys, self._proc))


def parse_root(data: bytes, begin: int, end: int) -> tuple[int, tuple[str, int | None]] | None:
    """Parse an RTM_NEWQDISC message: device, kind and rate (of token buckets only) of a root qdisc; None for other qdiscs."""
    _, index, _, parent, _ = rtnl.TC.unpack_from(data, begin)
    if parent != _TC_H_ROOT:
        return None
    spans = rtnl.parse_attributes(data, begin + rtnl.TC.size, end)
    kind = rtnl.read_text(data, spans, rtnl.TCA_KIND)
    tbf = rtnl.read_tbf(data, rtnl.parse_nested(data, spans, rtnl.TCA_OPTIONS)) if kind == "tbf" else None
    return index, (kind, None if tbf is None else tbf[0] * 8 // 1_000_000)


def parse_link(data: bytes, begin: int, end: int, directory: NetDirectory) -> Link:
    """Parse an RTM_NEWLINK message (struct ifinfomsg, IFLA_* attributes), and add sysfs' attributes of hardware."""
    _, _, index, flags, _ = rtnl.IFINFO.unpack_from(data, begin)
    spans = rtnl.parse_attributes(data, begin + rtnl.IFINFO.size, end)
    name, info = rtnl.read_text(data, spans, rtnl.IFLA_IFNAME), rtnl.parse_nested(data, spans, rtnl.IFLA_LINKINFO)
    kind = rtnl.read_text(data, info, rtnl.IFLA_INFO_KIND)
    link = Link(
        index=index,
        name=name,
        kind=kind,
        up=bool(flags & IFF_UP) and rtnl.read_number(data, spans, _IFLA_CARRIER) != 0,
        parent=rtnl.read_number(data, spans, rtnl.IFLA_LINK),
        parent_elsewhere=rtnl.IFLA_LINK_NETNSID in spans,
        master=rtnl.read_number(data, spans, _IFLA_MASTER),
    )
    if kind in _POD_LINK_KINDS:
        return link
    options, port = rtnl.parse_nested(data, info, _IFLA_INFO_DATA), rtnl.parse_nested(data, info, _IFLA_INFO_SLAVE_DATA)
    port_kind = rtnl.read_text(data, info, _IFLA_INFO_SLAVE_KIND)
    is_bond, is_physical = kind == "bond", directory.is_physical(name)
    return msgspec.structs.replace(
        link,
        physical=is_physical,
        driver=directory.driver(name) if is_physical else "",
        loopback=bool(flags & IFF_LOOPBACK),
        bond_mode=rtnl.read_number(data, options, _IFLA_BOND_MODE) if is_bond else None,
        active_slave=rtnl.read_number(data, options, _IFLA_BOND_ACTIVE_SLAVE) if is_bond else None,
        aggregator=_aggregator(data, options if is_bond else {}, port if port_kind == "bond" else {}),
        virtual_function=is_physical and directory.is_virtual_function(name),
    )


def _aggregator(data: bytes, bond: rtnl.Spans, port: rtnl.Spans) -> int | None:
    """The active aggregator of an LACP bond, or a port's own aggregator."""
    active = rtnl.read_number(data, rtnl.parse_nested(data, bond, _IFLA_BOND_AD_INFO), _IFLA_BOND_AD_INFO_AGGREGATOR)
    return active or rtnl.read_number(data, port, _IFLA_BOND_SLAVE_AD_AGGREGATOR_ID)


def parse_default_route(data: bytes, begin: int, end: int) -> list[Route] | None:
    """Parse an RTM_NEWROUTE message: a route per next hop; None unless it is a unicast default route of the main table."""
    family, length, _, _, table, _, _, kind, _ = _ROUTE.unpack_from(data, begin)
    if length or kind != _RTN_UNICAST or family not in _IP_VERSIONS:
        return None
    spans = rtnl.parse_attributes(data, begin + _ROUTE.size, end)
    if (rtnl.read_number(data, spans, _RTA_TABLE) or table) != _RT_TABLE_MAIN:
        return None
    device = rtnl.read_number(data, spans, _RTA_OIF)
    hops = [device] if device is not None else _next_hops(data, spans.get(_RTA_MULTIPATH))
    metric = rtnl.read_number(data, spans, _RTA_PRIORITY) or 0
    return [Route(device=hop, metric=metric, family=_IP_VERSIONS[family], multipath=len(hops) > 1) for hop in hops]


def _next_hops(data: bytes, span: tuple[int, int] | None) -> list[int]:
    """Devices of the hops of a multipath route."""
    hops: list[int] = []
    begin, end = span or (0, 0)
    while begin + _NEXT_HOP.size <= end:
        length, _, _, device = _NEXT_HOP.unpack_from(data, begin)
        if length < _NEXT_HOP.size:
            break
        hops.append(device)
        begin += aligned(length)
    return hops


def _with_roots_and_speeds(
    links: list[Link], roots: Mapping[int, tuple[str, int | None]], directory: NetDirectory
) -> list[Link]:
    """Add root qdiscs, except of pods' links, and speeds of physical devices and of devices without a kind except loopback."""
    by_psutil: dict[str, int] | None = None
    completed: list[Link] = []
    for link in links:
        if link.kind not in _POD_LINK_KINDS and link.index in roots:
            kind, mbps = roots[link.index]
            link = msgspec.structs.replace(link, root=kind, root_mbps=mbps)
        if link.physical or (not link.kind and not link.loopback):
            link = msgspec.structs.replace(link, sysfs_mbps=directory.speed_mbps(link.name))
            if link.up and link.sysfs_mbps is None:
                by_psutil = psutil_speeds() if by_psutil is None else by_psutil
                link = msgspec.structs.replace(link, psutil_mbps=by_psutil.get(link.name))
        completed.append(link)
    return completed
