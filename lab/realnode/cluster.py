"""Starts the real nodes of a lab, their image registry, and the cluster's DNS and metrics-server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import yaml

from kubekit.client import MERGE_PATCH, Client
from kubekit.wire import NODES, Node
from lab.controlplane import ControlPlane, find_free_ports, object_exists
from lab.network import LabNetwork, pod_range_of_slot
from lab.programs import Programs
from lab.realnode import cgroups, machine
from lab.realnode.config_files import PAUSE_IMAGE
from lab.realnode.images import ImageStore
from lab.realnode.node import RealNode
from lab.realnode.programs import NodeBinaries

COREDNS_IMAGE = "registry.k8s.io/coredns/coredns:lab"
METRICS_SERVER_IMAGE = "registry.k8s.io/metrics-server/metrics-server:lab"
SCHEDULER_IMAGE = "registry.k8s.io/kube-scheduler"
APP_IMAGE = "netaware-lab-app:lab"
_MANIFESTS = Path(__file__).parents[2] / "manifests"
_SERVICES = Path(__file__).with_name("services.yaml")
# A start needs mostly CPU time. With more at once, kubelets do not register within `_REGISTER_TIMEOUT_S`.
_MAX_CONCURRENT_STARTS = 4
# Available memory per node above which images and containers are in memory. On disk, their deletion takes minutes.
_MEMORY_PER_NODE_BYTES = 2**30
_REGISTER_TIMEOUT_S = 90.0
_POLL_S = 0.1


@dataclass
class RealNodes:
    """The real nodes of a lab.

    Attributes:
        nodes: name of the Node object -> node.
        images: images that they can pull; None if there are no real nodes.
    """

    nodes: Mapping[str, RealNode] = field(default_factory=dict)
    images: ImageStore | None = None


async def start_real_nodes(
    lab: str,
    state_dir: Path,
    network: LabNetwork,
    *,
    control_plane: ControlPlane,
    programs: Programs,
    binaries: NodeBinaries,
) -> RealNodes:
    """Start the nodes with a range of pod addresses, and apply DNS and metrics-server. The nodes become Ready later.

    Raises:
        UnsupportedError: the machine cannot run real nodes.
        BootError: the registry did not start.
        ExceptionGroup: of BootErrors; a node's program did not start, or a node did not register.
    """
    environment, nft = binaries.debian.environment, binaries.debian.find_program("nft")
    assert nft is not None, "the programs of real nodes include nft"
    real_networks = [node_network for node_network in network.node_networks if node_network.pod_range]
    await asyncio.to_thread(machine.check_machine, environment, nft, node_count=len(real_networks))
    snapshotter = await asyncio.to_thread(machine.choose_snapshotter, state_dir)
    images = await asyncio.to_thread(_create_image_store, state_dir / "registry", binaries, control_plane)
    registry_address = f"{network.gateway}:{find_free_ports(1)[0]}"
    programs.start("registry", [sys.executable, "-m", "lab.realnode.registry", images.folder, registry_address])
    is_in_memory = psutil.virtual_memory().available > len(real_networks) * _MEMORY_PER_NODE_BYTES
    nodes = {
        node_network.node.name: RealNode(
            network=node_network,
            folder=state_dir / "nodes" / node_network.node.name,
            lab=lab,
            control_plane=control_plane,
            programs=programs,
            binaries=binaries,
            snapshotter=snapshotter,
            is_in_memory=is_in_memory,
            registry_url=f"http://{registry_address}",
            cluster_pod_range=pod_range_of_slot(network.slot),
        )
        for node_network in real_networks
    }
    semaphore = asyncio.Semaphore(_MAX_CONCURRENT_STARTS)
    async with Client(control_plane.client_config) as client, asyncio.TaskGroup() as group:
        for node in nodes.values():
            group.create_task(_start_node(node, client, semaphore))
    await control_plane.run_kubectl("apply", "--server-side", "-f", _SERVICES)
    return RealNodes(nodes, images)


async def _start_node(node: RealNode, client: Client, semaphore: asyncio.Semaphore) -> None:
    async with semaphore:
        cgroups.create(node.cgroup)
        await node.start()
        await node.programs.wait_until(
            partial(object_exists, client, NODES, node.name),
            lambda: f"node {node.name} to register; {node.running_programs['kubelet'].log_excerpt}",
            _REGISTER_TIMEOUT_S,
            _POLL_S,
        )
        # Written here, because a kubelet may not write its node's pod CIDRs.
        body = {"spec": {"podCIDR": node.network.pod_range, "podCIDRs": [node.network.pod_range]}}
        await client.patch(NODES, node.name, body, Node, patch_type=MERGE_PATCH)
        node.start_proxy()


def _create_image_store(folder: Path, binaries: NodeBinaries, control_plane: ControlPlane) -> ImageStore:
    """Create images for pods of the lab, each with one program that the lab has built."""
    store = ImageStore(folder)
    for name, program in (
        (PAUSE_IMAGE, binaries.node / "pause"),
        (COREDNS_IMAGE, binaries.node / "coredns"),
        (METRICS_SERVER_IMAGE, binaries.metrics_server),
        (APP_IMAGE, binaries.app),
        # The lab's kube-scheduler, with every tag that an overlay may name.
        *(
            (f"{SCHEDULER_IMAGE}:{tag}", control_plane.binaries["kube-scheduler"])
            for tag in sorted(_read_scheduler_tags())
        ),
    ):
        store.add_program(name, program)
    return store


def _read_scheduler_tags() -> set[str]:
    """Return the tags of kube-scheduler in the shipped manifests."""
    files = [yaml.safe_load(path.read_text()) for path in _MANIFESTS.rglob("kustomization.yaml")]
    images = [image for file in files for image in file.get("images", ())]
    return {image["newTag"] for image in images if image["name"] == SCHEDULER_IMAGE}
