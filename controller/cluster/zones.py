"""Zones, their regions, and the location of each node, from node labels.

An agent announces itself by an annotation on its node. Only Ready, schedulable nodes with that annotation and a zone label are probed;
the NetworkTopology's status names nodes without a zone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from controller.cluster.pod_info import PodInfo
from kubekit.addresses import read_address
from kubekit.wire import Node
from netperf.contract import AGENT_ANNOTATION, REGION_LABEL, ZONE_LABEL, read_announcement
from netperf.pairs import ProbeNode
from netperf.sample import Place

SHOWN_NODES = 5


class ZoneMap(msgspec.Struct, frozen=True):
    """Zones of the cluster, and the place of each node in samples.

    Attributes:
        zones: zone -> region that most of its nodes have, empty if none has one; costs are written for it.
        places: every node by name; its zone may be empty.
        unzoned: nodes without a zone label, sorted.
        conflicting_regions: zones whose nodes have different regions; nodes of the minority may find no cost.
    """

    zones: dict[str, str]
    places: dict[str, Place]
    unzoned: tuple[str, ...] = ()
    conflicting_regions: tuple[str, ...] = ()


def build_zone_map(nodes: Iterable[Node]) -> ZoneMap:
    """Read zones and regions off the nodes' labels."""
    regions_of: dict[str, Counter[str]] = defaultdict(Counter)
    places: dict[str, Place] = {}
    unzoned: list[str] = []
    for node in nodes:
        labels = node.metadata.labels or {}
        zone, region = labels.get(ZONE_LABEL, ""), labels.get(REGION_LABEL, "")
        places[node.metadata.name] = Place(node.metadata.name, zone, region)
        if zone:
            regions_of[zone][region] += 1
        else:
            unzoned.append(node.metadata.name)
    return ZoneMap(
        zones={zone: _most_common(regions_of[zone]) for zone in sorted(regions_of)},
        places=places,
        unzoned=tuple(sorted(unzoned)),
        conflicting_regions=tuple(sorted(zone for zone, regions in regions_of.items() if len(regions) > 1)),
    )


def _most_common(regions: Counter[str]) -> str:
    """The most frequent region. Of equally frequent ones the first bytewise, and none last."""
    return min(regions, key=lambda region: (-regions[region], not region, region))


class AgentPods(NamedTuple):
    """The agent's pods on one node: whether one of them is Ready, and their addresses."""

    ready: bool
    ips: tuple[str, ...] = ()


def to_probe_node(node: Node, agent_pods: Mapping[str, AgentPods]) -> ProbeNode:
    """A node as probe planning reads it.

    Args:
        node: the node.
        agent_pods: by node; the agent of a node that is not in it may run outside pods, and counts as ready.
    """
    announcement = read_announcement(node.metadata.annotation(AGENT_ANNOTATION))
    pods = agent_pods.get(node.metadata.name, AgentPods(ready=True))
    own = {read_address(text) for text in (*(a.address for a in node.status.addresses or ()), *pods.ips)}
    text = announcement.address if announcement is not None and announcement.address else node.status.internal_ip
    address = read_address(text)
    return ProbeNode(
        name=node.metadata.name,
        address=text if address is None else str(address),  # An IPv6 address has several spellings.
        zone=node.metadata.label(ZONE_LABEL),
        region=node.metadata.label(REGION_LABEL),
        ready=node.ready,
        schedulable=not node.spec.unschedulable,
        agent_ready=announcement is not None and pods.ready,
        address_is_own=address is not None and address in own,
    )


def agent_pods_by_node(pods: Iterable[PodInfo]) -> dict[str, AgentPods]:
    """The agent's pods by node (two exist for a moment in a rolling update)."""
    by_node: dict[str, AgentPods] = {}
    for pod in pods:
        if pod.node:
            ready, ips = by_node.get(pod.node, AgentPods(ready=False))
            by_node[pod.node] = AgentPods(ready or (pod.ready and not pod.is_terminating), (*ips, *pod.ips))
    return by_node


def has_same_location(old: Node | None, new: Node | None) -> bool:
    """Whether a change of a node leaves its zone and region as they are, as heartbeats do."""
    if old is None or new is None:
        return False
    return all(old.metadata.label(key) == new.metadata.label(key) for key in (ZONE_LABEL, REGION_LABEL))


def has_same_probe_node(old: Node | None, new: Node | None) -> bool:
    """Whether a change of a node makes no difference to the probe plan."""
    if old is None or new is None:
        return False
    return to_probe_node(old, {}) == to_probe_node(new, {})
