"""Reads devices, qdiscs and filters, and the ids of processes' network namespaces.

A pod's namespace is never entered. The kernel numbers the namespaces that the host's devices lead to (IFLA_LINK_NETNSID)
and returns the number of a process's namespace (RTM_GETNSID), so the two are matched from outside, without SYS_ADMIN.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_GETLINK, RTM_GETQDISC, RTM_GETTFILTER
from pyroute2.netlink.rtnl.ifinfmsg import IFF_UP, ifinfmsg

from agent import rtnetlink as rtnl
from agent.bandwidth.state import EGRESS_HOOK, ETHERNET_MTU, INGRESS_HOOK, Device, Filter, Hook, TcState

_IFLA_MTU, _IFLA_IFALIAS = 4, 20
_TCA_CHAIN = 11
_TCA_U32_SEL, _TCA_U32_INDEV, _TCA_U32_MARK, _TCA_BPF_NAME = 5, 8, 10, 7
_TCA_ACT_BY_KIND = {"u32": 7, "matchall": 2}
"""TCA_U32_ACT, TCA_MATCHALL_ACT."""
_TCA_FLAGS_BY_KIND = {"u32": 11, "matchall": 3}
"""TCA_U32_FLAGS, TCA_MATCHALL_FLAGS."""
_SKIP_SW = 2
"""TCA_CLS_FLAGS_SKIP_SW: the filter is offloaded, and software packets never match (linux/pkt_cls.h)."""
_U32_SEL_BYTES, _U32_KEY_BYTES, _U32_MASK_BYTES = 16, 16, 4
"""Sizes of struct tc_u32_sel without keys, of struct tc_u32_key, and of the mask at its start."""
_TCA_ACT_KIND, _TCA_ACT_OPTIONS, _TCA_ACT_STATS = 1, 2, 4
_TCA_MIRRED_PARMS = 2
_MIRRED = struct.Struct("=IIiiiiI")
"""struct tc_mirred: index, capab, action, refcnt, bindcnt, eaction, ifindex."""
_EGRESS_REDIRECT = 1
"""TCA_EGRESS_REDIR (linux/tc_act/tc_mirred.h); TCA_EGRESS_MIRROR only copies."""
_FINAL_VERDICTS = frozenset({2, 4, 5, 8})
"""Verdicts after which a packet is not processed further: TC_ACT_SHOT, STOLEN, QUEUED, TRAP (linux/pkt_cls.h)."""
PRIORITY_SHIFT, _PROTOCOL_MASK = 16, 0xFFFF
"""tcm_info of a filter: priority in the upper half, protocol in the lower (TC_H_MAKE)."""
ALL_PROTOCOLS = 0x0300
"""ETH_P_ALL in network byte order, as in tcm_info."""
_NAMESPACE_NOT_ASSIGNED = frozenset({-1, 0xFFFFFFFF})
"""NETNSA_NSID_NOT_ASSIGNED (linux/net_namespace.h), signed or not."""
_DEVICE_GONE_ERRNOS = frozenset({errno.ENOENT, errno.ENODEV, errno.EINVAL})
"""The kernel's errors if a device, or its ingress qdisc, was removed meanwhile."""


async def read_tc_state(pid_by_uid: Mapping[str, int]) -> tuple[TcState, dict[str, int]]:
    """Read devices, qdiscs and filters, and the id of each process's network namespace, by pod uid.

    Raises:
        KernelError: netlink refused or did not answer.
    """
    async with rtnl.open_rtnetlink("cannot read traffic control") as netlink:
        devices = await rtnl.dump(netlink, ifinfmsg, RTM_GETLINK, parse_device)
        qdiscs = await rtnl.dump(netlink, rtnl.make_tc_request, RTM_GETQDISC, rtnl.parse_qdisc)
        filters: list[Filter] = []
        for index in sorted({q.device_index for q in qdiscs if q.kind in {"ingress", "clsact"}}):
            filters += await read_filters(netlink, index, "ingress")
        for index in sorted({q.device_index for q in qdiscs if q.kind == "clsact"}):
            filters += await read_filters(netlink, index, "egress")
        namespace_ids: dict[str, int] = {}
        for uid, pid in pid_by_uid.items():
            namespace_id = await _read_namespace_id(netlink, pid)
            if namespace_id is not None:
                namespace_ids[uid] = namespace_id
    return TcState(devices=tuple(devices), qdiscs=tuple(qdiscs), filters=tuple(filters)), namespace_ids


async def read_filters(netlink: Any, index: int, hook: Hook) -> list[Filter]:
    """Read the filters at one of a device's hooks; none if the device is gone."""
    request = partial(rtnl.make_tc_request, index, INGRESS_HOOK if hook == "ingress" else EGRESS_HOOK)
    try:
        return await rtnl.dump(netlink, request, RTM_GETTFILTER, partial(parse_filter, hook=hook))
    except NetlinkError as error:
        if error.code in _DEVICE_GONE_ERRNOS:
            return []
        raise


async def _read_namespace_id(netlink: Any, pid: int) -> int | None:
    """Read the kernel's id of a process's network namespace; None if no link of the host leads there, or the process has ended."""
    try:
        answer = await netlink.get_netnsid(pid=pid)
    except NetlinkError:
        return None  # The process has ended.
    namespace_id = answer["nsid"] if answer else None
    return None if namespace_id is None or namespace_id in _NAMESPACE_NOT_ASSIGNED else int(namespace_id)


def parse_device(data: bytes, begin: int, end: int) -> Device:
    """Parse an RTM_NEWLINK message: struct ifinfomsg and IFLA_* attributes."""
    _, _, index, flags, _ = rtnl.IFINFO.unpack_from(data, begin)
    spans = rtnl.parse_attributes(data, begin + rtnl.IFINFO.size, end)
    return Device(
        index=index,
        name=rtnl.read_text(data, spans, rtnl.IFLA_IFNAME),
        kind=rtnl.read_text(data, rtnl.parse_nested(data, spans, rtnl.IFLA_LINKINFO), rtnl.IFLA_INFO_KIND),
        mtu=rtnl.read_number(data, spans, _IFLA_MTU) or ETHERNET_MTU,
        alias=rtnl.read_text(data, spans, _IFLA_IFALIAS),
        namespace_id=rtnl.read_number(data, spans, rtnl.IFLA_LINK_NETNSID),
        peer_index=rtnl.read_number(data, spans, rtnl.IFLA_LINK) or None,
        is_up=bool(flags & IFF_UP),
    )


def parse_filter(data: bytes, begin: int, end: int, hook: Hook = "ingress") -> Filter | None:
    """Parse an RTM_NEWTFILTER message: struct tcmsg and TCA_* attributes. None for u32's hash tables, which match nothing."""
    _, index, _, _, info = rtnl.TC.unpack_from(data, begin)
    spans = rtnl.parse_attributes(data, begin + rtnl.TC.size, end)
    kind = rtnl.read_text(data, spans, rtnl.TCA_KIND)
    options = rtnl.parse_nested(data, spans, rtnl.TCA_OPTIONS)
    if kind == "u32" and _TCA_U32_SEL not in options:
        return None
    matches_all = kind == "matchall" or (kind == "u32" and _matches_every_packet(data, *options[_TCA_U32_SEL]))
    flags = rtnl.read_number(data, options, _TCA_FLAGS_BY_KIND[kind]) if kind in _TCA_FLAGS_BY_KIND else None
    is_in_other_chain = bool(rtnl.read_number(data, spans, _TCA_CHAIN))
    has_condition = _TCA_U32_INDEV in options or _TCA_U32_MARK in options
    sees_every_packet = not (is_in_other_chain or (flags or 0) & _SKIP_SW or has_condition)
    filter_ = Filter(
        device_index=index,
        kind=kind,
        hook=hook,
        priority=info >> PRIORITY_SHIFT,
        program_name=rtnl.read_text(data, options, _TCA_BPF_NAME) if kind == "bpf" else "",
        matches_all=matches_all and sees_every_packet and info & _PROTOCOL_MASK == ALL_PROTOCOLS,
    )
    actions = rtnl.parse_nested(data, options, _TCA_ACT_BY_KIND[kind]) if kind in _TCA_ACT_BY_KIND else {}
    for span in actions.values():
        filter_ = _add_action(filter_, data, rtnl.parse_attributes(data, *span))
    return filter_


def _matches_every_packet(data: bytes, begin: int, end: int) -> bool:
    """Whether the masks of all keys of a u32 selector are zero."""
    keys = data[begin + _U32_SEL_BYTES : end]
    return not any(any(keys[i : i + _U32_MASK_BYTES]) for i in range(0, len(keys), _U32_KEY_BYTES))


def _add_action(filter_: Filter, data: bytes, action: rtnl.Spans) -> Filter:
    """Add an action to a filter if it polices or redirects packets; the first redirect gives the target."""
    kind = rtnl.read_text(data, action, _TCA_ACT_KIND)
    if kind == "police":
        return replace(filter_, has_police_action=True)
    span = rtnl.parse_nested(data, action, _TCA_ACT_OPTIONS).get(_TCA_MIRRED_PARMS)
    if kind != "mirred" or span is None or span[1] - span[0] < _MIRRED.size:
        return filter_
    _, _, verdict, _, _, mirred_action, target_index = _MIRRED.unpack_from(data, span[0])
    if mirred_action != _EGRESS_REDIRECT:
        return filter_
    if filter_.target_index is None:
        filter_ = replace(filter_, target_index=int(target_index), drops_if_target_gone=verdict in _FINAL_VERDICTS)
    counted_bytes = rtnl.read_counted_bytes(data, rtnl.parse_nested(data, action, _TCA_ACT_STATS))
    return replace(filter_, redirected_bytes=filter_.redirected_bytes + counted_bytes)
