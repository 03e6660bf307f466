"""Sets and removes traffic control with pyroute2: token buckets, ifbs, and the filters that redirect to them."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.tcmsg import plugins, sched_tbf
from pyroute2.protocols import ETH_P_ALL

from agent.bandwidth.state import (
    INGRESS_HOOK,
    INGRESS_QDISC_SUFFIX,
    LAST_PRIORITY,
    OUR_HANDLE,
    Action,
    RemoveLimit,
    SetEgressLimit,
    SetIngressLimit,
)
from agent.bandwidth.tbf import UINT32_RANGE
from agent.bandwidth.tc_reader import ALL_PROTOCOLS, PRIORITY_SHIFT
from agent.rtnetlink import ROOT, TbfParams, open_rtnetlink

_FLOW_ID = 0x10001
"""1:1, as in the filter of the CNI bandwidth plugin; a redirect ignores it."""


class _Tbf64BitOptions(sched_tbf.options):  # type: ignore[misc]
    """Options of a tbf with 64-bit rates (linux/pkt_sched.h), which pyroute2 0.9 lacks: its limit is 34 Gbit/s."""

    nla_map = (*sched_tbf.options.nla_map, ("TCA_TBF_RATE64", "uint64"), ("TCA_TBF_PRATE64", "uint64"))


def _encode_tbf_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Encode the argument ``params``, a `TbfParams`, exactly; pyroute2's helper rounds the ticks."""
    params: TbfParams = arguments["params"]
    tbf_qopt = {
        "rate": min(params.rate_bytes_per_s, UINT32_RANGE - 1),
        "buffer": params.buffer_ticks,
        "limit": params.limit_bytes,
        "mtu": 0,
    }
    attributes: list[list[Any]] = [["TCA_TBF_PARMS", tbf_qopt], ["TCA_TBF_RTAB", True]]
    if params.rate_bytes_per_s >= UINT32_RANGE:
        attributes.append(["TCA_TBF_RATE64", params.rate_bytes_per_s])
    return {"attrs": attributes}


# Replaces pyroute2's own helper for tbf in the whole process.
plugins["tbf"] = SimpleNamespace(
    options=_Tbf64BitOptions, parent=sched_tbf.parent, get_parameters=_encode_tbf_options, __name__="netaware tbf"
)


async def execute(action: Action) -> None:
    """Execute one action, which was planned from a fresh snapshot. If a step fails, remove the ifb and qdisc that earlier steps added.

    Raises:
        KernelError: the kernel did not answer, or refused, for example because a device changed since the snapshot.
    """
    async with open_rtnetlink(f"{type(action).__name__} on {action.device_name}") as netlink:
        if isinstance(action, SetIngressLimit):
            await _replace_tbf(netlink, action.device_index, action.params)
        elif isinstance(action, SetEgressLimit):
            await _limit_egress(netlink, action)
        elif isinstance(action, RemoveLimit):
            await _remove_limit(netlink, action)
        else:
            await _delete_link(netlink, action.device_name)


async def _replace_tbf(netlink: Any, device_index: int, params: TbfParams) -> None:
    await netlink.tc("replace", "tbf", index=device_index, handle=OUR_HANDLE, params=params)


async def _limit_egress(netlink: Any, action: SetEgressLimit) -> None:
    """Create the ifb, its bucket, and the filter that redirects to it."""
    creates_ifb = not await netlink.link_lookup(ifname=action.ifb_name)
    has_added_qdisc = False
    try:
        ifb_index = await _ensure_ifb(netlink, action)
        # The bucket comes before the filter, so that no packet passes an unlimited ifb.
        await _replace_tbf(netlink, ifb_index, action.params)
        if action.add_ingress_qdisc:
            await netlink.tc("add", "ingress", index=action.device_index)
            has_added_qdisc = True
        for priority in action.stale_filter_priorities:
            await _remove_filter(netlink, action.device_index, priority)
        if action.add_filter:
            await _add_filter(netlink, action.device_index, ifb_index)
        if has_added_qdisc:
            await netlink.link("set", index=ifb_index, ifalias=action.alias + INGRESS_QDISC_SUFFIX)
    except (NetlinkError, OSError, asyncio.CancelledError):
        with suppress(NetlinkError):  # The device may be gone.
            if has_added_qdisc:
                await netlink.tc("del", "ingress", index=action.device_index)
        if creates_ifb:
            await _delete_link(netlink, action.ifb_name)
        raise


async def _ensure_ifb(netlink: Any, action: SetEgressLimit) -> int:
    """Create the ifb if it is missing, and set it up; return its index."""
    indexes = await netlink.link_lookup(ifname=action.ifb_name)
    if not indexes:
        await netlink.link("add", ifname=action.ifb_name, kind="ifb", mtu=action.mtu, txqlen=0)
        indexes = await netlink.link_lookup(ifname=action.ifb_name)
        if not indexes:
            raise NetlinkError(errno.ENODEV, f"{action.ifb_name} was deleted meanwhile")
        await netlink.link("set", index=indexes[0], ifalias=action.alias)
    await netlink.link("set", index=indexes[0], state="up")
    return int(indexes[0])


async def _add_filter(netlink: Any, device_index: int, ifb_index: int) -> None:
    """Add the redirect after all other filters, because a redirected packet skips those that follow."""
    await netlink.tc(
        "add-filter",
        "u32",
        index=device_index,
        parent=INGRESS_HOOK,
        protocol=ETH_P_ALL,
        prio=LAST_PRIORITY,
        target=_FLOW_ID,
        keys=["0x0/0x0+0"],
        action={"kind": "mirred", "direction": "egress", "ifindex": ifb_index, "action": "redirect"},
    )


async def _remove_filter(netlink: Any, device_index: int, priority: int) -> None:
    info = priority << PRIORITY_SHIFT | ALL_PROTOCOLS
    await netlink.tc("del-filter", index=device_index, parent=INGRESS_HOOK, info=info)


async def _remove_limit(netlink: Any, action: RemoveLimit) -> None:
    if action.direction == "ingress":
        await netlink.tc("del", index=action.device_index, handle=OUR_HANDLE, parent=ROOT)
        return
    for priority in action.filter_priorities:
        await _remove_filter(netlink, action.device_index, priority)
    if action.remove_ingress_qdisc:
        await netlink.tc("del", "ingress", index=action.device_index)
    await _delete_link(netlink, action.ifb_name)


async def _delete_link(netlink: Any, name: str) -> None:
    for index in await netlink.link_lookup(ifname=name):
        await netlink.link("del", index=index)
