"""Reads the link snapshot: links and routes over rtnetlink, speeds over generic netlink, sysfs, and psutil in the last place.

Links of pods (veth, ifb) make up most of a node's links and nothing of its capacity, so of them only the fixed part and
the kind are read; all others are decoded in full by pyroute2.
"""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec
from pyroute2 import AsyncNlEthtool
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_GETLINK, RTM_GETROUTE
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from agent.capacity.links import Link, LinkSnapshot, Route
from agent.capacity.sysfs import NetDirectory, psutil_speeds, read_machine
from agent.rtnetlink import DEADLINE_S, attributes, dump, nested, read_text, read_u32, rtnetlink

_IFINFO = struct.Struct("=BxHiII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_HEADER_BYTES = 16
_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8
_IFNAME, _LINK, _MASTER, _LINKINFO, _CARRIER, _LINK_NETNSID = 3, 5, 10, 18, 33, 37
_INFO_KIND = 1
_RTA_DST, _RTA_OIF, _RTA_PRIORITY, _RTA_MULTIPATH, _RTA_TABLE = 1, 4, 6, 9, 15
_NEXT_HOP = struct.Struct("=HBBi")
_UNICAST, _MAIN_TABLE = 1, 254
_FAMILIES = {2: 4, 10: 6}
_EXT_VF = 1
_OF_PODS = frozenset({"veth", "ifb"})
_SPEED_UNKNOWN = 0xFFFFFFFF
_REMOTES = ("IFLA_IPTUN_REMOTE", "IFLA_GRE_REMOTE", "IFLA_VXLAN_GROUP", "IFLA_VXLAN_GROUP6", "IFLA_GENEVE_REMOTE")
_LOWERS = ("IFLA_VXLAN_LINK", "IFLA_IPTUN_LINK", "IFLA_GRE_LINK", "IFLA_VTI_LINK", "IFLA_XFRM_LINK")


class _Ethtool(AsyncNlEthtool):  # type: ignore[misc]
    """Kernels before 5.6 have no netlink ethtool; that is no error worth a log line each minute."""

    module_err_level = "debug"


async def read_links(sys: Path) -> LinkSnapshot:
    """The node's links now.

    Raises:
        KernelError: netlink did not answer.
    """
    directory = NetDirectory(sys)
    async with rtnetlink("cannot read links") as netlink:
        request = ifinfmsg()
        request["attrs"].append(["IFLA_EXT_MASK", _EXT_VF])
        links = await dump(netlink, request, RTM_GETLINK, _link_parser(directory))
        routes = await dump(netlink, rtmsg(), RTM_GETROUTE, parse_routes)
    links = await _with_speeds(links, directory)
    return LinkSnapshot(
        links=tuple(links),
        routes=tuple(route for hops in routes for route in hops),
        machine=read_machine(sys),
    )


def _link_parser(directory: NetDirectory) -> Callable[[bytes, int, int], Link]:
    def parse(data: bytes, begin: int, end: int) -> Link:
        spans = attributes(data, begin + _IFINFO.size, end)
        kind = read_text(data, nested(data, spans, _LINKINFO), _INFO_KIND)
        if kind not in _OF_PODS:
            message = ifinfmsg(data, offset=begin - _HEADER_BYTES)
            message.decode()
            return _link(message, directory)
        _, _, index, flags, _ = _IFINFO.unpack_from(data, begin)
        carrier = spans.get(_CARRIER)
        return Link(
            index=index,
            name=read_text(data, spans, _IFNAME),
            kind=kind,
            up=bool(flags & _IFF_UP) and (carrier is None or data[carrier[0]] != 0),
            parent=read_u32(data, spans, _LINK),
            parent_elsewhere=_LINK_NETNSID in spans,
            master=read_u32(data, spans, _MASTER),
        )

    return parse


def _link(message: Any, directory: NetDirectory) -> Link:
    name = str(message.get_attr("IFLA_IFNAME"))
    flags = int(message["flags"])
    info = message.get_attr("IFLA_LINKINFO")
    kind = str(info.get_attr("IFLA_INFO_KIND") or "") if info is not None else ""
    data = info.get_attr("IFLA_INFO_DATA") if info is not None else None
    port = info.get_attr("IFLA_INFO_SLAVE_DATA") if info is not None else None
    physical = directory.is_physical(name)
    return Link(
        index=int(message["index"]),
        name=name,
        kind=kind,
        up=bool(flags & _IFF_UP) and message.get_attr("IFLA_CARRIER") != 0,
        parent=_first(message, ("IFLA_LINK",)) or _first(data, _LOWERS),
        parent_elsewhere=message.get_attr("IFLA_LINK_NETNSID") is not None,
        master=message.get_attr("IFLA_MASTER"),
        physical=physical,
        driver=directory.driver(name) if physical else "",
        loopback=bool(flags & _IFF_LOOPBACK),
        bond_mode=_first(data, ("IFLA_BOND_MODE",)) if kind == "bond" else None,
        active_slave=_first(data, ("IFLA_BOND_ACTIVE_SLAVE",)) if kind == "bond" else None,
        port_state=_first(port, ("IFLA_BRPORT_STATE",)),
        remote=_remote(data),
        physical_function=directory.physical_function(name) if physical else "",
        vf_number=directory.vf_number(name) if physical else None,
        vf_rates_mbps=_vf_rates(message),
    )


def _first(found: Any, names: tuple[str, ...]) -> int | None:
    """The first of the attributes that is there; pyroute2 gives plain text for option blocks that it cannot decode."""
    if not hasattr(found, "get_attr"):
        return None
    return next((int(value) for name in names if (value := found.get_attr(name)) is not None), None)


def _remote(data: Any) -> str:
    if not hasattr(data, "get_attr"):
        return ""
    found = next((value for name in _REMOTES if (value := data.get_attr(name))), "")
    return "" if found in {"0.0.0.0", "::"} else str(found)


def _vf_rates(message: Any) -> dict[int, int]:
    functions = message.get_attr("IFLA_VFINFO_LIST")
    if functions is None:
        return {}
    rates: dict[int, int] = {}
    for function in functions.get_attrs("IFLA_VF_INFO"):
        rate = function.get_attr("IFLA_VF_RATE")
        if rate is not None:
            rates[int(rate["vf"])] = int(rate["max_tx_rate"])
    return rates


def parse_routes(data: bytes, begin: int, end: int) -> list[Route] | None:
    """RTM_NEWROUTE: struct rtmsg and RTA_* attributes. One route per next hop; only unicast ones of the main table."""
    family, length, _, _, table, _, _, kind, _ = _ROUTE.unpack_from(data, begin)
    spans = attributes(data, begin + _ROUTE.size, end)
    table = read_u32(data, spans, _RTA_TABLE) or table
    if kind != _UNICAST or table != _MAIN_TABLE or family not in _FAMILIES:
        return None
    where = ""
    if length and _RTA_DST in spans:
        where = f"{ipaddress.ip_address(data[slice(*spans[_RTA_DST])])}/{length}"
    device = read_u32(data, spans, _RTA_OIF)
    hops = [device] if device is not None else _next_hops(data, spans.get(_RTA_MULTIPATH))
    metric = read_u32(data, spans, _RTA_PRIORITY) or 0
    return [Route(device=hop, destination=where, metric=metric, family=_FAMILIES[family]) for hop in hops]


def _next_hops(data: bytes, span: tuple[int, int] | None) -> list[int]:
    """Devices of a multipath route: struct rtnexthop, each with attributes of its own."""
    hops: list[int] = []
    begin, end = span or (0, 0)
    while begin + _NEXT_HOP.size <= end:
        length, _, _, device = _NEXT_HOP.unpack_from(data, begin)
        if length < _NEXT_HOP.size:
            break
        hops.append(device)
        begin += (length + 3) & ~3
    return hops


async def _with_speeds(links: list[Link], directory: NetDirectory) -> list[Link]:
    """Speeds of the devices that may have one of their own: hardware, and what looks like it."""
    lowest = [link for link in links if link.physical or (not link.kind and not link.loopback)]
    ethtool = await _ethtool_speeds([link.name for link in lowest if link.up])
    psutil: dict[str, int] | None = None
    speeds: dict[int, Link] = {}
    for link in lowest:
        by_ethtool, by_sysfs = ethtool.get(link.name), directory.speed_mbps(link.name)
        by_psutil = None
        if link.up and by_ethtool is None and by_sysfs is None:
            psutil = psutil_speeds() if psutil is None else psutil
            by_psutil = psutil.get(link.name)
        speeds[link.index] = msgspec.structs.replace(
            link, ethtool_mbps=by_ethtool, sysfs_mbps=by_sysfs, psutil_mbps=by_psutil
        )
    return [speeds.get(link.index, link) for link in links]


async def _ethtool_speeds(names: Collection[str]) -> dict[str, int]:
    """SPEED of ethtool's link modes over generic netlink (ethtool-netlink.rst), -1 for unknown.

    A device, or a kernel, without them is left out: sysfs answers in their place.
    """
    speeds: dict[str, int] = {}
    if not names:
        return speeds
    try:
        async with asyncio.timeout(DEADLINE_S), _Ethtool() as ethtool:
            for name in names:
                try:
                    async for answer in await ethtool.get_linkmode(name):
                        speed = answer.get_attr("ETHTOOL_A_LINKMODES_SPEED")
                        if speed is not None:
                            speeds[name] = -1 if speed == _SPEED_UNKNOWN else int(speed)
                except NetlinkError:
                    continue
    except (NetlinkError, OSError, TimeoutError):
        return speeds
    return speeds
