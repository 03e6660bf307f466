"""Measures the manager with 10,000 nodes on a real API server: its first sync, and its memory with and without pods."""

from __future__ import annotations

import asyncio

from lab.controlplane import ControlPlane
from lab.polling import poll_until
from netperf.contract import NETAWARE_NAMESPACE
from tests.bench.control_plane import bench_control_plane
from tests.bench.figures import Figures, make_figure
from tests.integration.controller.harness import Replica
from tests.scale.populate import make_node, make_running_pod
from tests.support.etcd import write_objects

ZONES, NODES, PODS = 40, 10_000, 30_000
MAX_SYNC_S, MAX_MEMORY_MB = 2, 181
# What Dockerfile.controller sets.
IMAGE_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}


def measure() -> Figures:
    return asyncio.run(_measure())


async def _measure() -> Figures:
    async with bench_control_plane(NETAWARE_NAMESPACE, components=()) as (plane, _):
        node_names = [f"node-{i:05}" for i in range(NODES)]
        nodes = (make_node(name, zone=i % ZONES, number=i) for i, name in enumerate(node_names))
        # etcd's key of nodes has their former name.
        await write_objects(plane, ((f"minions/{node['metadata']['name']}", node) for node in nodes))
        metrics_without_pods = await _run_manager(plane)
        labels = {f"example.com/label-{j}": f"value-{j}" for j in range(12)}
        pods = (
            make_running_pod(NETAWARE_NAMESPACE, f"pod-{i:06}", node_names[i % NODES], labels, i) for i in range(PODS)
        )
        await write_objects(plane, ((f"pods/{NETAWARE_NAMESPACE}/{pod['metadata']['name']}", pod) for pod in pods))
        metrics_with_pods = await _run_manager(plane)
    sync_s = metrics_without_pods["netaware_informer_sync_seconds"]
    pairs = metrics_without_pods["netaware_probe_plan_zone_pairs"]
    nodes_mb = metrics_without_pods["process_resident_memory_bytes"] / 1e6
    nodes_and_pods_mb = metrics_with_pods["process_resident_memory_bytes"] / 1e6
    return {
        "controller_sync_10000_nodes": make_figure(sync_s, "s", MAX_SYNC_S, "official client: 13 s"),
        "controller_memory_10000_nodes": make_figure(nodes_mb, "MB", MAX_MEMORY_MB, "official client: 840 MB"),
        # Plans need the requests of all pods.
        "controller_memory_10000_nodes_30000_pods": make_figure(nodes_and_pods_mb, "MB", MAX_MEMORY_MB),
        "controller_probed_pairs_40_zones": make_figure(pairs, "pairs", ZONES * (ZONES - 1) / 2),
    }


async def _run_manager(plane: ControlPlane) -> dict[str, float]:
    """Run the manager until it has planned; returns its metrics."""
    probing = {"intervalS": 60, "slotS": 6, "durationS": 1}
    config = {"topology": {"probing": probing}}
    replica = Replica(plane.state_dir, plane.kubeconfig, NETAWARE_NAMESPACE, config, IMAGE_ENVIRONMENT)
    replica.start()
    try:

        async def has_planned() -> bool:
            return (await replica.read_metrics()).get("netaware_probe_plan_zone_pairs", 0) > 0

        await poll_until(has_planned, every_s=0.2)
        await asyncio.sleep(2.0)  # until the memory of the sync is freed
        metrics = await replica.read_metrics()
        assert metrics['netaware_informer_objects{kind="nodes"}'] == NODES
        return metrics
    finally:
        await replica.stop()
