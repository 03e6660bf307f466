"""Writes traffic control with pyroute2: token buckets, intermediate devices, and the filters that redirect to them."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.tcmsg import plugins, sched_tbf
from pyroute2.protocols import ETH_P_ALL

from agent.bandwidth.state import (
    HOOK_MARK,
    INGRESS_HOOK,
    LAST_PRIORITY,
    OUR_HANDLE,
    ROOT,
    Action,
    LimitEgress,
    LimitIngress,
    RemoveLimit,
)
from agent.bandwidth.tbf import UINT32_RANGE, TbfParams
from agent.bandwidth.traffic_control import ALL_PROTOCOLS
from agent.netlink import KernelError
from agent.rtnetlink import rtnetlink

_TBF_CLASS = 0x10001


class _TbfOptions(sched_tbf.options):  # type: ignore[misc]
    """pyroute2 0.9 stops at 34 Gbit/s, where a rate no longer fits into 32 bits; the kernel has 64 (linux/pkt_sched.h)."""

    nla_map = (*sched_tbf.options.nla_map, ("TCA_TBF_RATE64", "uint64"), ("TCA_TBF_PRATE64", "uint64"))


def _tbf_parameters(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The exact options of a `TbfParams`; pyroute2's helper would round the ticks."""
    params: TbfParams = arguments["params"]
    parameters = {
        "rate": min(params.rate_bytes_per_s, UINT32_RANGE - 1),
        "buffer": params.buffer_ticks,
        "limit": params.limit_bytes,
        "mtu": 0,
    }
    attributes: list[list[Any]] = [["TCA_TBF_PARMS", parameters], ["TCA_TBF_RTAB", True]]
    if params.rate_bytes_per_s >= UINT32_RANGE:
        attributes.append(["TCA_TBF_RATE64", params.rate_bytes_per_s])
    return {"attrs": attributes}


plugins["tbf"] = SimpleNamespace(
    options=_TbfOptions, parent=sched_tbf.parent, get_parameters=_tbf_parameters, __name__="netaware tbf"
)


async def execute(action: Action) -> None:
    """Execute one action. Idempotent.

    Raises:
        KernelError: the kernel refused, or the device is gone.
    """
    async with rtnetlink(f"{type(action).__name__} on {action.name}") as netlink:
        if isinstance(action, LimitIngress):
            await _set_root(netlink, action.device, action.params)
        elif isinstance(action, LimitEgress):
            await _limit_egress(netlink, action)
        elif isinstance(action, RemoveLimit):
            await _remove_limit(netlink, action)
        else:
            await _remove(netlink, action.name)


async def _set_root(netlink: Any, device: int, params: TbfParams) -> None:
    await netlink.tc("replace", "tbf", index=device, handle=OUR_HANDLE, params=params)


async def _limit_egress(netlink: Any, action: LimitEgress) -> None:
    """Create the bucket, then the filter; if that fails, remove what was created."""
    through, created = await _intermediate(netlink, action)
    try:
        # The bucket comes before the filter, so that no packet passes an unlimited intermediate device.
        await _set_root(netlink, through, action.params)
        if action.add_hook:
            await netlink.tc("add", "ingress", index=action.device)
            await netlink.link("set", index=through, ifalias=action.alias + HOOK_MARK)
        for priority in action.stale_filters:
            await _remove_filter(netlink, action.device, priority)
        if action.add_filter:
            await _add_filter(netlink, action.device, through)
    except (NetlinkError, KernelError, OSError, asyncio.CancelledError):
        if created:
            await _remove(netlink, action.through)
        raise


async def _intermediate(netlink: Any, action: LimitEgress) -> tuple[int, bool]:
    """Index of the intermediate device, up, and whether it was made here."""
    indexes = await netlink.link_lookup(ifname=action.through)
    created = not indexes
    if created:
        await netlink.link("add", ifname=action.through, kind="ifb", mtu=action.mtu, txqlen=0)
        indexes = await netlink.link_lookup(ifname=action.through)
        if not indexes:
            raise NetlinkError(errno.ENODEV, f"{action.through} has gone again")
        await netlink.link("set", index=indexes[0], ifalias=action.alias)
    await netlink.link("set", index=indexes[0], state="up")
    return indexes[0], created


async def _add_filter(netlink: Any, device: int, through: int) -> None:
    """Add it after all other filters, because a redirected packet skips those that follow."""
    await netlink.tc(
        "add-filter",
        "u32",
        index=device,
        parent=INGRESS_HOOK,
        protocol=ETH_P_ALL,
        prio=LAST_PRIORITY,
        target=_TBF_CLASS,
        keys=["0x0/0x0+0"],
        action={"kind": "mirred", "direction": "egress", "ifindex": through, "action": "redirect"},
    )


async def _remove_filter(netlink: Any, device: int, priority: int) -> None:
    await netlink.tc("del-filter", index=device, parent=INGRESS_HOOK, info=priority << 16 | ALL_PROTOCOLS)


async def _remove_limit(netlink: Any, action: RemoveLimit) -> None:
    if action.direction == "ingress":
        await netlink.tc("del", index=action.device, handle=OUR_HANDLE, parent=ROOT)
        return
    for priority in action.filters:
        await _remove_filter(netlink, action.device, priority)
    if action.remove_hook:
        await netlink.tc("del", "ingress", index=action.device)
    await _remove(netlink, action.through)


async def _remove(netlink: Any, name: str) -> None:
    for index in await netlink.link_lookup(ifname=name):
        await netlink.link("del", index=index)
