"""Creates Node objects for nodes without a kubelet, which kwok keeps Ready, and waits until nodes are usable."""

from __future__ import annotations

import asyncio
from typing import Any

from kubekit.client import Client
from kubekit.wire import NODES, Node
from lab.controlplane import KWOK_NODE_ANNOTATION
from lab.errors import BootError
from lab.network import NodeNetwork
from lab.polling import poll_until
from lab.realnode.images import ARCHITECTURE
from lab.topology import LabNode
from netperf.contract import REGION_LABEL, ZONE_LABEL

_READY_TIMEOUT_S = 30.0
_POLL_S = 0.1


def build_node(network: NodeNetwork, lab: str) -> dict[str, Any]:
    """Return the Node object that a kubelet would register; allocatable equals capacity."""
    node = network.node
    labels = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": ARCHITECTURE,
        **build_topology_labels(node, lab),
    }
    capacity = {"cpu": node.cpu, "memory": node.memory, "pods": node.pods}
    addresses = [{"type": "InternalIP", "address": network.address}, {"type": "Hostname", "address": node.name}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": labels, "annotations": dict([KWOK_NODE_ANNOTATION])},
        "status": {"capacity": capacity, "allocatable": capacity, "addresses": addresses},
    }


def build_topology_labels(node: LabNode, lab: str) -> dict[str, str]:
    """Return the labels of a node's region, zone and lab."""
    return {REGION_LABEL: node.region, ZONE_LABEL: node.zone, "netaware.io/lab": lab}


async def register_nodes(client: Client, networks: tuple[NodeNetwork, ...], lab: str) -> None:
    """Create the Node objects of nodes without a kubelet, labelled with the lab's name."""
    async with asyncio.TaskGroup() as group:
        for network in networks:
            group.create_task(client.create(NODES, build_node(network, lab), Node))


async def await_usable_nodes(client: Client) -> None:
    """Wait until all nodes are usable. Raises BootError, with their names, if some are not after 30 s."""
    unusable_nodes: list[str] = []

    async def are_usable() -> bool:
        unusable_nodes[:] = [node.metadata.name for node in await client.list(NODES, Node) if not is_usable(node)]
        return not unusable_nodes

    def describe() -> str:
        return f"nodes to be Ready and without taints: {', '.join(unusable_nodes)}"

    await poll_until(are_usable, describe, _READY_TIMEOUT_S, every_s=_POLL_S, error=BootError)


def is_usable(node: Node) -> bool:
    """Whether a node is Ready and has none of the node controller's taints."""
    return node.is_ready and not [t for t in node.spec.taints or () if t.key.startswith("node.kubernetes.io/")]
