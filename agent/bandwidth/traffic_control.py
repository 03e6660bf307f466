"""Reads devices, queueing disciplines and ingress filters, and which network namespace a process is in.

A pod's namespace is never entered. The kernel numbers the namespaces that the host's devices lead to (IFLA_LINK_NETNSID)
and tells the number of a process's namespace (RTM_GETNSID), so the two are matched from outside, without SYS_ADMIN.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_GETLINK, RTM_GETQDISC, RTM_GETTFILTER
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from agent.bandwidth.state import INGRESS_HANDLE, Device, Filter, KernelState, Qdisc
from agent.bandwidth.tbf import WORD, Shape
from agent.rtnetlink import Spans, attributes, dump, nested, read_text, read_u32, rtnetlink

_IFINFO = struct.Struct("=BxHiII")
_TC = struct.Struct("=BxxxiIII")
_LOOPBACK = 0x8
_IFNAME, _MTU, _LINK, _LINKINFO, _IFALIAS, _LINK_NETNSID = 3, 4, 5, 18, 20, 37
_INFO_KIND = 1
_KIND, _OPTIONS = 1, 2
_TBF_PARMS, _TBF_RATE64 = 1, 4
_TBF = struct.Struct("=8xI8xIIII")
"""struct tc_tbf_qopt: rate and peak rate (tc_ratespec, rate last), limit, buffer, mtu."""
_U32_SEL, _U32_ACT, _MATCHALL_ACT = 5, 7, 2
_SEL_BYTES, _KEY_BYTES = 16, 16
_ACT_KIND, _ACT_OPTIONS = 1, 2
_MIRRED_PARMS = 2
_MIRRED = struct.Struct("=IIiiiiI")
_EGRESS_REDIRECT = 1  # linux/tc_act/tc_mirred.h; a mirror (2) only copies
_ALL_PROTOCOLS = 0x0300  # ETH_P_ALL in network byte order, as it stands in tcm_info
GONE = frozenset({2, 19, 22})
"""ENOENT, ENODEV, EINVAL: what the kernel says of a device, or its ingress, that went away meanwhile."""


async def read_kernel(pids: Mapping[str, int]) -> tuple[KernelState, dict[str, int]]:
    """What is set up, and the namespace number of each process that has one.

    Args:
        pids: process by pod uid.

    Raises:
        KernelError: netlink did not answer.
    """
    async with rtnetlink("cannot read traffic control") as netlink:
        devices = await dump(netlink, ifinfmsg(), RTM_GETLINK, parse_device)
        qdiscs = await dump(netlink, tcmsg(), RTM_GETQDISC, parse_qdisc)
        filters: list[Filter] = []
        for index in sorted({q.device for q in qdiscs if q.kind in {"ingress", "clsact"}}):
            filters += await read_filters(netlink, index)
        numbers: dict[str, int] = {}
        for uid, pid in pids.items():
            number = await _namespace_number(netlink, pid)
            if number is not None:
                numbers[uid] = number
    state = KernelState(devices=tuple(devices), qdiscs=tuple(qdiscs), filters=tuple(filters))
    return state, numbers


async def read_filters(netlink: Any, index: int) -> list[Filter]:
    """The filters on a device's ingress; none when the device is gone."""
    request = tcmsg()
    request["index"], request["parent"] = index, INGRESS_HANDLE
    try:
        return await dump(netlink, request, RTM_GETTFILTER, parse_filter)
    except NetlinkError as error:
        if error.code in GONE:
            return []
        raise


async def _namespace_number(netlink: Any, pid: int) -> int | None:
    try:
        answer = await netlink.get_netnsid(pid=pid)
    except NetlinkError:
        return None  # the process ended meanwhile
    number = answer["nsid"] if answer else None
    return None if number is None or number in {-1, WORD - 1} else int(number)


def parse_device(data: bytes, begin: int, end: int) -> Device:
    """RTM_NEWLINK: struct ifinfomsg and IFLA_* attributes."""
    _, _, index, flags, _ = _IFINFO.unpack_from(data, begin)
    spans = attributes(data, begin + _IFINFO.size, end)
    kind = read_text(data, nested(data, spans, _LINKINFO), _INFO_KIND)
    parent = read_u32(data, spans, _LINK)
    return Device(
        index=index,
        name=read_text(data, spans, _IFNAME),
        kind=kind,
        mtu=read_u32(data, spans, _MTU) or 1500,
        alias=read_text(data, spans, _IFALIAS),
        namespace_id=read_u32(data, spans, _LINK_NETNSID),
        peer=parent or None,
        physical=not kind and not flags & _LOOPBACK,
    )


def parse_qdisc(data: bytes, begin: int, end: int) -> Qdisc:
    """RTM_NEWQDISC: struct tcmsg and TCA_* attributes."""
    _, index, handle, parent, _ = _TC.unpack_from(data, begin)
    spans = attributes(data, begin + _TC.size, end)
    kind = read_text(data, spans, _KIND)
    shape = _shape(data, nested(data, spans, _OPTIONS)) if kind == "tbf" else None
    return Qdisc(device=index, kind=kind, handle=handle, parent=parent, shape=shape)


def _shape(data: bytes, options: Spans) -> Shape | None:
    span = options.get(_TBF_PARMS)
    if span is None or span[1] - span[0] < _TBF.size:
        return None
    rate, _, limit, buffer, _ = _TBF.unpack_from(data, span[0])
    if _TBF_RATE64 in options:
        rate = int.from_bytes(data[slice(*options[_TBF_RATE64])], "little")
    return Shape(rate_bytes_per_s=rate, buffer_ticks=buffer, limit_bytes=limit)


def parse_filter(data: bytes, begin: int, end: int) -> Filter | None:
    """RTM_NEWTFILTER: struct tcmsg and TCA_* attributes. u32's hash tables, which match nothing, are left out."""
    _, index, _, _, info = _TC.unpack_from(data, begin)
    spans = attributes(data, begin + _TC.size, end)
    kind = read_text(data, spans, _KIND)
    options = nested(data, spans, _OPTIONS)
    if kind == "u32" and _U32_SEL not in options:
        return None
    everything = kind == "matchall" or (kind == "u32" and _has_no_condition(data, *options[_U32_SEL]))
    actions = nested(data, options, {"u32": _U32_ACT, "matchall": _MATCHALL_ACT}.get(kind, -1))
    target, polices = None, False
    for span in actions.values():
        action = attributes(data, *span)
        polices = polices or read_text(data, action, _ACT_KIND) == "police"
        target = target or _redirect_target(data, action)
    return Filter(
        device=index,
        kind=kind,
        priority=info >> 16,
        matches_all=everything and info & 0xFFFF == _ALL_PROTOCOLS,
        redirects_to=target,
        polices=polices,
    )


def _has_no_condition(data: bytes, begin: int, end: int) -> bool:
    """Whether all masks of a u32 selector are zero: struct tc_u32_sel with its keys."""
    keys = data[begin + _SEL_BYTES : end]
    return not any(any(keys[i : i + 4]) for i in range(0, len(keys), _KEY_BYTES))


def _redirect_target(data: bytes, action: Spans) -> int | None:
    if read_text(data, action, _ACT_KIND) != "mirred":
        return None
    span = nested(data, action, _ACT_OPTIONS).get(_MIRRED_PARMS)
    if span is None or span[1] - span[0] < _MIRRED.size:
        return None
    *_, eaction, target = _MIRRED.unpack_from(data, span[0])
    return int(target) if eaction == _EGRESS_REDIRECT else None
