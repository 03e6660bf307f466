"""Measures the first sync of 10,000 nodes in 40 zones on a real API server, and the manager's memory with and without pods."""

from __future__ import annotations

import asyncio

from lab.controlplane import ControlPlane
from lab.polling import poll_until
from netperf.contract import NETAWARE_NAMESPACE
from tests.bench.control_plane import control_plane
from tests.bench.figures import Figures, figure
from tests.integration.controller.harness import Replica
from tests.scale.objects import make_node, make_running_pod
from tests.support.etcd import write_objects

ZONES, NODES, PODS = 40, 10_000, 30_000
# What Dockerfile.controller sets.
IMAGE_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}


def measure() -> Figures:
    """All figures of the controller."""
    return asyncio.run(_measure())


async def _measure() -> Figures:
    async with control_plane(NETAWARE_NAMESPACE, components=()) as (plane, _):
        names = [f"node-{i:05}" for i in range(NODES)]
        nodes = (make_node(name, zone=i % ZONES, number=i) for i, name in enumerate(names))
        await write_objects(plane, ((f"minions/{node['metadata']['name']}", node) for node in nodes))
        without_pods = await _run_manager(plane)
        labels = {f"example.com/label-{j}": f"value-{j}" for j in range(12)}
        pods = (make_running_pod(NETAWARE_NAMESPACE, f"pod-{i:06}", names[i % NODES], labels, i) for i in range(PODS))
        await write_objects(plane, ((f"pods/{NETAWARE_NAMESPACE}/{pod['metadata']['name']}", pod) for pod in pods))
        with_pods = await _run_manager(plane)
    sync_s, pairs = without_pods["netaware_informer_sync_seconds"], without_pods["netaware_probe_plan_zone_pairs"]
    memory_mb, full_mb = (metrics["process_resident_memory_bytes"] / 1e6 for metrics in (without_pods, with_pods))
    return {
        "controller_sync_10000_nodes": figure(sync_s, "s", 2, "official client: 13 s"),
        "controller_memory_10000_nodes": figure(memory_mb, "MB", 200, "official client: 840 MB"),
        "controller_memory_10000_nodes_30000_pods": figure(full_mb, "MB", 181, "plans need the requests of all pods"),
        "controller_probed_pairs_40_zones": figure(pairs, "pairs", ZONES * (ZONES - 1) / 2),
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
        await asyncio.sleep(2.0)
        metrics = await replica.read_metrics()
        assert metrics['netaware_informer_objects{kind="nodes"}'] == NODES
        return metrics
    finally:
        await replica.stop()
