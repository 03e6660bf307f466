"""Zones, their regions, and the location of each node, from node labels."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from controller.cluster.costs import location_of
from kubekit.wire import Node
from netperf.sample import NodeLocation


class ZoneMap(msgspec.Struct, frozen=True):
    """Zones of the cluster, and the location of each node.

    Attributes:
        region_by_zone: zone -> the region that most of its nodes have; empty if most have none.
        location_by_node: node name -> its own zone and region; either may be empty.
        unzoned_nodes: names of nodes without a zone label, sorted.
        zones_with_conflicting_regions: zones whose nodes have different regions, or only some with a region, sorted.
    """

    region_by_zone: dict[str, str]
    location_by_node: dict[str, NodeLocation]
    unzoned_nodes: tuple[str, ...] = ()
    zones_with_conflicting_regions: tuple[str, ...] = ()


def build_zone_map(nodes: Iterable[Node]) -> ZoneMap:
    """Read zones and regions from nodes' labels."""
    counts_by_zone: dict[str, Counter[str]] = defaultdict(Counter)
    location_by_node: dict[str, NodeLocation] = {}
    for node in nodes:
        region, zone = location_of(node)
        location_by_node[node.metadata.name] = NodeLocation(node.metadata.name, zone, region)
        if zone:
            counts_by_zone[zone][region] += 1
    conflicting_zones = sorted(zone for zone, counts in counts_by_zone.items() if len(counts) > 1)
    region_by_zone: dict[str, str] = {}
    for zone, counts in sorted(counts_by_zone.items()):
        # The most frequent region. Among equally frequent ones, any region comes before none, then the first bytewise.
        region_by_zone[zone] = min((-count, not region, region) for region, count in counts.items())[2]
    return ZoneMap(
        region_by_zone=region_by_zone,
        location_by_node=location_by_node,
        unzoned_nodes=tuple(sorted(name for name, location in location_by_node.items() if not location.zone)),
        zones_with_conflicting_regions=tuple(conflicting_zones),
    )


def is_location_unchanged(old: Node | None, new: Node | None) -> bool:
    """Whether two versions of a node have the same zone and region, as after a heartbeat."""
    return old is not None and new is not None and location_of(old) == location_of(new)
