"""Computes the capacity of the physical devices below the default route. No I/O.

If the path is not certain, the slowest one counts, and an unreliable speed is unknown; otherwise the scheduler would place pods on
bandwidth that does not exist (docs/contracts.md, section 10).
"""

from __future__ import annotations

import msgspec

from agent.capacity.links import BOND_ACTIVE_BACKUP, BOND_BROADCAST, BOND_LACP, BOND_MODES, BOND_TLB, Link, LinkSnapshot
from agent.capacity.node_capacity import HardwareCapacity

_KINDS_ON_PARENT = frozenset({"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"})
_OUTWARD_KINDS = _KINDS_ON_PARENT | {"", "bond"}
"""Kinds of bridge ports that lead out of the machine."""
_SHAPERS = frozenset({"htb", "hfsc", "cake", "cbq", "tbf"})
"""Queueing disciplines that limit what a device sends."""
_UNRELIABLE_DRIVERS = {
    "hv_netvsc": "Hyper-V reports the speed of the host's port, not what the instance may use",
    "vmxnet3": "vmxnet3 reports 10 Gbit/s on any port",
}
AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
"""Chassis asset tag of Azure's machines, which share vendor and product with any Hyper-V."""
_MAX_MBPS = 1_600_000
"""1.6 Tbit/s, the next generation of Ethernet; drivers report more if they do not know the speed."""
_MAX_DEPTH = 8
"""Longest chain of devices, such as a VLAN on a bond on two ports."""


class _UnknownSpeedError(Exception):
    """The speed of a link is unknown; the text is the reason."""


class _LinkSpeed(msgspec.Struct, frozen=True):
    """The speed of a link, how it was found, and the names of the physical devices below."""

    mbps: int
    explanation: str
    physical_names: frozenset[str]


def find_capacity(snapshot: LinkSnapshot) -> HardwareCapacity:
    """Find the capacity of a node's uplinks: per direction, of the path that pods use.

    The devices of one multipath route add up. If the address families use different devices, the smaller capacity counts, since a pod
    may use either.
    """
    resolver = _LinkResolver(snapshot)
    uplinks_by_family = _pick_uplinks(snapshot)
    if not uplinks_by_family:
        return HardwareCapacity(None, "there is no default route")
    uplinks = {index for indexes in uplinks_by_family.values() for index in indexes}
    try:
        speed_by_family = {family: resolver.resolve_route(indexes) for family, indexes in uplinks_by_family.items()}
    except _UnknownSpeedError as error:
        names = frozenset[str]().union(*(resolver.find_physical_names(index) for index in uplinks))
        return HardwareCapacity(None, str(error), tuple(sorted(names)))
    smallest = min(speed_by_family.values(), key=lambda speed: speed.mbps)
    explanation = smallest.explanation
    for family, other in speed_by_family.items():
        if other.physical_names != smallest.physical_names:
            explanation += f"; by IPv{family} {other.explanation}"
    standby = {resolver.name_of(route.device_index) for route in snapshot.routes if route.device_index not in uplinks}
    if standby:
        explanation += "; standby: " + ", ".join(sorted(standby))
    return HardwareCapacity(smallest.mbps * 1_000_000, explanation, tuple(sorted(smallest.physical_names)))


def _pick_uplinks(snapshot: LinkSnapshot) -> dict[int, list[int]]:
    """Pick the indexes of the devices that the kernel sends through, by IP version; a version without a default route is missing.

    The kernel uses the route of the least metric whose device is up, and all hops of a multipath route that are up. If no device is up, the
    first route counts.
    """
    up_indexes = {link.index for link in snapshot.links if link.is_up}
    uplinks_by_family: dict[int, list[int]] = {}
    for family in (4, 6):
        routes = sorted((route for route in snapshot.routes if route.family == family), key=lambda r: r.metric)
        usable = [route for route in routes if route.device_index in up_indexes] or routes
        if usable:
            best = usable[0]
            hops = [
                r for r in usable if r is best or (best.is_multipath and r.is_multipath and r.metric == best.metric)
            ]
            uplinks_by_family[family] = list(dict.fromkeys(hop.device_index for hop in hops))
    return uplinks_by_family


class _LinkResolver:
    """Resolves links to the physical devices below them."""

    def __init__(self, snapshot: LinkSnapshot) -> None:
        self._machine = snapshot.machine
        self._link_by_index = {link.index: link for link in snapshot.links}

    def name_of(self, index: int) -> str:
        """The name of a link, or its index if the link is gone."""
        return self._link_by_index[index].name if index in self._link_by_index else str(index)

    def resolve_route(self, uplinks: list[int]) -> _LinkSpeed:
        """Add up the speeds of a route's devices; a device that is reached twice counts once.

        Raises:
            _UnknownSpeedError: the speed of a device is unknown.
        """
        total_mbps, names = 0, frozenset[str]()
        explanations: list[str] = []
        for index in uplinks:
            if index not in self._link_by_index:
                raise _UnknownSpeedError(f"the default route's device {index} is not there")
            speed = self._resolve(self._link_by_index[index])
            if speed.physical_names <= names:
                explanations.append(f"{self.name_of(index)} (counted already)")
                continue
            if speed.physical_names & names:
                raise _UnknownSpeedError(f"{self.name_of(index)} shares some of its devices with another uplink")
            total_mbps, names = total_mbps + speed.mbps, names | speed.physical_names
            explanations.append(speed.explanation)
        return _LinkSpeed(total_mbps, " + ".join(explanations), names)

    def find_physical_names(self, index: int, depth: int = 0) -> frozenset[str]:
        """Find the names of the lowest devices below a link, whose counters show the node's traffic even if no speed is known."""
        link = self._link_by_index.get(index)
        if link is None or link.is_loopback or depth > _MAX_DEPTH:
            return frozenset()
        lower_indexes = [port.index for port in self._ports_of(link) if port.kind in _OUTWARD_KINDS]
        if link.kind in _KINDS_ON_PARENT and not link.is_parent_elsewhere and link.parent_index in self._link_by_index:
            lower_indexes.append(link.parent_index)
        if not lower_indexes:
            return frozenset({link.name})
        return frozenset[str]().union(*(self.find_physical_names(lower, depth + 1) for lower in lower_indexes))

    def _resolve(self, link: Link, depth: int = 0) -> _LinkSpeed:
        """Resolve a link; ``depth`` is the number of links that led to it."""
        unshaped = self._resolve_unshaped(link, depth)
        if link.root_qdisc not in _SHAPERS:
            return unshaped
        if link.root_qdisc_mbps is None:
            raise _UnknownSpeedError(
                f"{link.name}: its queueing discipline {link.root_qdisc} may limit it; set --capacity"
            )
        if link.root_qdisc_mbps >= unshaped.mbps:
            return unshaped
        return _LinkSpeed(
            link.root_qdisc_mbps, f"{unshaped.explanation}, limited by {link.root_qdisc}", unshaped.physical_names
        )

    def _resolve_unshaped(self, link: Link, depth: int) -> _LinkSpeed:
        if depth >= _MAX_DEPTH:
            raise _UnknownSpeedError(f"{link.name} is below {_MAX_DEPTH} other devices; set --capacity")
        if link.kind == "bond":
            return self._resolve_bond(link, depth)
        if link.kind == "bridge":
            return self._resolve_bridge(link, depth)
        if link.kind in _KINDS_ON_PARENT:
            speed = self._resolve(self._parent_of(link), depth + 1)
            return _LinkSpeed(speed.mbps, f"{link.name} on {speed.explanation}", speed.physical_names)
        return self._resolve_hardware(link)

    def _ports_of(self, link: Link) -> list[Link]:
        """The slaves of a bond, or the ports of a bridge."""
        return [port for port in self._link_by_index.values() if port.master_index == link.index]

    def _parent_of(self, link: Link) -> Link:
        if link.is_parent_elsewhere:
            raise _UnknownSpeedError(f"{link.name}: the device below is in another network namespace")
        parent = self._link_by_index.get(link.parent_index) if link.parent_index is not None else None
        if parent is None:
            raise _UnknownSpeedError(f"{link.name}: the device below is not there")
        return parent

    def _resolve_bond(self, link: Link, depth: int) -> _LinkSpeed:
        """Resolve to the active slave in active-backup; else, of the slaves that are up, to the sum or the slowest."""
        slaves, mode = self._ports_of(link), link.bond_mode
        name = BOND_MODES[mode] if mode is not None and mode < len(BOND_MODES) else link.kind
        if mode == BOND_ACTIVE_BACKUP:
            slaves = [slave for slave in slaves if slave.index == link.active_slave_index]
            if not slaves:
                raise _UnknownSpeedError(f"{link.name} ({name}) has no active slave")
        if mode == BOND_LACP and link.active_aggregator is not None:
            # Slaves that negotiated with another switch, or with none, are in other aggregators (bond_3ad.c).
            slaves = [slave for slave in slaves if slave.slave_aggregator in {None, link.active_aggregator}]
        slaves = [slave for slave in slaves if slave.is_up]
        if not slaves:
            raise _UnknownSpeedError(f"{link.name} ({name}) has no slave that is up")
        speeds = [self._resolve(slave, depth + 1) for slave in slaves]
        names = frozenset[str]().union(*(speed.physical_names for speed in speeds))
        # The slowest slave limits both: broadcast sends everything on each slave, balance-tlb receives on one slave only.
        combine = min if mode in {BOND_BROADCAST, BOND_TLB} else sum
        explanation = f"{link.name} ({name}: {', '.join(speed.explanation for speed in speeds)})"
        return _LinkSpeed(combine(speed.mbps for speed in speeds), explanation, names)

    def _resolve_bridge(self, link: Link, depth: int) -> _LinkSpeed:
        """Resolve to the slowest of the ports that are up and lead out of the machine, because the path is unknown."""
        ports = [port for port in self._ports_of(link) if port.is_up and port.kind in _OUTWARD_KINDS]
        if not ports:
            raise _UnknownSpeedError(f"{link.name}: no port that is up leads out of this machine")
        speeds = [self._resolve(port, depth + 1) for port in ports]
        slowest = min(speeds, key=lambda speed: speed.mbps)
        suffix = f", slowest of {len(speeds)} ports" if len(speeds) > 1 else ""
        names = frozenset[str]().union(*(speed.physical_names for speed in speeds))
        return _LinkSpeed(slowest.mbps, f"{link.name} on {slowest.explanation}{suffix}", names)

    def _resolve_hardware(self, link: Link) -> _LinkSpeed:
        """Return the speed of a device that has none below it, if the speed is reliable."""
        if link.is_loopback:
            raise _UnknownSpeedError(f"{link.name} is the loopback")
        if link.kind:  # A veth pair, for example, reports 10 Gbit/s.
            raise _UnknownSpeedError(
                f"{link.name}: the speed of a device of kind {link.kind} is not known; set --capacity"
            )
        if link.is_virtual_function:
            raise _UnknownSpeedError(f"{link.name} is a virtual function, which shares its port; set --capacity")
        unreliable_reason = _UNRELIABLE_DRIVERS.get(link.driver)
        evidence = self._machine.hypervisor_evidence
        if unreliable_reason is None and self._machine.asset_tag == AZURE_ASSET_TAG:
            unreliable_reason = "Azure's ports are faster than what the instance may use"
        elif unreliable_reason is None and evidence:
            unreliable_reason = f"inside a virtual machine ({evidence}) a speed is the port's, not the guest's"
        if unreliable_reason is not None:
            raise _UnknownSpeedError(
                f"{link.name}: {unreliable_reason}; set --capacity, or a capacity by instance type"
            )
        if not link.is_up:
            raise _UnknownSpeedError(f"{link.name} is down")
        source, mbps = ("psutil", link.psutil_mbps) if link.sysfs_mbps is None else ("sysfs", link.sysfs_mbps)
        if mbps is None or not 0 < mbps <= _MAX_MBPS:
            driver = f" ({link.driver})" if link.driver else ""
            reason = f" ({source} reports {mbps})" if mbps is not None else ""
            raise _UnknownSpeedError(f"{link.name}{driver}: its speed is unknown{reason}")
        shown = f"{mbps / 1000:g}G" if mbps >= 1000 else f"{mbps}M"
        return _LinkSpeed(mbps, f"{link.name} {shown} by {source}", frozenset({link.name}))
