"""Measures the first sync of 10,000 nodes in 40 zones on a real API server, and the manager's memory with and without pods."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from kubekit.client import Client
from kubekit.wire import NAMESPACES, Object
from lab.controlplane import ControlPlane
from tests.bench.figures import Figures, figure
from tests.integration.controller.harness import Replica
from tests.scale.objects import node_body, running_pod
from tests.support.etcd import put_all

ZONES, NODES, PODS = 40, 10_000, 30_000
NAMESPACE = "netaware-system"
# What Dockerfile.controller sets.
IMAGE_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}


def measure() -> Figures:
    """All figures of the controller."""
    return asyncio.run(_measure())


async def _measure() -> Figures:
    with tempfile.TemporaryDirectory(prefix="netaware-bench-") as temporary:
        folder = Path(temporary)
        async with (
            ControlPlane.start("bench", state_dir=folder / "plane", components=()) as plane,
            Client(plane.client_config) as client,
        ):
            await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}}, Object)
            names = [f"node-{i:05}" for i in range(NODES)]
            nodes = (node_body(name, zone=i % ZONES, number=i) for i, name in enumerate(names))
            await put_all(plane, ((f"minions/{node['metadata']['name']}", node) for node in nodes))
            without_pods = await _run_manager(plane, folder)
            labels = {f"example.com/label-{j}": f"value-{j}" for j in range(12)}
            pods = (running_pod(NAMESPACE, f"pod-{i:06}", names[i % NODES], labels, i) for i in range(PODS))
            await put_all(plane, ((f"pods/{NAMESPACE}/{pod['metadata']['name']}", pod) for pod in pods))
            with_pods = await _run_manager(plane, folder)
    sync_s, pairs = without_pods["netaware_informer_sync_seconds"], without_pods["netaware_probe_plan_zone_pairs"]
    memory_mb, full_mb = (metrics["process_resident_memory_bytes"] / 1e6 for metrics in (without_pods, with_pods))
    return {
        "controller_sync_10000_nodes": figure(sync_s, "s", 2, "official client: 13 s"),
        "controller_memory_10000_nodes": figure(memory_mb, "MB", 200, "official client: 840 MB"),
        "controller_memory_10000_nodes_30000_pods": figure(full_mb, "MB", 181, "plans need the requests of all pods"),
        "controller_probed_pairs_40_zones": figure(pairs, "pairs", ZONES * (ZONES - 1) / 2),
    }


async def _run_manager(plane: ControlPlane, folder: Path) -> dict[str, float]:
    """Run the manager until it has planned; returns its metrics."""
    probing = {"intervalS": 60, "slotS": 6, "durationS": 1}
    replica = Replica(folder, plane.kubeconfig, NAMESPACE, {"topology": {"probing": probing}}, IMAGE_ENVIRONMENT)
    replica.start()
    try:
        async with asyncio.timeout(120):
            while (await replica.metrics()).get("netaware_probe_plan_zone_pairs", 0) == 0:
                await asyncio.sleep(0.2)
        await asyncio.sleep(2.0)
        metrics = await replica.metrics()
        assert metrics['netaware_informer_objects{kind="nodes"}'] == NODES
        return metrics
    finally:
        await replica.stop()
