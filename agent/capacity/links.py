"""Data types: a node's links, routes and machine, in a form that can be recorded and shown.

Speeds are kept as they were read, -1 included; `agent.capacity.rules` decides which of them to use.
"""

from __future__ import annotations

import msgspec

BOND_ACTIVE_BACKUP = 1
BOND_BROADCAST = 3
BOND_LACP = 4
BOND_TLB = 5
BOND_MODES = ("balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb")


class Link(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One network device.

    Attributes:
        index, name: of the device.
        kind: IFLA_INFO_KIND, such as ``bond`` or ``vlan``; empty for hardware and loopback.
        up: IFF_UP is set and there is a carrier.
        parent: IFLA_LINK, the index of the device below or, for veth, of the peer.
        parent_elsewhere: the parent is in another network namespace, so its index means nothing here.
        master: index of the bond, bridge or switch that this device belongs to.
        physical: a hardware device is behind it (``/sys/class/net/X/device``).
        driver: kernel driver of that device.
        loopback: IFF_LOOPBACK.
        bond_mode: see `BOND_MODES`.
        active_slave: index of an active-backup bond's active port.
        aggregator: number of an 802.3ad bond's active aggregator, or of a bond port's own aggregator.
        virtual_function: it is a virtual function of an SR-IOV device.
        root: kind of its root qdisc.
        root_mbps: rate of that qdisc in Mbit/s, if it is a token bucket.
        sysfs_mbps: the file ``speed``; None if it cannot be read.
        psutil_mbps: psutil's speed, 0 for unknown; None if the file can be read.
    """

    index: int
    name: str
    kind: str = ""
    up: bool = True
    parent: int | None = None
    parent_elsewhere: bool = False
    master: int | None = None
    physical: bool = False
    driver: str = ""
    loopback: bool = False
    bond_mode: int | None = None
    active_slave: int | None = None
    aggregator: int | None = None
    virtual_function: bool = False
    root: str = ""
    root_mbps: int | None = None
    sysfs_mbps: int | None = None
    psutil_mbps: int | None = None


class Route(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A hop of a default route of the main table.

    Attributes:
        device: index of the device.
        family: IP version, 4 or 6.
        multipath: the route has several hops.
    """

    device: int
    metric: int = 0
    family: int = 4
    multipath: bool = False


class Machine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine's identity by its firmware (DMI); empty fields are unknown.

    Attributes:
        vendor, product, asset_tag: DMI fields.
        hypervisor: evidence that this is a virtual machine; empty for hardware.
    """

    vendor: str = ""
    product: str = ""
    asset_tag: str = ""
    hypervisor: str = ""


class LinkSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `agent.capacity.rules` decides from."""

    links: tuple[Link, ...]
    routes: tuple[Route, ...] = ()
    machine: Machine = Machine()
