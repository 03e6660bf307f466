"""Reads the link snapshot from the kernel with pyroute2: links, default routes and speeds, in one go.

Blocking, so it runs in a thread: decoding the links of a node with a hundred pods takes tens of milliseconds, in which
the event loop should answer probes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from socket import AF_INET, AF_INET6
from typing import Any

import msgspec

from agent.capacity.links import Link, LinkSnapshot, Route
from agent.capacity.sysfs import NetDirectory, psutil_speeds, read_machine
from agent.errors import KernelError

_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8
_EXT_VF = 1
_UNICAST, _MAIN_TABLE = 1, 254
_SPEED_UNKNOWN = 0xFFFFFFFF
_REMOTES = ("IFLA_IPTUN_REMOTE", "IFLA_GRE_REMOTE", "IFLA_VXLAN_GROUP", "IFLA_VXLAN_GROUP6", "IFLA_GENEVE_REMOTE")
_LOWERS = ("IFLA_VXLAN_LINK", "IFLA_IPTUN_LINK", "IFLA_GRE_LINK", "IFLA_VTI_LINK", "IFLA_XFRM_LINK")


async def read_links(sys: Path) -> LinkSnapshot:
    """The node's links now.

    Raises:
        KernelError: netlink did not answer.
    """
    return await asyncio.to_thread(read_links_now, sys)


def read_links_now(sys: Path) -> LinkSnapshot:
    """The same, blocking; not to be called inside an event loop, because pyroute2 runs its own."""
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    directory = NetDirectory(sys)
    try:
        with IPRoute() as netlink:
            links = [_link(message, directory) for message in netlink.get_links(ext_mask=_EXT_VF)]
            routes = [
                route
                for family, version in ((AF_INET, 4), (AF_INET6, 6))
                for message in netlink.get_routes(family=family, table=_MAIN_TABLE)
                for route in _routes(message, version)
            ]
        links = _with_speeds(links, directory)
    except (NetlinkError, OSError) as error:
        raise KernelError(f"cannot read links: {error}") from error
    return LinkSnapshot(links=tuple(links), routes=tuple(routes), machine=read_machine(sys))


def _link(message: Any, directory: NetDirectory) -> Link:
    name = str(message.get_attr("IFLA_IFNAME"))
    flags = int(message["flags"])
    info = message.get_attr("IFLA_LINKINFO")
    kind = str(info.get_attr("IFLA_INFO_KIND") or "") if info is not None else ""
    data = info.get_attr("IFLA_INFO_DATA") if info is not None else None
    port = info.get_attr("IFLA_INFO_SLAVE_DATA") if info is not None else None
    carrier = message.get_attr("IFLA_CARRIER")
    physical = directory.is_physical(name)
    return Link(
        index=int(message["index"]),
        name=name,
        kind=kind,
        up=bool(flags & _IFF_UP) and carrier != 0,
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


def _first(attributes: Any, names: tuple[str, ...]) -> int | None:
    """The first of the attributes that is there; pyroute2 gives plain text for option blocks that it cannot decode."""
    if not hasattr(attributes, "get_attr"):
        return None
    return next((int(value) for name in names if (value := attributes.get_attr(name)) is not None), None)


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


def _routes(message: Any, family: int) -> list[Route]:
    if message["type"] != _UNICAST:
        return []
    length, destination = int(message["dst_len"]), message.get_attr("RTA_DST")
    where = f"{destination}/{length}" if length and destination else ""
    metric = int(message.get_attr("RTA_PRIORITY") or 0)
    device = message.get_attr("RTA_OIF")
    hops = [device] if device is not None else [hop["oif"] for hop in message.get_attr("RTA_MULTIPATH") or ()]
    return [Route(device=int(hop), destination=where, metric=metric, family=family) for hop in hops]


def _with_speeds(links: list[Link], directory: NetDirectory) -> list[Link]:
    """Speeds of the devices that may have one of their own: hardware, and what looks like it."""
    lowest = [link for link in links if link.physical or (not link.kind and not link.loopback)]
    ethtool = _ethtool_speeds([link.name for link in lowest])
    psutil: dict[str, int] | None = None
    speeds: dict[int, Link] = {}
    for link in lowest:
        by_ethtool, by_sysfs = ethtool.get(link.name), directory.speed_mbps(link.name)
        by_psutil = None
        if by_ethtool is None and by_sysfs is None:
            psutil = psutil_speeds() if psutil is None else psutil
            by_psutil = psutil.get(link.name)
        speeds[link.index] = msgspec.structs.replace(
            link, ethtool_mbps=by_ethtool, sysfs_mbps=by_sysfs, psutil_mbps=by_psutil
        )
    return [speeds.get(link.index, link) for link in links]


def _ethtool_speeds(names: list[str]) -> dict[str, int]:
    """SPEED of ethtool's link modes over generic netlink (ethtool-netlink.rst), -1 for unknown."""
    from pyroute2 import NlEthtool
    from pyroute2.netlink.exceptions import NetlinkError

    speeds: dict[str, int] = {}
    if not names:
        return speeds
    try:
        with NlEthtool() as ethtool:
            for name in names:
                try:
                    for answer in ethtool.get_linkmode(name):
                        speed = answer.get_attr("ETHTOOL_A_LINKMODES_SPEED")
                        if speed is not None:
                            speeds[name] = -1 if speed == _SPEED_UNKNOWN else int(speed)
                except NetlinkError:
                    continue  # this driver has no link modes
    except (NetlinkError, OSError):
        return speeds  # this kernel has no netlink ethtool (before 5.6); sysfs answers
    return speeds
