"""Sets traffic control over rtnetlink: token buckets, intermediate devices, and the filters that lead to them.

Layouts are those of linux/pkt_sched.h, linux/pkt_cls.h and linux/tc_act/tc_mirred.h.
"""

from __future__ import annotations

import asyncio
import socket
import struct

from agent.bandwidth.state import (
    HOOK_MARK,
    HOOKS_HANDLE,
    INGRESS_HOOK,
    LAST_PRIORITY,
    OUR_HANDLE,
    ROOT,
    Action,
    LimitEgress,
    LimitIngress,
    RemoveLimit,
)
from agent.bandwidth.tbf import WORD, TbfParams
from agent.bandwidth.traffic_control import ALL_PROTOCOLS
from agent.netlink import KernelError
from agent.rtnetlink import (
    IFF_UP,
    IFINFO,
    TC,
    Rtnetlink,
    encode_attribute,
    encode_text,
    encode_u32,
    rtnetlink,
)

_NEW_LINK, _DEL_LINK, _NEW_QDISC, _DEL_QDISC, _NEW_FILTER, _DEL_FILTER = 16, 17, 36, 37, 44, 45
_REPLACE, _EXCLUSIVE, _CREATE = 0x100, 0x200, 0x400
_IFNAME, _MTU, _TXQLEN, _LINKINFO, _IFALIAS, _INFO_KIND = 3, 4, 13, 18, 20, 1
_KIND, _OPTIONS = 1, 2
_INGRESS = 0xFFFFFFF1
"""TC_H_INGRESS, the parent of ``ingress``."""
_TBF_PARMS, _TBF_RATE64 = 1, 4
_TBF = struct.Struct("=BBHhHI12xIIxxxx")
"""struct tc_tbf_qopt: of the rate the link layer and the rate itself, no peak rate, limit, buffer, no mtu."""
_ETHERNET = 1
_U32_CLASSID, _U32_SEL, _U32_ACT = 1, 5, 7
_MATCH_ALL = struct.pack("=BBBxHHhhI", 1, 0, 1, 0, 0, 0, 0, 0) + bytes(16)
"""struct tc_u32_sel, terminal, with one key whose mask is 0."""
_ACT_KIND, _ACT_OPTIONS, _MIRRED_PARMS = 1, 2, 2
_MIRRED = struct.Struct("=IIiiiiI")
_STOLEN, _EGRESS_REDIRECT = 4, 1
_TBF_CLASS = 0x10001


async def execute(action: Action) -> None:
    """Do one thing; doing it again changes nothing.

    Raises:
        KernelError: the kernel refused, or the device is gone.
    """
    async with rtnetlink(f"{type(action).__name__} on {action.name}") as netlink:
        if isinstance(action, LimitIngress):
            await set_token_bucket(netlink, action.device, action.shape)
        elif isinstance(action, LimitEgress):
            await _limit_egress(netlink, action)
        elif isinstance(action, RemoveLimit):
            await _remove_limit(netlink, action)
        else:
            await _remove(netlink, action.name)


async def set_token_bucket(netlink: Rtnetlink, device: int, shape: TbfParams, handle: int = OUR_HANDLE) -> None:
    """Put a token bucket at a device's root, in exactly so many ticks: a burst in bytes would be rounded.

    Rates beyond 32 bits, 34 Gbit/s, have an attribute of their own.
    """
    rate = min(shape.rate_bytes_per_s, WORD - 1)
    options = encode_attribute(
        _TBF_PARMS, _TBF.pack(0, _ETHERNET, 0, 0, 0, rate, shape.limit_bytes, shape.buffer_ticks)
    )
    if shape.rate_bytes_per_s >= WORD:
        options += encode_attribute(_TBF_RATE64, struct.pack("=Q", shape.rate_bytes_per_s))
    body = TC.pack(0, device, handle, ROOT, 0) + encode_text(_KIND, "tbf") + encode_attribute(_OPTIONS, options)
    await netlink.change(_NEW_QDISC, body, _CREATE | _REPLACE)


async def _limit_egress(netlink: Rtnetlink, action: LimitEgress) -> None:
    """Bucket, then filter. What was made for a repair that fails does not stay."""
    through, made = await _intermediate(netlink, action)
    try:
        # The bucket before the filter: packets must not find an intermediate device that does not limit yet.
        await set_token_bucket(netlink, through, action.shape)
        if action.add_hook:
            body = TC.pack(0, action.device, HOOKS_HANDLE, _INGRESS, 0) + encode_text(_KIND, "ingress")
            await netlink.change(_NEW_QDISC, body, _CREATE | _EXCLUSIVE)
            await _set_alias(netlink, through, action.alias + HOOK_MARK)
        for priority in action.stale_filters:
            await _remove_filter(netlink, action.device, priority)
        if action.add_filter:
            await _add_filter(netlink, action.device, through)
    except (KernelError, OSError, asyncio.CancelledError):
        if made:
            await _remove(netlink, action.through)
        raise


async def _intermediate(netlink: Rtnetlink, action: LimitEgress) -> tuple[int, bool]:
    """Index of the intermediate device, up, and whether it was made here."""
    index = _index_of(action.through)
    made = index is None
    if index is None:
        body = IFINFO.pack(0, 0, 0, 0, 0) + encode_text(_IFNAME, action.through) + encode_u32(_MTU, action.mtu)
        kind = encode_attribute(_LINKINFO, encode_text(_INFO_KIND, "ifb"))
        await netlink.change(_NEW_LINK, body + encode_u32(_TXQLEN, 0) + kind, _CREATE | _EXCLUSIVE)
        index = socket.if_nametoindex(action.through)
        await _set_alias(netlink, index, action.alias)
    await netlink.change(_NEW_LINK, IFINFO.pack(0, 0, index, IFF_UP, IFF_UP))
    return index, made


def _index_of(name: str) -> int | None:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return None


async def _set_alias(netlink: Rtnetlink, index: int, alias: str) -> None:
    await netlink.change(_NEW_LINK, IFINFO.pack(0, 0, index, 0, 0) + encode_attribute(_IFALIAS, alias.encode()))


async def _add_filter(netlink: Rtnetlink, device: int, through: int) -> None:
    """Behind all others: a packet that it takes skips every filter after it when it comes back."""
    mirred = _MIRRED.pack(0, 0, _STOLEN, 0, 0, _EGRESS_REDIRECT, through)
    redirect = encode_text(_ACT_KIND, "mirred") + encode_attribute(
        _ACT_OPTIONS, encode_attribute(_MIRRED_PARMS, mirred)
    )
    options = encode_u32(_U32_CLASSID, _TBF_CLASS) + encode_attribute(_U32_SEL, _MATCH_ALL)
    options += encode_attribute(_U32_ACT, encode_attribute(1, redirect))
    body = _filter(device, LAST_PRIORITY) + encode_text(_KIND, "u32") + encode_attribute(_OPTIONS, options)
    await netlink.change(_NEW_FILTER, body, _CREATE | _EXCLUSIVE)


async def _remove_filter(netlink: Rtnetlink, device: int, priority: int) -> None:
    await netlink.change(_DEL_FILTER, _filter(device, priority))


def _filter(device: int, priority: int) -> bytes:
    return TC.pack(0, device, 0, INGRESS_HOOK, priority << 16 | ALL_PROTOCOLS)


async def _remove_limit(netlink: Rtnetlink, action: RemoveLimit) -> None:
    if action.direction == "ingress":
        await netlink.change(_DEL_QDISC, TC.pack(0, action.device, OUR_HANDLE, ROOT, 0))
        return
    for priority in action.filters:
        await _remove_filter(netlink, action.device, priority)
    if action.remove_hook:
        await netlink.change(_DEL_QDISC, TC.pack(0, action.device, HOOKS_HANDLE, _INGRESS, 0))
    await _remove(netlink, action.through)


async def _remove(netlink: Rtnetlink, name: str) -> None:
    index = _index_of(name)
    if index is not None:
        await netlink.change(_DEL_LINK, IFINFO.pack(0, 0, index, 0, 0))
