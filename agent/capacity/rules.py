"""From links to a capacity: which device carries the default route, what is below it, and whose speed can be believed.

Pure: a snapshot in, a finding with its explanation out. Where in doubt the smaller number, and where nobody knows none at
all, because a scheduler that trusts a fiction places pods on bandwidth that is not there (node bandwidth capacity,
docs/contracts).
"""

from __future__ import annotations

import ipaddress

import msgspec

from agent.capacity.links import (
    BOND_ACTIVE_BACKUP,
    BOND_BROADCAST,
    BOND_LACP,
    BOND_MODES,
    BRIDGE_FORWARDING,
    Link,
    LinkSnapshot,
    Machine,
    Route,
)
from agent.capacity.node_bandwidth import Finding

_ON_PARENT = frozenset({"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"})
_TUNNELS = frozenset(
    {"vxlan", "geneve", "gre", "gretap", "ip6gre", "ip6gretap", "erspan", "ip6erspan", "ipip", "sit", "ip6tnl"}
    | {"wireguard", "vti", "vti6", "xfrm", "amt", "bareudp"}
)
_SWITCH_INSIDES = frozenset({"veth", "tun", "tap", "dummy", "ifb", "openvswitch"} | _TUNNELS)
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
_MOST_MBPS = 1_600_000
"""1.6 Tbit/s: the next generation of Ethernet. More is a driver's way to say that it does not know."""
_DEEPEST = 8


class _Unknown(Exception):  # noqa: N818 - an answer, not an error
    """A capacity that cannot be told; the text says why."""


class _Found(msgspec.Struct, frozen=True):
    mbps: int
    how: str
    physical: frozenset[str]


def find_capacity(snapshot: LinkSnapshot) -> Finding:
    """The capacity of a node's uplinks.

    Several default routes of the same metric are used together, so their devices add up; those of a greater metric wait
    for a failure and do not count, nor do those that are down while others are up. A device that is reached twice, as two
    VLANs of one bond, counts once.
    """
    links = snapshot.by_index()
    uplinks, standby = pick_uplinks(snapshot)
    if not uplinks:
        return Finding(None, "there is no default route")
    total_mbps = 0
    counted: set[str] = set()
    parts: list[str] = []
    down = [index for index in uplinks if index in links and not links[index].up]
    if len(down) < len(uplinks):
        uplinks = [index for index in uplinks if index not in down]
    else:
        down = []
    try:
        for index in uplinks:
            if index not in links:
                raise _Unknown(f"the default route's device {index} is not there")
            found = _resolve(links[index], snapshot, links, ())
            if found.physical <= counted:
                parts.append(f"{links[index].name} (counted already)")
                continue
            if found.physical & counted:
                raise _Unknown(f"{links[index].name} shares some of its devices with another uplink")
            counted |= found.physical
            total_mbps += found.mbps
            parts.append(found.how)
    except _Unknown as reason:
        return Finding(None, str(reason), _physical_names(uplinks, links))
    how = " + ".join(parts)
    for state, indexes in (("standby", standby), ("down", down)):
        if indexes:
            how += f"; {state}: " + ", ".join(links[i].name if i in links else str(i) for i in indexes)
    return Finding(total_mbps * 1_000_000, how, tuple(sorted(counted)))


def pick_uplinks(snapshot: LinkSnapshot) -> tuple[list[int], list[int]]:
    """Devices of the default routes in use, and of those that wait, each in the order of the table."""
    used: list[int] = []
    waiting: list[int] = []
    for family in (4, 6):
        defaults = [route for route in snapshot.routes if not route.destination and route.family == family]
        best = min((route.metric for route in defaults), default=0)
        for route in defaults:
            (used if route.metric == best else waiting).append(route.device)
    # A device that is in use for one family is in use.
    return list(dict.fromkeys(used)), [i for i in dict.fromkeys(waiting) if i not in used]


def _resolve(link: Link, snapshot: LinkSnapshot, links: dict[int, Link], seen: tuple[int, ...]) -> _Found:
    if link.index in seen or len(seen) >= _DEEPEST:
        raise _Unknown(f"{link.name}: its lower devices form a loop")
    seen = (*seen, link.index)
    if link.kind in {"bond", "team"}:
        return _bundle(link, snapshot, links, seen)
    if link.kind in _ON_PARENT:
        return _above(link, _parent(link, links), snapshot, links, seen)
    if link.kind == "bridge":
        ports = [port for port in links.values() if port.master == link.index]
        return _through_switch(link, ports, snapshot, links, seen)
    if link.kind == "openvswitch":
        datapaths = {other.index for other in links.values() if other.kind == "openvswitch"}
        ports = [port for port in links.values() if port.master in datapaths]
        return _through_switch(link, ports, snapshot, links, seen)
    if link.kind in _TUNNELS:
        return _above(link, _underlay(link, snapshot, links), snapshot, links, seen)
    return _hardware(link, snapshot, links)


def _above(link: Link, lower: Link, snapshot: LinkSnapshot, links: dict[int, Link], seen: tuple[int, ...]) -> _Found:
    found = _resolve(lower, snapshot, links, seen)
    return msgspec.structs.replace(found, how=f"{link.name} on {found.how}")


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
        # Ports that negotiated with another switch, or with none, wait in aggregators of their own (bond_3ad.c).
        slaves = [slave for slave in slaves if slave.aggregator in {None, link.aggregator}]
    live = [slave for slave in slaves if slave.up]
    if not live:
        raise _Unknown(f"{link.name} ({name}) has no slave that is up")
    found = [_resolve(slave, snapshot, links, seen) for slave in live]
    physical = frozenset[str]().union(*(one.physical for one in found))
    speeds = [one.mbps for one in found]
    # How a team spreads its traffic is known to its daemon only.
    smallest = mode == BOND_BROADCAST or link.kind == "team"
    how = f"{link.name} ({name}: {', '.join(one.how for one in found)})"
    return _Found(min(speeds) if smallest else sum(speeds), how, physical)


def _through_switch(
    link: Link, ports: list[Link], snapshot: LinkSnapshot, links: dict[int, Link], seen: tuple[int, ...]
) -> _Found:
    """A bridge or Open vSwitch: the ports that lead out. Of several the slowest, since the path is not ours to know."""
    outward = [
        port
        for port in ports
        if port.up and port.kind not in _SWITCH_INSIDES and port.port_state in {None, BRIDGE_FORWARDING}
    ]
    if not outward:
        raise _Unknown(f"{link.name}: none of its {len(ports)} ports leads out of this machine")
    found = [_resolve(port, snapshot, links, seen) for port in outward]
    slowest = min(found, key=lambda one: one.mbps)
    of_several = f", slowest of {len(found)} ports" if len(found) > 1 else ""
    physical = frozenset[str]().union(*(one.physical for one in found))
    return _Found(slowest.mbps, f"{link.name} on {slowest.how}{of_several}", physical)


def _underlay(link: Link, snapshot: LinkSnapshot, links: dict[int, Link]) -> Link:
    """The device that a tunnel's packets leave by."""
    if link.parent is not None and link.parent not in {0, link.index} and not link.parent_elsewhere:
        return _parent(link, links)
    candidates = [route for route in snapshot.routes if route.device != link.index and route.device in links]
    if link.remote:
        routed = [route for route in candidates if _covers(route, link.remote)]
        if routed:
            best = max(routed, key=lambda route: (_prefix_length(route), -route.metric))
            return links[best.device]
    devices = {route.device for route in candidates if not route.destination}
    if not devices:
        devices = {other.index for other in links.values() if other.physical and other.up}
    if len(devices) != 1:
        raise _Unknown(f"{link.name}: which of {len(devices)} devices the tunnel uses cannot be told")
    return links[devices.pop()]


def _covers(route: Route, address: str) -> bool:
    if not route.destination:
        return route.family == ipaddress.ip_address(address).version
    network = ipaddress.ip_network(route.destination, strict=False)
    return ipaddress.ip_address(address) in network


def _prefix_length(route: Route) -> int:
    return ipaddress.ip_network(route.destination, strict=False).prefixlen if route.destination else 0


def _hardware(link: Link, snapshot: LinkSnapshot, links: dict[int, Link]) -> _Found:
    """The speed of a device with nothing below it, unless it is a fiction."""
    if link.loopback:
        raise _Unknown(f"{link.name} is the loopback")
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
    how = f"{link.name} {_shown(mbps)} by {source}"
    if link.physical_function:
        return _virtual_function(link, mbps, how, links)
    return _Found(mbps, how, frozenset({link.name}))


def _virtual_function(link: Link, mbps: int, how: str, links: dict[int, Link]) -> _Found:
    """An SR-IOV function reports its port's speed; the physical function knows whether it is limited to less."""
    owner = next((other for other in links.values() if other.name == link.physical_function), None)
    if owner is None:
        return _Found(mbps, f"{how} (virtual function, shares its port)", frozenset({link.name}))
    port_mbps, _ = read_speed(owner)
    limit_mbps = owner.vf_rates_mbps.get(link.vf_number, 0) if link.vf_number is not None else 0
    least = min(speed for speed in (mbps, port_mbps, limit_mbps) if speed)
    limited = f", limited to {_shown(limit_mbps)}" if limit_mbps and limit_mbps == least else ""
    return _Found(least, f"{how} (virtual function of {owner.name}{limited})", frozenset({link.name}))


def read_speed(link: Link) -> tuple[int | None, str]:
    """The speed in Mbit/s by the first source that knows it, and which; or None, and what they said.

    ethtool over netlink first, then the file in sysfs, then psutil, which works where neither does.
    """
    said: list[str] = []
    for source, mbps in (("ethtool", link.ethtool_mbps), ("sysfs", link.sysfs_mbps), ("psutil", link.psutil_mbps)):
        if mbps is None:
            continue
        if 0 < mbps <= _MOST_MBPS:
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
    found: set[str] = set()
    todo = [links[index] for index in uplinks if index in links]
    seen: set[int] = set()
    while todo:
        link = todo.pop()
        if link.index in seen:
            continue
        seen.add(link.index)
        lowers = [other for other in links.values() if other.master == link.index and other.kind not in _SWITCH_INSIDES]
        parent = links.get(link.parent) if link.parent is not None and not link.parent_elsewhere else None
        if link.kind in _ON_PARENT and parent is not None:
            lowers.append(parent)
        if lowers:
            todo += lowers
        elif not link.loopback:
            found.add(link.name)
    return tuple(sorted(found))
