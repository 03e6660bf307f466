"""Sets traffic control with pyroute2: token buckets, intermediate devices, and the filters that lead to them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_GETLINK
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.tcmsg import plugins, sched_tbf

from agent.bandwidth.state import INGRESS_HANDLE, ROOT, Action, Filter, LimitEgress, LimitIngress, Unlimit
from agent.bandwidth.tbf import WORD, Shape
from agent.bandwidth.traffic_control import parse_device, read_filters
from agent.rtnetlink import dump, rtnetlink

_TBF_HANDLE = 0x10000
_TBF_CLASS = 0x10001
_PRIORITY = 1
_ALL_PROTOCOLS = 0x0003
_ALL_PROTOCOLS_SWAPPED = 0x0300
_EXISTS = 17


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
            await _set_root(netlink, action.device, action.shape)
        elif isinstance(action, LimitEgress):
            await _limit_egress(netlink, action)
        elif isinstance(action, Unlimit):
            await _unlimit(netlink, action)
        else:
            await _remove(netlink, action.name)


async def _set_root(netlink: Any, device: int, shape: Shape) -> None:
    await netlink.tc("replace", "tbf", index=device, handle=_TBF_HANDLE, shape=shape)


async def _limit_egress(netlink: Any, action: LimitEgress) -> None:
    found = await netlink.link_lookup(ifname=action.through)
    if not found:
        await netlink.link("add", ifname=action.through, kind="ifb", mtu=action.mtu, txqlen=0)
        found = await netlink.link_lookup(ifname=action.through)
        await netlink.link("set", index=found[0], ifalias=action.alias)
    through = found[0]
    await netlink.link("set", index=through, state="up")
    # The bucket before the filter: packets must not find an intermediate device that does not limit yet.
    await _set_root(netlink, through, action.shape)
    if action.redirect:
        await _redirect(netlink, action.device, through)


async def _redirect(netlink: Any, device: int, through: int) -> None:
    try:
        await netlink.tc("add", "ingress", index=device, handle=INGRESS_HANDLE)
    except NetlinkError as error:
        if error.code != _EXISTS:
            raise
    existing = {found.index for found in await dump(netlink, ifinfmsg(), RTM_GETLINK, parse_device)}
    for one in await read_filters(netlink, device):
        if one.redirects_to is not None and one.redirects_to not in existing:
            await _remove_filter(netlink, device, one)
    await netlink.tc(
        "add-filter",
        "u32",
        index=device,
        parent=INGRESS_HANDLE,
        protocol=_ALL_PROTOCOLS,
        prio=_PRIORITY,
        target=_TBF_CLASS,
        keys=["0x0/0x0+0"],
        action={"kind": "mirred", "direction": "egress", "ifindex": through, "action": "redirect"},
    )


async def _remove_filter(netlink: Any, device: int, one: Filter) -> None:
    await netlink.tc(
        "del-filter", index=device, parent=INGRESS_HANDLE, info=_ALL_PROTOCOLS_SWAPPED | one.priority << 16
    )


async def _unlimit(netlink: Any, action: Unlimit) -> None:
    if action.direction == "ingress":
        await netlink.tc("del", index=action.device, handle=_TBF_HANDLE, parent=ROOT)
        return
    through: set[int | None] = set(await netlink.link_lookup(ifname=action.through))
    filters = await read_filters(netlink, action.device)
    ours = [one for one in filters if one.redirects_to in through]
    for one in ours:
        await _remove_filter(netlink, action.device, one)
    if len(ours) == len(filters):
        await netlink.tc("del", "ingress", index=action.device, handle=INGRESS_HANDLE)
    await _remove(netlink, action.through)


async def _remove(netlink: Any, name: str) -> None:
    for index in await netlink.link_lookup(ifname=name):
        await netlink.link("del", index=index)
