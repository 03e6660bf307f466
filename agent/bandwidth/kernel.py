"""Reads and sets traffic control with pyroute2. Blocking: to be called in a thread, because pyroute2 runs a loop of its own.

A pod's network namespace is never entered. The kernel numbers the namespaces that the host's devices lead to
(IFLA_LINK_NETNSID) and tells the number of a process's namespace (RTM_GETNSID), so the two are matched from outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.tcmsg import plugins, sched_tbf

from agent.bandwidth.state import (
    INGRESS_HANDLE,
    ROOT,
    Action,
    Device,
    Filter,
    KernelState,
    LimitEgress,
    LimitIngress,
    Qdisc,
    Unlimit,
)
from agent.bandwidth.tbf import WORD, Shape
from agent.errors import KernelError

_TBF_HANDLE = 0x10000
_TBF_CLASS = 0x10001
_PRIORITY = 1
_ALL_PROTOCOLS = 0x0003
_EGRESS_REDIRECT = 1  # linux/tc_act/tc_mirred.h; a mirror (2) only copies
_EXISTS, _NOT_FOUND = 17, (2, 19, 22)


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


@contextmanager
def _netlink(what: str) -> Iterator[Any]:
    try:
        with IPRoute() as netlink:
            yield netlink
    except (NetlinkError, OSError) as error:
        raise KernelError(f"{what}: {error}") from error


def read_kernel(pids: Mapping[str, int]) -> tuple[KernelState, dict[str, int]]:
    """Devices, queueing disciplines and ingress filters, and the namespace number of each process that has one.

    Args:
        pids: process by pod uid.

    Raises:
        KernelError: netlink did not answer.
    """
    with _netlink("cannot read traffic control") as netlink:
        devices = [_device(message) for message in netlink.get_links()]
        qdiscs = [_qdisc(message) for message in netlink.get_qdiscs()]
        filters: list[Filter] = []
        for index in sorted({q.device for q in qdiscs if q.kind in {"ingress", "clsact"}}):
            filters += _filters(netlink, index)
        numbers = {uid: number for uid, pid in pids.items() if (number := _namespace_number(netlink, pid)) is not None}
    state = KernelState(devices=tuple(devices), qdiscs=tuple(qdiscs), filters=tuple(filters))
    return state, numbers


def _namespace_number(netlink: Any, pid: int) -> int | None:
    try:
        answer = netlink.get_netnsid(pid=pid)
    except NetlinkError:
        return None  # the process ended meanwhile
    number = answer["nsid"] if answer else None
    return None if number is None or number in {-1, WORD - 1} else int(number)


def _device(message: Any) -> Device:
    info = message.get_attr("IFLA_LINKINFO")
    kind = str(info.get_attr("IFLA_INFO_KIND") or "") if info is not None else ""
    parent = message.get_attr("IFLA_LINK")
    return Device(
        index=int(message["index"]),
        name=str(message.get_attr("IFLA_IFNAME")),
        kind=kind,
        mtu=int(message.get_attr("IFLA_MTU") or 1500),
        alias=str(message.get_attr("IFLA_IFALIAS") or ""),
        namespace_id=message.get_attr("IFLA_LINK_NETNSID"),
        peer=int(parent) if parent else None,
        physical=not kind and not message["flags"] & 0x8,
    )


def _qdisc(message: Any) -> Qdisc:
    kind = str(message.get_attr("TCA_KIND"))
    options = message.get_attr("TCA_OPTIONS")
    return Qdisc(
        device=int(message["index"]),
        kind=kind,
        handle=int(message["handle"]),
        parent=int(message["parent"]),
        shape=_shape(options) if kind == "tbf" and options is not None else None,
    )


def _shape(options: Any) -> Shape | None:
    parameters = options.get_attr("TCA_TBF_PARMS")
    if parameters is None:
        return None
    rate = options.get_attr("TCA_TBF_RATE64") or parameters["rate"]
    return Shape(
        rate_bytes_per_s=int(rate), buffer_ticks=int(parameters["buffer"]), limit_bytes=int(parameters["limit"])
    )


def _filters(netlink: Any, index: int) -> list[Filter]:
    try:
        messages = netlink.get_filters(index=index, parent=INGRESS_HANDLE)
        return [one for message in messages if (one := _filter(message)) is not None]
    except NetlinkError as error:
        if error.code in _NOT_FOUND:
            return []  # the device is gone
        raise


def _filter(message: Any) -> Filter | None:
    kind = str(message.get_attr("TCA_KIND"))
    options = message.get_attr("TCA_OPTIONS")
    if not hasattr(options, "get_attr"):
        # Hash tables of u32 come as filters without options; kinds that pyroute2 cannot decode still say who is there.
        return (
            None if kind == "u32" else Filter(device=int(message["index"]), kind=kind, priority=message["info"] >> 16)
        )
    actions = options.get_attr("TCA_U32_ACT") or options.get_attr("TCA_MATCHALL_ACT")
    selector = options.get_attr("TCA_U32_SEL")
    if kind == "u32" and selector is None:
        return None
    targets, polices = _actions(actions)
    return Filter(
        device=int(message["index"]),
        kind=kind,
        priority=int(message["info"] >> 16),
        matches_all=_matches_all(kind, selector, int(message["info"] & 0xFFFF)),
        redirects_to=targets[0] if targets else None,
        polices=polices,
    )


def _matches_all(kind: str, selector: Any, protocol: int) -> bool:
    if protocol != _swapped(_ALL_PROTOCOLS):
        return False
    return kind == "matchall" or (kind == "u32" and all(key["key_mask"] == 0 for key in selector["keys"]))


def _swapped(protocol: int) -> int:
    return int.from_bytes(protocol.to_bytes(2, "big"), "little")


def _actions(actions: Any) -> tuple[list[int], bool]:
    targets: list[int] = []
    polices = False
    for _, action in actions["attrs"] if actions is not None else ():
        kind = action.get_attr("TCA_ACT_KIND")
        polices = polices or kind == "police"
        if kind == "mirred":
            parameters = action.get_attr("TCA_ACT_OPTIONS").get_attr("TCA_MIRRED_PARMS")
            if parameters["eaction"] == _EGRESS_REDIRECT:
                targets.append(int(parameters["ifindex"]))
    return targets, polices


def execute(action: Action) -> None:
    """Do one thing; doing it again changes nothing.

    Raises:
        KernelError: the kernel refused, or the device is gone.
    """
    with _netlink(f"{type(action).__name__} on {action.name}") as netlink:
        if isinstance(action, LimitIngress):
            _set_root(netlink, action.device, action.shape)
        elif isinstance(action, LimitEgress):
            _limit_egress(netlink, action)
        elif isinstance(action, Unlimit):
            _unlimit(netlink, action)
        else:
            _remove(netlink, action.name)


def _set_root(netlink: Any, device: int, shape: Shape) -> None:
    netlink.tc("replace", "tbf", index=device, handle=_TBF_HANDLE, shape=shape)


def _limit_egress(netlink: Any, action: LimitEgress) -> None:
    found = netlink.link_lookup(ifname=action.through)
    if not found:
        netlink.link("add", ifname=action.through, kind="ifb", mtu=action.mtu, txqlen=0)
        found = netlink.link_lookup(ifname=action.through)
        netlink.link("set", index=found[0], ifalias=action.alias)
    through = found[0]
    netlink.link("set", index=through, state="up")
    # The bucket before the filter: packets must not find an intermediate device that does not limit yet.
    _set_root(netlink, through, action.shape)
    if action.redirect:
        _redirect(netlink, action.device, through)


def _redirect(netlink: Any, device: int, through: int) -> None:
    try:
        netlink.tc("add", "ingress", index=device, handle=INGRESS_HANDLE)
    except NetlinkError as error:
        if error.code != _EXISTS:
            raise
    existing = {link["index"] for link in netlink.get_links()}
    for one in _filters(netlink, device):
        if one.redirects_to is not None and one.redirects_to not in existing:
            _remove_filter(netlink, device, one)
    netlink.tc(
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


def _remove_filter(netlink: Any, device: int, one: Filter) -> None:
    netlink.tc("del-filter", index=device, parent=INGRESS_HANDLE, info=_swapped(_ALL_PROTOCOLS) | one.priority << 16)


def _unlimit(netlink: Any, action: Unlimit) -> None:
    if action.direction == "ingress":
        netlink.tc("del", index=action.device, handle=_TBF_HANDLE, parent=ROOT)
        return
    through: set[int | None] = set(netlink.link_lookup(ifname=action.through))
    filters = _filters(netlink, action.device)
    ours = [one for one in filters if one.redirects_to in through]
    for one in ours:
        _remove_filter(netlink, action.device, one)
    if len(ours) == len(filters):
        netlink.tc("del", "ingress", index=action.device, handle=INGRESS_HANDLE)
    _remove(netlink, action.through)


def _remove(netlink: Any, name: str) -> None:
    for index in netlink.link_lookup(ifname=name):
        netlink.link("del", index=index)
