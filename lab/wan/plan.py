"""JSON structs of the emulated network: its configuration, and the messages of its control socket."""

from __future__ import annotations

import msgspec

from lab.topology import Link, Topology, zone_pair
from lab.wan.delays import LinkDirection


class WanNode(msgspec.Struct, frozen=True):
    """A node of the network.

    Attributes:
        site: its zone.
        netns: the namespace with its device.
        address: its IPv4 address.
        nic_bps: speed of its network card, bits per second.
        routed_ranges: addresses of its pods, in CIDR notation.
    """

    site: str
    netns: str
    address: str
    nic_bps: int
    routed_ranges: tuple[str, ...] = ()


class WanLink(msgspec.Struct, frozen=True):
    """A link between two sites, or inside one."""

    origin: str
    destination: str
    link: Link

    @property
    def directions(self) -> set[tuple[str, str]]:
        """(From, to) for both directions; a single one for a link inside a site."""
        return {(self.origin, self.destination), (self.destination, self.origin)}

    def one_way(self) -> LinkDirection:
        """One direction of the link, with half of the round trip and of the jitter."""
        link = self.link
        return LinkDirection(link.rtt_us / 2e6, link.jitter_us / 2e6, link.loss)


class WanPlan(msgspec.Struct, frozen=True):
    """Configuration of the forwarder. ``device`` is the name of the TUN device in every node's namespace."""

    device: str
    seed: int
    nodes: list[WanNode]
    links: list[WanLink]


class Command(msgspec.Struct, frozen=True):
    """A request on the control socket: ``op`` is ``links``, ``set`` (with ``link``) or ``counters``."""

    op: str
    link: WanLink | None = None


class Reply(msgspec.Struct, frozen=True):
    """The reply to a Command; ``error`` is empty after success, ``late_us`` is as in `Counters`."""

    error: str = ""
    links: list[WanLink] = []
    forwarded: int = 0
    lost: int = 0
    dropped: int = 0
    late_us: float = 0.0


def to_wan_link(origin: str, destination: str, link: Link) -> WanLink:
    """A link with the names of its two sites, in bytewise order."""
    return WanLink(*zone_pair(origin, destination), link)


def list_links(topology: Topology) -> list[WanLink]:
    """All links of a topology, also those inside sites."""
    between = [to_wan_link(a, b, link) for (a, b), link in sorted(topology.links.items())]
    return between + [to_wan_link(zone, zone, topology.same_zone) for zone in topology.zones]
