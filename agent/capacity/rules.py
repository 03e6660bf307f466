"""Computes a capacity from links: the devices below the default route whose speed is reliable. Pure.

In doubt the smaller number counts, and an unreliable one is unknown, because a scheduler would place pods on bandwidth that does
not exist (docs/contracts, node bandwidth capacity).
"""

from __future__ import annotations

import msgspec

from agent.capacity.links import (
    BOND_ACTIVE_BACKUP,
    BOND_BROADCAST,
    BOND_LACP,
    BOND_MODES,
    BOND_TLB,
    Link,
    LinkSnapshot,
    Machine,
)
from agent.capacity.node_bandwidth import HardwareCapacity

_ON_PARENT = frozenset({"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"})
_LEADS_OUT = _ON_PARENT | {"", "bond"}
"""Kinds of a bridge's ports that lead out of the machine."""
_SHAPERS = frozenset({"htb", "hfsc", "cake", "cbq", "tbf"})
"""Queueing disciplines that limit what a device sends."""
_FICTIONS = {
    "veth": "a veth pair says 10 Gbit/s and has no speed of its own",
    "tun": "a TUN or TAP device has no speed of its own",
    "tap": "a TUN or TAP device has no speed of its own",
    "dummy": "a dummy device carries nothing",
    "ifb": "an intermediate device has no speed of its own",
}
_FICTIONAL_DRIVERS = {
    "hv_netvsc": "Hyper-V names the host's port, whatever the instance may use",
    "vmxnet3": "vmxnet3 says 10 Gbit/s whatever is below",
    "veth": _FICTIONS["veth"],
    "tun": _FICTIONS["tun"],
}
AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
_MAX_MBPS = 1_600_000
"""1.6 Tbit/s, the next generation of Ethernet; drivers report more if they do not know."""
_DEEPEST = 8


class _Unknown(Exception):  # noqa: N818 - an answer, not an error
    """An unknown capacity; the text says why."""


class _Found(msgspec.Struct, frozen=True):
    mbps: int
    how: str
    physical: frozenset[str]


def find_capacity(snapshot: LinkSnapshot) -> HardwareCapacity:
    """The capacity of a node's uplinks: per direction, of the path that pods use.

    The devices of one multipath route add up. Where the families use different devices the smaller capacity counts, since a pod
    may use either.
    """
    links = snapshot.by_index()
    uplinks, standby = pick_uplinks(snapshot)
    if not any(uplinks.values()):
        return HardwareCapacity(None, "there is no default route")
    try:
        by_family = {family: _sum_of(indexes, snapshot, links) for family, indexes in uplinks.items() if indexes}
    except _Unknown as reason:
        every = [index for indexes in uplinks.values() for index in indexes]
        return HardwareCapacity(None, str(reason), _physical_names(every, links))
    total = min(by_family.values(), key=lambda one: one.mbps)
    how = total.how
    for family, other in by_family.items():
        if other.physical != total.physical:
            how += f"; by IPv{family} {other.how}"
    if standby:
        how += "; standby: " + ", ".join(links[i].name if i in links else str(i) for i in standby)
    return HardwareCapacity(total.mbps * 1_000_000, how, tuple(sorted(total.physical)))


def _sum_of(uplinks: list[int], snapshot: LinkSnapshot, links: dict[int, Link]) -> _Found:
    """The sum of a route's devices; a device that is reached twice counts once."""
    mbps, physical, parts = 0, frozenset[str](), list[str]()
    for index in uplinks:
        if index not in links:
            raise _Unknown(f"the default route's device {index} is not there")
        device = _resolve(links[index], snapshot, links, ())
        if device.physical <= physical:
            parts.append(f"{links[index].name} (counted already)")
            continue
        if device.physical & physical:
            raise _Unknown(f"{links[index].name} shares some of its devices with another uplink")
        mbps, physical = mbps + device.mbps, physical | device.physical
        parts.append(device.how)
    return _Found(mbps, " + ".join(parts), physical)


def pick_uplinks(snapshot: LinkSnapshot) -> tuple[dict[int, list[int]], list[int]]:
    """By address family, the devices of the default route in use, and all standby devices, in the table's order.

    Of several default routes of the least metric the kernel uses the first whose device is up; all hops of a multipath one.
    """
    up = {link.index for link in snapshot.links if link.up}
    used: dict[int, list[int]] = {}
    waiting: list[int] = []
    for family in (4, 6):
        defaults = sorted((r for r in snapshot.routes if r.family == family), key=lambda r: r.metric)
        live = [route for route in defaults if route.device in up] or defaults
        best = live[0] if live else None
        used[family] = list(
            dict.fromkeys(
                r.device
                for r in live
                if best is not None and (r is best or (best.multipath and r.multipath and r.metric == best.metric))
            )
        )
        waiting += [route.device for route in defaults]
    in_use = {index for indexes in used.values() for index in indexes}
    return used, [index for index in dict.fromkeys(waiting) if index not in in_use]


def _resolve(link: Link, snapshot: LinkSnapshot, links: dict[int, Link], seen: tuple[int, ...]) -> _Found:
    unshaped = _resolve_unshaped(link, snapshot, links, seen)
    if link.root not in _SHAPERS:
        return unshaped
    if link.root_mbps is None:
        raise _Unknown(f"{link.name}: its queueing discipline {link.root} may limit it; set --capacity")
    if link.root_mbps >= unshaped.mbps:
        return unshaped
    return msgspec.structs.replace(unshaped, mbps=link.root_mbps, how=f"{unshaped.how}, limited by {link.root}")


def _resolve_unshaped(link: Link, snapshot: LinkSnapshot, links: dict[int, Link], seen: tuple[int, ...]) -> _Found:
    if link.index in seen or len(seen) >= _DEEPEST:
        raise _Unknown(f"{link.name}: its lower devices form a loop")
    seen = (*seen, link.index)
    if link.kind == "bond":
        return _bundle(link, snapshot, links, seen)
    if link.kind in _ON_PARENT:
        return _above(link, _parent(link, links), snapshot, links, seen)
    if link.kind == "bridge":
        return _through_bridge(link, snapshot, links, seen)
    return _hardware(link, snapshot)


def _above(link: Link, lower: Link, snapshot: LinkSnapshot, links: dict[int, Link], seen: tuple[int, ...]) -> _Found:
    resolved = _resolve(lower, snapshot, links, seen)
    return msgspec.structs.replace(resolved, how=f"{link.name} on {resolved.how}")


def _parent(link: Link, links: dict[int, Link]) -> Link:
    if link.parent_elsewhere:
        raise _Unknown(f"{link.name}: the device below is in another network namespace")
    parent = links.get(link.parent) if link.parent is not None else None
    if parent is None:
        raise _Unknown(f"{link.name}: the device below is not there")
    return parent


def _bundle(link: Link, snapshot: LinkSnapshot, links: dict[int, Link], seen: tuple[int, ...]) -> _Found:
    """A bond: the active slave in active-backup, all that are up otherwise; broadcast sends everything on each."""
    slaves = [slave for slave in links.values() if slave.master == link.index]
    mode = link.bond_mode
    name = BOND_MODES[mode] if mode is not None and mode < len(BOND_MODES) else link.kind
    if mode == BOND_ACTIVE_BACKUP:
        slaves = [slave for slave in slaves if slave.index == link.active_slave]
        if not slaves:
            raise _Unknown(f"{link.name} ({name}) has no active slave")
    if mode == BOND_LACP and link.aggregator is not None:
        # Ports that negotiated with another switch, or with none, are in other aggregators (bond_3ad.c).
        slaves = [slave for slave in slaves if slave.aggregator in {None, link.aggregator}]
    live = [slave for slave in slaves if slave.up]
    if not live:
        raise _Unknown(f"{link.name} ({name}) has no slave that is up")
    resolved = [_resolve(slave, snapshot, links, seen) for slave in live]
    physical = frozenset[str]().union(*(one.physical for one in resolved))
    speeds = [one.mbps for one in resolved]
    # balance-tlb sends on all slaves and receives on one.
    smallest = mode in {BOND_BROADCAST, BOND_TLB}
    how = f"{link.name} ({name}: {', '.join(one.how for one in resolved)})"
    return _Found(min(speeds) if smallest else sum(speeds), how, physical)


def _through_bridge(link: Link, snapshot: LinkSnapshot, links: dict[int, Link], seen: tuple[int, ...]) -> _Found:
    """The ports that lead out; the slowest of several, because the path is unknown."""
    ports = [port for port in links.values() if port.master == link.index]
    outward = [port for port in ports if port.up and port.kind in _LEADS_OUT]
    if not outward:
        raise _Unknown(f"{link.name}: none of its {len(ports)} ports leads out of this machine")
    resolved = [_resolve(port, snapshot, links, seen) for port in outward]
    slowest = min(resolved, key=lambda one: one.mbps)
    of_several = f", slowest of {len(resolved)} ports" if len(resolved) > 1 else ""
    physical = frozenset[str]().union(*(one.physical for one in resolved))
    return _Found(slowest.mbps, f"{link.name} on {slowest.how}{of_several}", physical)


def _hardware(link: Link, snapshot: LinkSnapshot) -> _Found:
    """The speed of a device with nothing below it, if it is reliable."""
    if link.loopback:
        raise _Unknown(f"{link.name} is the loopback")
    if link.kind and link.kind not in _FICTIONS:
        raise _Unknown(f"{link.name}: what a device of kind {link.kind} carries is not known; set --capacity")
    if link.virtual_function:
        raise _Unknown(f"{link.name} is a virtual function, which shares its port; set --capacity")
    fiction = _FICTIONS.get(link.kind) or _FICTIONAL_DRIVERS.get(link.driver)
    if fiction is None and is_azure(snapshot.machine):
        fiction = "Azure's ports are faster than what the instance may use"
    if fiction is None and snapshot.machine.hypervisor:
        fiction = f"inside a virtual machine ({snapshot.machine.hypervisor}) a speed is the port's, not the guest's"
    if fiction is not None:
        raise _Unknown(f"{link.name}: {fiction}; set --capacity, or a capacity by instance type")
    if not link.up:
        raise _Unknown(f"{link.name} is down")
    mbps, source = read_speed(link)
    if mbps is None:
        driver = f" ({link.driver})" if link.driver else ""
        raise _Unknown(f"{link.name}{driver}: {source}")
    return _Found(mbps, f"{link.name} {_shown(mbps)} by {source}", frozenset({link.name}))


def read_speed(link: Link) -> tuple[int | None, str]:
    """The speed in Mbit/s by the first source that knows it, and which; or None, and what they said.

    The file in sysfs first, then psutil, which works where there is none.
    """
    said: list[str] = []
    for source, mbps in (("sysfs", link.sysfs_mbps), ("psutil", link.psutil_mbps)):
        if mbps is None:
            continue
        if 0 < mbps <= _MAX_MBPS:
            return mbps, source
        said.append(f"{source} says {mbps}")
    return None, "its speed is unknown" + (f" ({', '.join(said)})" if said else "")


def is_azure(machine: Machine) -> bool:
    """Whether the firmware is Azure's: its machines share vendor and product with any Hyper-V, the asset tag is theirs."""
    return machine.asset_tag == AZURE_ASSET_TAG


def _shown(mbps: int) -> str:
    return f"{mbps / 1000:g}G" if mbps >= 1000 else f"{mbps}M"


def _physical_names(uplinks: list[int], links: dict[int, Link]) -> tuple[str, ...]:
    """Devices whose counters show the node's traffic, where no speed is known: the lowest that can be found."""
    names: set[str] = set()
    todo = [links[index] for index in uplinks if index in links]
    seen: set[int] = set()
    while todo:
        link = todo.pop()
        if link.index in seen:
            continue
        seen.add(link.index)
        lowers = [other for other in links.values() if other.master == link.index and other.kind in _LEADS_OUT]
        parent = links.get(link.parent) if link.parent is not None and not link.parent_elsewhere else None
        if link.kind in _ON_PARENT and parent is not None:
            lowers.append(parent)
        if lowers:
            todo += lowers
        elif not link.loopback:
            names.add(link.name)
    return tuple(sorted(names))
