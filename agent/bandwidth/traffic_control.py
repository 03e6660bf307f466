"""Reads devices, qdiscs and filters, and the network namespace of a process.

A pod's namespace is never entered. The kernel numbers the namespaces that the host's devices lead to (IFLA_LINK_NETNSID)
and returns the number of a process's namespace (RTM_GETNSID), so the two are matched from outside, without SYS_ADMIN.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_GETLINK, RTM_GETQDISC, RTM_GETTCLASS, RTM_GETTFILTER
from pyroute2.netlink.rtnl.ifinfmsg import IFF_LOOPBACK, IFF_UP, ifinfmsg

from agent.bandwidth.programs import ProgramsUnknown, read_programs
from agent.bandwidth.state import (
    EGRESS_HOOK,
    INGRESS_HOOK,
    PLUGIN_HANDLE,
    ROOT,
    Device,
    Filter,
    Hook,
    Qdisc,
    TcState,
)
from agent.bandwidth.tbf import ETHERNET_BYTES, UINT32_RANGE, TbfParams
from agent.rtnetlink import IFINFO, TC, Spans, attributes, dump, nested, read_text, read_u32, rtnetlink, tc_request

_MASTER, _TXQLEN = 10, 13
_IFNAME, _MTU, _LINK, _LINKINFO, _IFALIAS, _LINK_NETNSID = 3, 4, 5, 18, 20, 37
_INFO_KIND = 1
_KIND, _OPTIONS, _CHAIN, _INGRESS_BLOCK = 1, 2, 11, 13
_TBF_PARMS, _TBF_RATE64 = 1, 4
_TBF = struct.Struct("=8xI8xIIII")
"""struct tc_tbf_qopt: rate and peak rate (tc_ratespec, rate last), limit, buffer, mtu."""
_HTB_PARMS, _HTB_INIT, _HTB_RATE64 = 1, 2, 6
_HTB = struct.Struct("=8xI12xI")
"""struct tc_htb_opt: rate and ceiling (tc_ratespec, rate last), buffer."""
_HTB_GLOBAL = struct.Struct("=8xI")
"""struct tc_htb_glob: version, rate2quantum, default class."""
_PLUGIN_FREE_CLASS, _PLUGIN_CLASS = PLUGIN_HANDLE + 0x1, PLUGIN_HANDLE + 0x30
_U32_SEL, _U32_ACT, _U32_INDEV, _MATCHALL_ACT = 5, 7, 8, 2
_FLAGS = {"u32": 11, "matchall": 3}
_SKIP_SW = 2
"""TCA_CLS_FLAGS_SKIP_SW: the filter is the hardware's alone (linux/pkt_cls.h)."""
_SEL_BYTES, _KEY_BYTES = 16, 16
_ACT_KIND, _ACT_OPTIONS = 1, 2
_MIRRED_PARMS = 2
_MIRRED = struct.Struct("=IIiiiiI")
_EGRESS_REDIRECT = 1  # linux/tc_act/tc_mirred.h; a store (2) only copies
_KEEPS = frozenset({2, 4, 5, 8})
"""Actions after which a packet does not go on: SHOT, STOLEN, QUEUED, TRAP (linux/pkt_cls.h)."""
ALL_PROTOCOLS = 0x0300  # ETH_P_ALL in network byte order, as it stands in tcm_info
_BPF_NAME = 7
HOOKED = frozenset({"ingress", "clsact"})
"""Queueing disciplines that queue nothing: filters hang on them."""
GONE = frozenset({2, 19, 22})
"""ENOENT, ENODEV, EINVAL: the kernel's errors if a device, or its ingress qdisc, was removed meanwhile."""


async def read_kernel(pids: Mapping[str, int]) -> tuple[TcState, dict[str, int]]:
    """Read traffic control, and the namespace id of each process.

    Args:
        pids: process by pod uid.

    Raises:
        KernelError: netlink did not answer.
    """
    async with rtnetlink("cannot read traffic control") as netlink:
        devices = await dump(netlink, ifinfmsg, RTM_GETLINK, parse_device)
        qdiscs = await dump(netlink, tc_request, RTM_GETQDISC, parse_qdisc)
        qdiscs = await _with_classes(netlink, qdiscs, devices)
        filters: list[Filter] = []
        for index in sorted({q.device for q in qdiscs if q.kind in HOOKED}):
            filters += await read_filters(netlink, index, "ingress")
        for index in sorted({q.device for q in qdiscs if q.kind == "clsact"}):
            filters += await read_filters(netlink, index, "egress")
        numbers: dict[str, int] = {}
        for uid, pid in pids.items():
            number = await _namespace_number(netlink, pid)
            if number is not None:
                numbers[uid] = number
    ends = [device.index for device in devices if device.namespace_id in set(numbers.values())]
    programs, unknown = programs_of(ends)
    state = TcState(
        devices=tuple(devices),
        qdiscs=tuple(qdiscs),
        filters=tuple(filters),
        programs=programs,
        programs_unknown=unknown,
    )
    return state, numbers


async def _with_classes(netlink: Any, qdiscs: list[Qdisc], devices: list[Device]) -> list[Qdisc]:
    """HTB roots of the plugin's kind with the parameters of their limiting class; others as they are."""
    by_index = {device.index: device for device in devices}
    with_classes = []
    for qdisc in qdiscs:
        if qdisc.kind == "htb" and qdisc.parent == ROOT and qdisc.device in by_index:
            try:
                request = partial(tc_request, qdisc.device)
                classes = dict(await dump(netlink, request, RTM_GETTCLASS, parse_class))
            except NetlinkError as error:
                if error.code not in GONE:
                    raise
                classes = {}
            qdisc = msgspec.structs.replace(qdisc, params=plugin_htb(qdisc, classes, by_index[qdisc.device]))
        with_classes.append(qdisc)
    return with_classes


def plugin_htb(qdisc: Qdisc, classes: Mapping[int, tuple[int, int]], device: Device) -> TbfParams | None:
    """The limit of the plugin's versions 1.5.0 and 1.5.1 (``createHTB``): 1:1 without a limit beside 1:30; None of other HTBs.

    Args:
        qdisc: the root.
        classes: bytes per second and depth in ticks by handle.
        device: whose queue length each class has.
    """
    limited = classes.get(_PLUGIN_CLASS)
    if qdisc.handle != PLUGIN_HANDLE or set(classes) != {_PLUGIN_CLASS, _PLUGIN_FREE_CLASS} or limited is None:
        return None
    return TbfParams(
        rate_bytes_per_s=limited[0],
        buffer_ticks=limited[1],
        limit_bytes=min((device.queue_packets or 1000) * (device.mtu + ETHERNET_BYTES), UINT32_RANGE - 1),
        kind="htb",
        partial=qdisc.default_class == _PLUGIN_FREE_CLASS & 0xFFFF,
    )


def parse_class(data: bytes, begin: int, end: int) -> tuple[int, tuple[int, int]] | None:
    """RTM_NEWTCLASS of HTB: handle, and rate in bytes per second with the depth in ticks (struct tc_htb_opt)."""
    _, _, handle, _, _ = TC.unpack_from(data, begin)
    options = nested(data, attributes(data, begin + TC.size, end), _OPTIONS)
    span = options.get(_HTB_PARMS)
    if span is None or span[1] - span[0] < _HTB.size:
        return None
    rate, buffer = _HTB.unpack_from(data, span[0])
    if _HTB_RATE64 in options:
        rate = int.from_bytes(data[slice(*options[_HTB_RATE64])], "little")
    return handle, (rate, buffer)


def programs_of(indexes: Iterable[int]) -> tuple[tuple[Filter, ...], str]:
    """The programs on some devices, or why the kernel does not say."""
    try:
        return tuple(program for index in indexes for program in read_programs(index)), ""
    except ProgramsUnknown as reason:
        return (), str(reason)


async def read_filters(netlink: Any, index: int, hook: Hook) -> list[Filter]:
    """The filters at one of a device's hooks; none when the device is gone."""
    request = partial(tc_request, index, INGRESS_HOOK if hook == "ingress" else EGRESS_HOOK)
    try:
        return await dump(netlink, request, RTM_GETTFILTER, partial(parse_filter, hook=hook))
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
    return None if number is None or number in {-1, UINT32_RANGE - 1} else int(number)


def parse_device(data: bytes, begin: int, end: int) -> Device:
    """RTM_NEWLINK: struct ifinfomsg and IFLA_* attributes."""
    _, _, index, flags, _ = IFINFO.unpack_from(data, begin)
    spans = attributes(data, begin + IFINFO.size, end)
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
        physical=not kind and not flags & IFF_LOOPBACK,
        master=read_u32(data, spans, _MASTER),
        queue_packets=read_u32(data, spans, _TXQLEN) or 0,
        up=bool(flags & IFF_UP),
    )


def parse_qdisc(data: bytes, begin: int, end: int) -> Qdisc:
    """RTM_NEWQDISC: struct tcmsg and TCA_* attributes."""
    _, index, handle, parent, _ = TC.unpack_from(data, begin)
    spans = attributes(data, begin + TC.size, end)
    kind = read_text(data, spans, _KIND)
    options = nested(data, spans, _OPTIONS) if kind in {"tbf", "htb"} else {}
    params = _tbf_params(data, options) if kind == "tbf" else None
    default_class = None
    if kind == "htb" and (span := options.get(_HTB_INIT)) is not None and span[1] - span[0] >= _HTB_GLOBAL.size:
        (default_class,) = _HTB_GLOBAL.unpack_from(data, span[0])
    return Qdisc(
        device=index,
        kind=kind,
        handle=handle,
        parent=parent,
        params=params,
        default_class=default_class,
        shared_block=read_u32(data, spans, _INGRESS_BLOCK) or 0,
    )


def _tbf_params(data: bytes, options: Spans) -> TbfParams | None:
    span = options.get(_TBF_PARMS)
    if span is None or span[1] - span[0] < _TBF.size:
        return None
    rate, _, limit, buffer, _ = _TBF.unpack_from(data, span[0])
    if _TBF_RATE64 in options:
        rate = int.from_bytes(data[slice(*options[_TBF_RATE64])], "little")
    return TbfParams(rate_bytes_per_s=rate, buffer_ticks=buffer, limit_bytes=limit)


def parse_filter(data: bytes, begin: int, end: int, hook: Hook = "ingress") -> Filter | None:
    """RTM_NEWTFILTER: struct tcmsg and TCA_* attributes. u32's hash tables, which match nothing, are left out."""
    _, index, _, _, info = TC.unpack_from(data, begin)
    spans = attributes(data, begin + TC.size, end)
    kind = read_text(data, spans, _KIND)
    options = nested(data, spans, _OPTIONS)
    if kind == "u32" and _U32_SEL not in options:
        return None
    everything = kind == "matchall" or (kind == "u32" and _has_no_condition(data, *options[_U32_SEL]))
    skipped = (read_u32(data, options, _FLAGS.get(kind, -1)) or 0) & _SKIP_SW
    if read_u32(data, spans, _CHAIN) or skipped or _U32_INDEV in options:
        everything = False  # no packet comes by, or not all do
    target, polices, loses_packets = None, False, False
    for action in _actions(data, kind, options):
        polices = polices or read_text(data, action, _ACT_KIND) == "police"
        redirect = _redirect(data, action)
        if redirect is not None and target is None:
            target, loses_packets = redirect
    return Filter(
        device=index,
        kind=kind,
        hook=hook,
        priority=info >> 16,
        name=read_text(data, options, _BPF_NAME) if kind == "bpf" else "",
        matches_all=everything and info & 0xFFFF == ALL_PROTOCOLS,
        redirects_to=target,
        polices=polices,
        loses_packets=loses_packets,
    )


def each_action(data: bytes, begin: int, end: int) -> Iterator[tuple[Spans, bool]]:
    """The actions of a filter in RTM_NEWTFILTER, and whether each redirects."""
    spans = attributes(data, begin + TC.size, end)
    for action in _actions(data, read_text(data, spans, _KIND), nested(data, spans, _OPTIONS)):
        yield action, _redirect(data, action) is not None


def _actions(data: bytes, kind: str, options: Spans) -> list[Spans]:
    numbered = nested(data, options, {"u32": _U32_ACT, "matchall": _MATCHALL_ACT}.get(kind, -1))
    return [attributes(data, *span) for span in numbered.values()]


def _has_no_condition(data: bytes, begin: int, end: int) -> bool:
    """Whether all masks of a u32 selector are zero: struct tc_u32_sel with its keys."""
    keys = data[begin + _SEL_BYTES : end]
    return not any(any(keys[i : i + 4]) for i in range(0, len(keys), _KEY_BYTES))


def _redirect(data: bytes, action: Spans) -> tuple[int, bool] | None:
    """The target of a mirred action (0 if it is gone), and whether packets are then lost."""
    if read_text(data, action, _ACT_KIND) != "mirred":
        return None
    span = nested(data, action, _ACT_OPTIONS).get(_MIRRED_PARMS)
    if span is None or span[1] - span[0] < _MIRRED.size:
        return None
    _, _, then, _, _, eaction, target = _MIRRED.unpack_from(data, span[0])
    return (int(target), then in _KEEPS) if eaction == _EGRESS_REDIRECT else None
