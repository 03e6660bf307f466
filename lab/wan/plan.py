"""The forwarder's configuration as JSON: nodes, links between sites, live changes."""

from __future__ import annotations

import msgspec

from lab.topology import Link, Topology, site_pair
from lab.wan.delays import OneWay


class WanNode(msgspec.Struct, frozen=True):
    """A node of the network: its site, the namespace that holds its device, its IPv4 address, its card's nominal speed, and
    further addresses that are reached through it, its pods', in CIDR notation.
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
        """Both ways between its ends; one inside a site."""
        return {(self.origin, self.destination), (self.destination, self.origin)}

    def one_way(self) -> OneWay:
        """Each direction gets half of the round trip and half of its jitter."""
        link = self.link
        return OneWay(link.rtt_us / 2e6, link.jitter_us / 2e6, link.loss)


class WanPlan(msgspec.Struct, frozen=True):
    """Configuration of the network's process. ``device`` is the device's name in every node's namespace."""

    device: str
    seed: int
    nodes: list[WanNode]
    links: list[WanLink]


class Command(msgspec.Struct, frozen=True):
    """A request on the control socket: ``op`` is ``links``, ``set`` (with ``link``) or ``counters``."""

    op: str
    link: WanLink | None = None


class Answer(msgspec.Struct, frozen=True):
    """The reply to a Command; ``error`` is empty when it worked."""

    error: str = ""
    links: list[WanLink] = []
    forwarded: int = 0
    lost: int = 0
    dropped: int = 0
    late_us: float = 0.0


def to_wan_link(origin: str, destination: str, link: Link) -> WanLink:
    """Name the ends of a link, in bytewise order."""
    return WanLink(*site_pair(origin, destination), link)


def links_of(topology: Topology) -> list[WanLink]:
    """All links of a topology, also those inside the sites."""
    between = [to_wan_link(a, b, link) for (a, b), link in sorted(topology.links.items())]
    return between + [to_wan_link(zone, zone, topology.same_zone) for zone in topology.zones]
