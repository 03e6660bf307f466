"""Zones, their regions, and the location of each node, from node labels.

An agent announces itself by an annotation on its node. Only Ready, schedulable nodes with that annotation and a zone label are
probed. The NetworkTopology's status names nodes without a zone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from controller.cluster.costs import location_of
from controller.cluster.pod_info import PodInfo
from kubekit.addresses import parse_address
from kubekit.wire import Node
from netperf.contract import AGENT_ANNOTATION, REGION_LABEL, ZONE_LABEL, decode_announcement
from netperf.pairs import ProbeNode
from netperf.sample import NodeLocation

SHOWN_NODES = 5
"""Nodes that a message names."""


class ZoneMap(msgspec.Struct, frozen=True):
    """Zones of the cluster, and the location of each node.

    Attributes:
        zones: zone -> the region that most of its nodes have; empty if none has one. Costs are written for it.
        locations: node name -> its own zone and region; either may be empty.
        unzoned: nodes without a zone label, sorted.
        conflicting_regions: zones whose nodes have different regions, or only some with one, sorted.
    """

    zones: dict[str, str]
    locations: dict[str, NodeLocation]
    unzoned: tuple[str, ...] = ()
    conflicting_regions: tuple[str, ...] = ()


def build_zone_map(nodes: Iterable[Node]) -> ZoneMap:
    """Read zones and regions from nodes' labels."""
    region_counts: dict[str, Counter[str]] = defaultdict(Counter)
    locations: dict[str, NodeLocation] = {}
    unzoned: list[str] = []
    for node in nodes:
        labels = node.metadata.labels or {}
        zone, region = labels.get(ZONE_LABEL, ""), labels.get(REGION_LABEL, "")
        locations[node.metadata.name] = NodeLocation(node.metadata.name, zone, region)
        if zone:
            region_counts[zone][region] += 1
        else:
            unzoned.append(node.metadata.name)
    return ZoneMap(
        zones={zone: _most_common_region(region_counts[zone]) for zone in sorted(region_counts)},
        locations=locations,
        unzoned=tuple(sorted(unzoned)),
        conflicting_regions=tuple(sorted(zone for zone, regions in region_counts.items() if len(regions) > 1)),
    )


def _most_common_region(regions: Counter[str]) -> str:
    """The most frequent region. Among equally frequent ones, a region comes before none, then the first bytewise."""
    return min(regions, key=lambda region: (-regions[region], not region, region))


class AgentPods(NamedTuple):
    """The agent's pods on one node: whether one of them is Ready, and their addresses."""

    is_ready: bool
    ips: tuple[str, ...] = ()


def to_probe_node(node: Node, agent_pods: Mapping[str, AgentPods]) -> ProbeNode:
    """Convert a node for probe planning.

    Args:
        node: the node.
        agent_pods: by node name. Without an entry the agent counts as ready, because it may run outside of a pod.
    """
    announcement = decode_announcement(node.metadata.annotation(AGENT_ANNOTATION))
    pods = agent_pods.get(node.metadata.name, AgentPods(is_ready=True))
    known_addresses = {parse_address(text) for text in (*(a.address for a in node.status.addresses or ()), *pods.ips)}
    text = announcement.address if announcement is not None and announcement.address else node.status.internal_ip
    address = parse_address(text)
    return ProbeNode(
        name=node.metadata.name,
        address=text if address is None else str(address),  # Normalized, because an IPv6 address has several spellings.
        zone=node.metadata.label(ZONE_LABEL),
        region=node.metadata.label(REGION_LABEL),
        is_ready=node.is_ready,
        is_schedulable=not node.spec.unschedulable,
        has_ready_agent=announcement is not None and pods.is_ready,
        has_own_address=address is not None and address in known_addresses,
    )


def agent_pods_by_node(pods: Iterable[PodInfo]) -> dict[str, AgentPods]:
    """The agent's pods by node name; a rolling update may have two on one node for a moment."""
    by_node: dict[str, AgentPods] = {}
    for pod in pods:
        if pod.node:
            is_ready, ips = by_node.get(pod.node, AgentPods(is_ready=False))
            by_node[pod.node] = AgentPods(is_ready or (pod.is_ready and not pod.is_terminating), (*ips, *pod.ips))
    return by_node


def is_location_unchanged(old: Node | None, new: Node | None) -> bool:
    """Whether two versions of a node have the same zone and region, for example after a heartbeat."""
    return old is not None and new is not None and location_of(old) == location_of(new)


def is_probe_node_unchanged(old: Node | None, new: Node | None) -> bool:
    """Whether two versions of a node are equal for the probe plan."""
    return old is not None and new is not None and to_probe_node(old, {}) == to_probe_node(new, {})
