"""Sets traffic control with pyroute2: token buckets, intermediate devices, and the filters that lead to them."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_GETLINK
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.tcmsg import plugins, sched_tbf
from pyroute2.protocols import ETH_P_ALL

from agent.bandwidth.state import (
    ALIAS_PREFIX,
    HOOK_MARK,
    LAST_PRIORITY,
    PLUGIN_HANDLE,
    RECEIVED_HOOK,
    ROOT,
    Action,
    Filter,
    LimitEgress,
    LimitIngress,
    Unlimit,
)
from agent.bandwidth.tbf import WORD, Shape
from agent.bandwidth.traffic_control import ALL_PROTOCOLS, parse_device, read_filters
from agent.netlink import KernelError
from agent.rtnetlink import dump, rtnetlink

_TBF_CLASS = 0x10001


class _TbfOptions(sched_tbf.options):  # type: ignore[misc]
    """pyroute2 0.9 stops at 34 Gbit/s, where a rate no longer fits into 32 bits; the kernel has 64 (linux/pkt_sched.h)."""

    nla_map = (*sched_tbf.options.nla_map, ("TCA_TBF_RATE64", "uint64"), ("TCA_TBF_PRATE64", "uint64"))


def _tbf_parameters(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a `Shape` exactly; pyroute2's own would round a burst in bytes to another number of ticks."""
    shape: Shape = arguments["shape"]
    parameters = {
        "rate": min(shape.rate_bytes_per_s, WORD - 1),
        "buffer": shape.buffer_ticks,
        "limit": shape.limit_bytes,
        "mtu": 0,
    }
    attributes: list[list[Any]] = [["TCA_TBF_PARMS", parameters], ["TCA_TBF_RTAB", True]]
    if shape.rate_bytes_per_s >= WORD:
        attributes.append(["TCA_TBF_RATE64", shape.rate_bytes_per_s])
    return {"attrs": attributes}


plugins["tbf"] = SimpleNamespace(
    options=_TbfOptions, parent=sched_tbf.parent, get_parameters=_tbf_parameters, __name__="netaware tbf"
)


async def execute(action: Action) -> None:
    """Do one thing; doing it again changes nothing.

    Raises:
        KernelError: the kernel refused, or the device is gone.
    """
    async with rtnetlink(f"{type(action).__name__} on {action.name}") as netlink:
        if isinstance(action, LimitIngress):
            await _set_root(netlink, action.device, action.shape, displaces=action.displaces)
        elif isinstance(action, LimitEgress):
            await _limit_egress(netlink, action)
        elif isinstance(action, Unlimit):
            await _unlimit(netlink, action)
        else:
            await _remove(netlink, action.name)


async def _set_root(netlink: Any, device: int, shape: Shape, *, displaces: bool) -> None:
    if displaces:  # the kernel does not change one kind into another under the same handle
        await netlink.tc("del", index=device, handle=PLUGIN_HANDLE, parent=ROOT)
    await netlink.tc("replace", "tbf", index=device, handle=PLUGIN_HANDLE, shape=shape)


async def _limit_egress(netlink: Any, action: LimitEgress) -> None:
    """Bucket, then filter. What was made for a repair that fails does not stay."""
    through, made = await _intermediate(netlink, action)
    try:
        # The bucket before the filter: packets must not find an intermediate device that does not limit yet.
        await _set_root(netlink, through, action.shape, displaces=action.displaces)
        if action.redirect:
            await _redirect(netlink, action, through)
    except (NetlinkError, KernelError, OSError, asyncio.CancelledError):
        if made:
            await _remove(netlink, action.through)
        raise


async def _intermediate(netlink: Any, action: LimitEgress) -> tuple[int, bool]:
    """Index of the intermediate device, up, and whether it was made here."""
    found = await netlink.link_lookup(ifname=action.through)
    made = not found
    if made:
        await netlink.link("add", ifname=action.through, kind="ifb", mtu=action.mtu, txqlen=0)
        found = await netlink.link_lookup(ifname=action.through)
        if not found:
            raise NetlinkError(errno.ENODEV, f"{action.through} has gone again")
        await netlink.link("set", index=found[0], ifalias=action.alias)
    await netlink.link("set", index=found[0], state="up")
    return found[0], made


async def _redirect(netlink: Any, action: LimitEgress, through: int) -> None:
    """The filter, behind all others: a packet that it takes skips every filter after it when it comes back.

    It hangs on what is there, else on what the action says. Whoever attached something since the rules looked makes this fail.
    """
    device = action.device
    try:
        await netlink.tc("add", action.hook, index=device)
    except NetlinkError as error:
        if error.code != errno.EEXIST:
            raise
    else:
        await netlink.link("set", index=through, ifalias=action.alias + HOOK_MARK + action.hook)
    existing = {found.index for found in await dump(netlink, ifinfmsg, RTM_GETLINK, parse_device)}
    for one in await read_filters(netlink, device, "received"):
        if one.redirects_to == through:
            if one.matches_all:
                return
            continue  # it lets some packets escape; ours comes behind it
        if one.redirects_to is None or one.redirects_to in existing:
            raise KernelError(f"LimitEgress on {action.name}: a filter of somebody else's has appeared")
        await _remove_filter(netlink, device, one)
    await netlink.tc(
        "add-filter",
        "u32",
        index=device,
        parent=RECEIVED_HOOK,
        protocol=ETH_P_ALL,
        prio=LAST_PRIORITY,
        target=_TBF_CLASS,
        keys=["0x0/0x0+0"],
        action={"kind": "mirred", "direction": "egress", "ifindex": through, "action": "redirect"},
    )


async def _remove_filter(netlink: Any, device: int, one: Filter) -> None:
    await netlink.tc("del-filter", index=device, parent=RECEIVED_HOOK, info=one.priority << 16 | ALL_PROTOCOLS)


async def _unlimit(netlink: Any, action: Unlimit) -> None:
    if action.direction == "ingress":
        await netlink.tc("del", index=action.device, handle=PLUGIN_HANDLE, parent=ROOT)
        return
    devices = await dump(netlink, ifinfmsg, RTM_GETLINK, parse_device)
    through = next((device for device in devices if device.name == action.through), None)
    filters = await read_filters(netlink, action.device, "received")
    ours = [one for one in filters if through is not None and one.redirects_to == through.index]
    for one in ours:
        await _remove_filter(netlink, action.device, one)
    hook = through.alias.partition(HOOK_MARK)[2] if through is not None else ""
    if through is not None and through.alias.startswith(ALIAS_PREFIX) and hook:
        await _remove_hook(netlink, action.device, hook, others=len(filters) - len(ours))
    await _remove(netlink, action.through)


async def _remove_hook(netlink: Any, device: int, hook: str, others: int) -> None:
    """Take away the ``clsact`` or ``ingress`` that we made, unless somebody uses it by now."""
    if not others and not await read_filters(netlink, device, "sent"):
        await netlink.tc("del", hook, index=device)


async def _remove(netlink: Any, name: str) -> None:
    for index in await netlink.link_lookup(ifname=name):
        await netlink.link("del", index=index)
