"""Converts nodes, with the agents that announce themselves by annotations, for the probe plan of `netperf.pairs`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from controller.cluster.pod_info import PodInfo
from kubekit.addresses import parse_address
from kubekit.wire import Node
from netperf.contract import AGENT_ANNOTATION, REGION_LABEL, ZONE_LABEL, decode_announcement
from netperf.pairs import ProbeNode


class AgentPods(NamedTuple):
    """The agent's pods on one node: whether one of them is Ready and not terminating, and the addresses of all."""

    is_ready: bool
    ips: tuple[str, ...] = ()


def agent_pods_by_node(pods: Iterable[PodInfo]) -> dict[str, AgentPods]:
    """The agent's pods by node name. A rolling update may have two on one node for a moment."""
    agent_pods: dict[str, AgentPods] = {}
    for pod in pods:
        if pod.node:
            is_ready, ips = agent_pods.get(pod.node, AgentPods(is_ready=False))
            agent_pods[pod.node] = AgentPods(is_ready or (pod.is_ready and not pod.is_terminating), (*ips, *pod.ips))
    return agent_pods


def to_probe_node(node: Node, agent_pods: Mapping[str, AgentPods]) -> ProbeNode:
    """Convert a node; ``agent_pods`` are by node name.

    A node without agent pods has a ready agent if one announces itself: it may run outside of a pod.
    """
    announcement = decode_announcement(node.metadata.annotation(AGENT_ANNOTATION))
    pods = agent_pods.get(node.metadata.name, AgentPods(is_ready=True))
    own_addresses = {parse_address(text) for text in (*(a.address for a in node.status.addresses or ()), *pods.ips)}
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
        has_own_address=address is not None and address in own_addresses,
    )


def is_probe_node_unchanged(old: Node | None, new: Node | None) -> bool:
    """Whether two versions of a node are equal for the probe plan."""
    return old is not None and new is not None and to_probe_node(old, {}) == to_probe_node(new, {})
