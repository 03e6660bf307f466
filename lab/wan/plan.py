"""JSON structs of the emulated network: its configuration, and the messages of its control socket."""

from __future__ import annotations

import msgspec

from lab.topology import Link, Topology, zone_pair
from lab.wan.delays import LinkDirection


class WanNode(msgspec.Struct, frozen=True):
    """A node of the network.

    Attributes:
        netns: name of the namespace with its device.
        nic_bps: speed of its network card, bits per second.
        pod_range: addresses of its pods, in CIDR notation; empty without a real kubelet.
    """

    zone: str
    netns: str
    address: str
    nic_bps: int
    pod_range: str = ""


class WanLink(msgspec.Struct, frozen=True):
    """A link between two zones, or inside a zone, which is then origin and destination."""

    origin: str
    destination: str
    link: Link

    @property
    def directions(self) -> set[tuple[str, str]]:
        """(Origin, destination) of both directions; one pair for a link inside a zone."""
        return {(self.origin, self.destination), (self.destination, self.origin)}

    def to_direction(self) -> LinkDirection:
        """Return one direction of the link, with half of its round trip and of its jitter."""
        return LinkDirection(self.link.rtt_us / 2e6, self.link.jitter_us / 2e6, self.link.loss)


class WanPlan(msgspec.Struct, frozen=True):
    """Configuration of the forwarder. ``device`` is the name of the TUN device in every node's namespace; ``seed`` sets loss and jitter."""

    device: str
    seed: int
    nodes: list[WanNode]
    links: list[WanLink]


class Command(msgspec.Struct, frozen=True):
    """A request on the control socket: to replace ``link``, or to return all links if it is None."""

    link: WanLink | None = None


class Reply(msgspec.Struct, frozen=True):
    """The reply to a Command: ``error`` is empty after success; ``links`` are all links, or the changed one."""

    error: str = ""
    links: list[WanLink] = []


def to_wan_link(origin: str, destination: str, link: Link) -> WanLink:
    """Return a link with the names of its two zones, in bytewise order."""
    return WanLink(*zone_pair(origin, destination), link)


def list_links(topology: Topology) -> list[WanLink]:
    """Return all links of a topology, also those inside zones."""
    links_between = [to_wan_link(a, b, link) for (a, b), link in sorted(topology.links.items())]
    return links_between + [to_wan_link(zone, zone, topology.same_zone) for zone in topology.zones]
