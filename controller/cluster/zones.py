"""Zones, their regions, and the location of each node, from node labels.

An agent announces itself by an annotation on its node; the plan takes only Ready, schedulable nodes that have it. A node without a
zone label takes no part, and the status says so.
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
        zones: zone -> region of most of its nodes, for which costs are written; empty if none has one.
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
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    places: dict[str, Place] = {}
    unzoned: list[str] = []
    for node in nodes:
        labels = node.metadata.labels or {}
        zone, region = labels.get(ZONE_LABEL, ""), labels.get(REGION_LABEL, "")
        places[node.metadata.name] = Place(node.metadata.name, zone, region)
        if zone:
            votes[zone][region] += 1
        else:
            unzoned.append(node.metadata.name)
    return ZoneMap(
        zones={zone: _winner(votes[zone]) for zone in sorted(votes)},
        places=places,
        unzoned=tuple(sorted(unzoned)),
        conflicting_regions=tuple(sorted(zone for zone, regions in votes.items() if len(regions) > 1)),
    )


def _winner(regions: Counter[str]) -> str:
    """The region of most nodes; of equals the first bytewise, but any before none."""
    return min(regions, key=lambda region: (-regions[region], not region, region))


class AgentPods(NamedTuple):
    """The agent's pods on one node: whether one of them is Ready, and their addresses."""

    ready: bool
    ips: tuple[str, ...] = ()


def facts_of(node: Node, agent_pods: Mapping[str, AgentPods]) -> ProbeNode:
    """A node as probe planning reads it.

    Args:
        node: the node.
        agent_pods: by node; nodes that are not in it have an agent outside pods, if any.
    """
    note = read_announcement(node.metadata.annotation(AGENT_ANNOTATION))
    pods = agent_pods.get(node.metadata.name, AgentPods(ready=True))
    own = {read_address(text) for text in (*(a.address for a in node.status.addresses or ()), *pods.ips)}
    text = note.address if note is not None and note.address else node.status.internal_ip
    address = read_address(text)
    return ProbeNode(
        name=node.metadata.name,
        address=text if address is None else str(address),  # An IPv6 address has several spellings.
        zone=node.metadata.label(ZONE_LABEL),
        region=node.metadata.label(REGION_LABEL),
        ready=node.ready,
        schedulable=not node.spec.unschedulable,
        agent_ready=note is not None and pods.ready,
        address_is_own=address is not None and address in own,
    )


def agent_pods_by_node(pods: Iterable[PodInfo]) -> dict[str, AgentPods]:
    """The agent's pods by node (two exist for a moment in a rolling update)."""
    by_node: dict[str, AgentPods] = {}
    for pod in pods:
        if pod.node:
            ready, ips = by_node.get(pod.node, AgentPods(ready=False))
            by_node[pod.node] = AgentPods(ready or (pod.ready and not pod.leaving), (*ips, *pod.ips))
    return by_node


def same_place(old: Node | None, new: Node | None) -> bool:
    """Whether a change of a node leaves the map unchanged, as heartbeats do."""
    if old is None or new is None:
        return False
    return all(old.metadata.label(key) == new.metadata.label(key) for key in (ZONE_LABEL, REGION_LABEL))


def same_facts(old: Node | None, new: Node | None) -> bool:
    """Whether a change of a node leaves the probe plan unchanged, as heartbeats do."""
    if old is None or new is None:
        return False
    return facts_of(old, {}) == facts_of(new, {})
