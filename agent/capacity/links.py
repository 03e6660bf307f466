"""Data types: a node's links, routes and machine, in a form that can be recorded and shown.

Speeds are kept as they were read, -1 included; `agent.capacity.rules` decides which of them to use.
"""

from __future__ import annotations

import msgspec

BOND_ACTIVE_BACKUP, BOND_BROADCAST, BOND_LACP, BOND_TLB = 1, 3, 4, 5
BOND_MODES = ("balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb")
"""Names of the bonding modes by number (linux/if_bonding.h)."""


class Link(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One network device.

    Attributes:
        index, name: of the device.
        kind: IFLA_INFO_KIND, such as ``bond`` or ``vlan``; empty for hardware and loopback.
        is_up: IFF_UP is set and there is a carrier.
        parent_index: IFLA_LINK, the index of the device below or, for veth, of the peer.
        is_parent_elsewhere: the parent is in another network namespace, so its index means nothing here.
        master_index: index of the bond, bridge or switch that this device belongs to.
        is_physical: a hardware device is behind it (``/sys/class/net/X/device``).
        driver: kernel driver of that device; empty if unknown.
        is_loopback: IFF_LOOPBACK.
        bond_mode: of a bond, an index of `BOND_MODES`.
        active_slave_index: index of an active-backup bond's active slave.
        active_aggregator: number of an 802.3ad bond's active aggregator.
        slave_aggregator: number of the aggregator that this slave of an 802.3ad bond belongs to.
        is_virtual_function: it is a virtual function of an SR-IOV device.
        root_qdisc: kind of its root qdisc; empty if it has none or was not read.
        root_qdisc_mbps: rate of that qdisc in Mbit/s, rounded down; None unless it is a token bucket.
        sysfs_mbps: content of the file ``speed``; None if the file cannot be read, and for virtual devices.
        psutil_mbps: psutil's speed, 0 for unknown; None if it is not needed, or psutil does not list the device.
    """

    index: int
    name: str
    kind: str = ""
    is_up: bool = True
    parent_index: int | None = None
    is_parent_elsewhere: bool = False
    master_index: int | None = None
    is_physical: bool = False
    driver: str = ""
    is_loopback: bool = False
    bond_mode: int | None = None
    active_slave_index: int | None = None
    active_aggregator: int | None = None
    slave_aggregator: int | None = None
    is_virtual_function: bool = False
    root_qdisc: str = ""
    root_qdisc_mbps: int | None = None
    sysfs_mbps: int | None = None
    psutil_mbps: int | None = None


class Route(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A hop of a default route of the main table.

    Attributes:
        device_index: of the device that the hop leads through.
        metric: the route's; the kernel prefers the least.
        family: IP version, 4 or 6.
        is_multipath: the route has several hops.
    """

    device_index: int
    metric: int = 0
    family: int = 4
    is_multipath: bool = False


class Machine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine's identity by its firmware (DMI); empty fields are unknown.

    Attributes:
        vendor, product, asset_tag: DMI's ``sys_vendor``, ``product_name`` and ``chassis_asset_tag``.
        hypervisor_evidence: how it is known that this is a virtual machine; empty for hardware.
    """

    vendor: str = ""
    product: str = ""
    asset_tag: str = ""
    hypervisor_evidence: str = ""


class LinkSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The input of `agent.capacity.rules`."""

    links: tuple[Link, ...]
    routes: tuple[Route, ...] = ()
    machine: Machine = Machine()
