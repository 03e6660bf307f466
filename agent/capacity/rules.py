"""Computes the capacity of the physical devices below the default route. Pure.

Of two possible speeds the smaller one counts, and an unreliable speed is unknown; otherwise the scheduler would place pods on
bandwidth that does not exist (docs/contracts, section 10).
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
    Route,
)
from agent.capacity.node_bandwidth import HardwareCapacity

_KINDS_ON_PARENT = frozenset({"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"})
_OUTWARD_KINDS = _KINDS_ON_PARENT | {"", "bond"}
"""Kinds of bridge ports that lead out of the machine."""
_SHAPERS = frozenset({"htb", "hfsc", "cake", "cbq", "tbf"})
"""Queueing disciplines that limit what a device sends."""
_UNRELIABLE_KINDS = {
    "veth": "a veth pair says 10 Gbit/s and has no speed of its own",
    "tun": "a TUN or TAP device has no speed of its own",
    "tap": "a TUN or TAP device has no speed of its own",
    "dummy": "a dummy device carries nothing",
    "ifb": "an ifb has no speed of its own",
}
_UNRELIABLE_DRIVERS = {
    "hv_netvsc": "Hyper-V names the host's port, whatever the instance may use",
    "vmxnet3": "vmxnet3 says 10 Gbit/s whatever is below",
    "veth": _UNRELIABLE_KINDS["veth"],
    "tun": _UNRELIABLE_KINDS["tun"],
}
AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
"""Chassis asset tag of Azure's machines, which share vendor and product with any Hyper-V."""
_MAX_MBPS = 1_600_000
"""1.6 Tbit/s, the next generation of Ethernet; drivers report more if they do not know the speed."""
_MAX_DEPTH = 8
"""Longest chain of devices, such as a VLAN on a bond on two ports."""


class _UnknownCapacity(Exception):  # noqa: N818 - an answer, not an error
    """An unknown capacity; the text is the reason."""


class _Resolved(msgspec.Struct, frozen=True):
    """The speed of a link, how it was found, and the names of the physical devices below."""

    mbps: int
    explanation: str
    physical_names: frozenset[str]


def find_capacity(snapshot: LinkSnapshot) -> HardwareCapacity:
    """The capacity of a node's uplinks: per direction, of the path that pods use.

    The devices of one multipath route add up. If the address families use different devices, the smaller capacity counts, since a pod
    may use either.
    """
    resolver = _Resolver(snapshot)
    uplinks, standby = pick_uplinks(snapshot)
    if not any(uplinks.values()):
        return HardwareCapacity(None, "there is no default route")
    try:
        by_family = {family: resolver.resolve_route(indexes) for family, indexes in uplinks.items() if indexes}
    except _UnknownCapacity as reason:
        indexes = [index for family_indexes in uplinks.values() for index in family_indexes]
        return HardwareCapacity(None, str(reason), resolver.physical_device_names(indexes))
    smallest = min(by_family.values(), key=lambda resolved: resolved.mbps)
    explanation = smallest.explanation
    for family, other in by_family.items():
        if other.physical_names != smallest.physical_names:
            explanation += f"; by IPv{family} {other.explanation}"
    if standby:
        explanation += "; standby: " + ", ".join(resolver.name_of(index) for index in standby)
    return HardwareCapacity(smallest.mbps * 1_000_000, explanation, tuple(sorted(smallest.physical_names)))


def pick_uplinks(snapshot: LinkSnapshot) -> tuple[dict[int, list[int]], list[int]]:
    """Indexes of the devices of the default routes in use, by IP version, and of the standby devices, in order of the routing table.

    Of several default routes of the least metric the kernel uses the first whose device is up, and all hops if it is a multipath one.
    """
    up = {link.index for link in snapshot.links if link.up}
    used: dict[int, list[int]] = {}
    candidates: list[int] = []
    for family in (4, 6):
        defaults = sorted((route for route in snapshot.routes if route.family == family), key=lambda r: r.metric)
        live = [route for route in defaults if route.device in up] or defaults
        used[family] = list(dict.fromkeys(route.device for route in live if _is_used(route, live[0])))
        candidates += [route.device for route in defaults]
    in_use = {index for indexes in used.values() for index in indexes}
    return used, [index for index in dict.fromkeys(candidates) if index not in in_use]


def _is_used(route: Route, best: Route) -> bool:
    return route is best or (best.multipath and route.multipath and route.metric == best.metric)


class _Resolver:
    """Resolves links to the physical devices below them."""

    def __init__(self, snapshot: LinkSnapshot) -> None:
        self._machine = snapshot.machine
        self._links = {link.index: link for link in snapshot.links}

    def name_of(self, index: int) -> str:
        """Name of a link, or its index if the link is gone."""
        return self._links[index].name if index in self._links else str(index)

    def resolve_route(self, uplinks: list[int]) -> _Resolved:
        """The sum of a route's devices; a device that is reached twice counts once.

        Raises:
            _UnknownCapacity: the capacity of a device is unknown.
        """
        mbps, names, parts = 0, frozenset[str](), list[str]()
        for index in uplinks:
            if index not in self._links:
                raise _UnknownCapacity(f"the default route's device {index} is not there")
            resolved = self._resolve(self._links[index], ())
            if resolved.physical_names <= names:
                parts.append(f"{self.name_of(index)} (counted already)")
                continue
            if resolved.physical_names & names:
                raise _UnknownCapacity(f"{self.name_of(index)} shares some of its devices with another uplink")
            mbps, names = mbps + resolved.mbps, names | resolved.physical_names
            parts.append(resolved.explanation)
        return _Resolved(mbps, " + ".join(parts), names)

    def physical_device_names(self, uplinks: list[int]) -> tuple[str, ...]:
        """Names of the lowest devices that can be found, whose counters show the node's traffic also if no speed is known."""
        names: set[str] = set()
        pending = [self._links[index] for index in uplinks if index in self._links]
        seen: set[int] = set()
        while pending:
            link = pending.pop()
            if link.index in seen:
                continue
            seen.add(link.index)
            lowers = [port for port in self._ports_of(link) if port.kind in _OUTWARD_KINDS]
            parent = self._links.get(link.parent) if link.parent is not None and not link.parent_elsewhere else None
            if link.kind in _KINDS_ON_PARENT and parent is not None:
                lowers.append(parent)
            if lowers:
                pending += lowers
            elif not link.loopback:
                names.add(link.name)
        return tuple(sorted(names))

    def _resolve(self, link: Link, above: tuple[int, ...]) -> _Resolved:
        unshaped = self._resolve_unshaped(link, above)
        if link.root not in _SHAPERS:
            return unshaped
        if link.root_mbps is None:
            raise _UnknownCapacity(f"{link.name}: its queueing discipline {link.root} may limit it; set --capacity")
        if link.root_mbps >= unshaped.mbps:
            return unshaped
        return _Resolved(link.root_mbps, f"{unshaped.explanation}, limited by {link.root}", unshaped.physical_names)

    def _resolve_unshaped(self, link: Link, above: tuple[int, ...]) -> _Resolved:
        if link.index in above:
            raise _UnknownCapacity(f"{link.name}: its lower devices form a loop")
        if len(above) >= _MAX_DEPTH:
            raise _UnknownCapacity(f"{link.name} is below {_MAX_DEPTH} other devices; set --capacity")
        above = (*above, link.index)
        if link.kind == "bond":
            return self._resolve_bond(link, above)
        if link.kind == "bridge":
            return self._resolve_bridge(link, above)
        if link.kind in _KINDS_ON_PARENT:
            lower = self._resolve(self._parent_of(link), above)
            return _Resolved(lower.mbps, f"{link.name} on {lower.explanation}", lower.physical_names)
        return self._resolve_hardware(link)

    def _ports_of(self, link: Link) -> list[Link]:
        return [port for port in self._links.values() if port.master == link.index]

    def _parent_of(self, link: Link) -> Link:
        if link.parent_elsewhere:
            raise _UnknownCapacity(f"{link.name}: the device below is in another network namespace")
        parent = self._links.get(link.parent) if link.parent is not None else None
        if parent is None:
            raise _UnknownCapacity(f"{link.name}: the device below is not there")
        return parent

    def _resolve_bond(self, link: Link, above: tuple[int, ...]) -> _Resolved:
        """The active slave in active-backup; of all slaves that are up, the slowest in broadcast and balance-tlb, else the sum."""
        slaves, mode = self._ports_of(link), link.bond_mode
        name = BOND_MODES[mode] if mode is not None and mode < len(BOND_MODES) else link.kind
        if mode == BOND_ACTIVE_BACKUP:
            slaves = [slave for slave in slaves if slave.index == link.active_slave]
            if not slaves:
                raise _UnknownCapacity(f"{link.name} ({name}) has no active slave")
        if mode == BOND_LACP and link.aggregator is not None:
            # Ports that negotiated with another switch, or with none, are in other aggregators (bond_3ad.c).
            slaves = [slave for slave in slaves if slave.aggregator in {None, link.aggregator}]
        live = [slave for slave in slaves if slave.up]
        if not live:
            raise _UnknownCapacity(f"{link.name} ({name}) has no slave that is up")
        resolved = [self._resolve(slave, above) for slave in live]
        names = frozenset[str]().union(*(slave.physical_names for slave in resolved))
        # Broadcast sends everything on each slave; balance-tlb sends on all slaves and receives on one.
        combine = min if mode in {BOND_BROADCAST, BOND_TLB} else sum
        explanation = f"{link.name} ({name}: {', '.join(slave.explanation for slave in resolved)})"
        return _Resolved(combine(slave.mbps for slave in resolved), explanation, names)

    def _resolve_bridge(self, link: Link, above: tuple[int, ...]) -> _Resolved:
        """The slowest of the ports that lead out of the machine, because the path is unknown."""
        ports = self._ports_of(link)
        outward = [port for port in ports if port.up and port.kind in _OUTWARD_KINDS]
        if not outward:
            raise _UnknownCapacity(f"{link.name}: none of its {len(ports)} ports leads out of this machine")
        resolved = [self._resolve(port, above) for port in outward]
        slowest = min(resolved, key=lambda port: port.mbps)
        of_several = f", slowest of {len(resolved)} ports" if len(resolved) > 1 else ""
        names = frozenset[str]().union(*(port.physical_names for port in resolved))
        return _Resolved(slowest.mbps, f"{link.name} on {slowest.explanation}{of_several}", names)

    def _resolve_hardware(self, link: Link) -> _Resolved:
        """The speed of a device with nothing below it, if it is reliable."""
        if link.loopback:
            raise _UnknownCapacity(f"{link.name} is the loopback")
        if link.kind and link.kind not in _UNRELIABLE_KINDS:
            raise _UnknownCapacity(
                f"{link.name}: the speed of a device of kind {link.kind} is not known; set --capacity"
            )
        if link.virtual_function:
            raise _UnknownCapacity(f"{link.name} is a virtual function, which shares its port; set --capacity")
        unreliable = _UNRELIABLE_KINDS.get(link.kind) or _UNRELIABLE_DRIVERS.get(link.driver)
        if unreliable is None and self._machine.asset_tag == AZURE_ASSET_TAG:
            unreliable = "Azure's ports are faster than what the instance may use"
        if unreliable is None and self._machine.hypervisor:
            hypervisor = self._machine.hypervisor
            unreliable = f"inside a virtual machine ({hypervisor}) a speed is the port's, not the guest's"
        if unreliable is not None:
            raise _UnknownCapacity(f"{link.name}: {unreliable}; set --capacity, or a capacity by instance type")
        if not link.up:
            raise _UnknownCapacity(f"{link.name} is down")
        implausible: list[str] = []
        for source, mbps in (("sysfs", link.sysfs_mbps), ("psutil", link.psutil_mbps)):
            if mbps is not None and 0 < mbps <= _MAX_MBPS:
                shown = f"{mbps / 1000:g}G" if mbps >= 1000 else f"{mbps}M"
                return _Resolved(mbps, f"{link.name} {shown} by {source}", frozenset({link.name}))
            if mbps is not None:
                implausible.append(f"{source} says {mbps}")
        driver = f" ({link.driver})" if link.driver else ""
        reason = f" ({', '.join(implausible)})" if implausible else ""
        raise _UnknownCapacity(f"{link.name}{driver}: its speed is unknown{reason}")
