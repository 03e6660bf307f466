"""The controller's budgets: a cold sync of 100, 1,000 and 10,000 nodes in 40 zones on a real API server, its memory, and the
time in which all costs of 40 zones are computed from the results as they stand in the ConfigMaps.

The manager is the real program in a process of its own; its times and memory are what it says of itself on /metrics.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from controller.appgroups.order import ALGORITHMS, order
from controller.cluster.resources import NetworkTopology, NetworkTopologySpec
from controller.cluster.zones import ZoneMap, build_zone_map
from controller.topology.decision import TopologyDecision, TopologySnapshot, decide
from controller.topology.weights import build_weight, patch_topology
from kubekit.client import Client
from kubekit.wire import NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS, Node, Object, ObjectMeta
from lab.build import find_or_build
from lab.controlplane import ControlPlane
from netperf.pairs import PlanOptions, ProbeNode, plan_pairs
from netperf.policy import CostPolicy
from netperf.results import encode_samples
from netperf.sample import Measurement, Place, Sample
from tests.integration.controller.harness import Replica
from tests.scale.objects import node_body

ZONES = 40
SIZES = (100, 1_000, 10_000)
NAMESPACE = "netaware-system"
# What Dockerfile.controller sets.
AS_INSTALLED = {"MALLOC_ARENA_MAX": "1"}
WRITERS = 32
POD_COUNT = 30_000
Figures = dict[str, dict[str, object]]


def measure() -> Figures:
    """All figures of the controller."""
    return _rules() | asyncio.run(_programs())


def _figure(value: float, unit: str, budget: float | None, reference: str = "") -> dict[str, object]:
    ok = None if budget is None else value <= budget
    return {"value": round(value, 4), "unit": unit, "budget": budget, "ok": ok, "reference": reference}


def _rules() -> Figures:
    """Pure parts, in this process: the median of several runs."""
    shape = build_zone_map(_node(i) for i in range(10 * ZONES))
    data = _results(shape)
    topology = NetworkTopology(metadata=ObjectMeta(name="nt", namespace="n"), spec=NetworkTopologySpec("c", []))
    snapshot = TopologySnapshot(
        topology=topology, zone_map=shape, data=data, missing=(), allocated={}, interval_s=234.0
    )
    cold = _median(lambda: _decide(snapshot, None), 9)
    state = _decide(snapshot, None).state
    warm = _median(lambda: _decide(snapshot, state), 9)
    pairs = len(_decide(snapshot, None).table.zones)
    facts = [
        ProbeNode(name=n.metadata.name, address=f"10.0.{i // 250}.{i % 250}", zone=f"zone-{i % ZONES:02}")
        for i, n in _nodes(10_000)
    ]
    plan = _median(lambda: plan_pairs(facts, PlanOptions(), None, 1e6), 3)
    chain = [list(range(i + 1, min(i + 6, 500))) for i in range(500)]
    ordering = max(_median(lambda a=algorithm: order(chain, a), 5) for algorithm in ALGORITHMS)
    return {
        "controller_all_costs_40_zones_cold": _figure(
            cold * 1000, "ms", 50, f"{pairs} directed pairs, decoded from ConfigMaps"
        ),
        "controller_all_costs_40_zones_warm": _figure(
            warm * 1000, "ms", 50, "the same with the state of the round before"
        ),
        "controller_plan_10000_nodes_40_zones": _figure(plan * 1000, "ms", None, "780 zone pairs, planned afresh"),
        "controller_order_500_workloads": _figure(ordering * 1000, "ms", None, "slowest of the six algorithms"),
    }


def _decide(snapshot: TopologySnapshot, state: Any) -> TopologyDecision:
    decision = decide(snapshot, state, CostPolicy(), now_s=1e6, wall_s=1e6)
    patch_topology(snapshot.topology, build_weight(decision.table, decision.bandwidths), decision.latencies)
    return decision


def _median(run: Any, times: int) -> float:
    spent = []
    for _ in range(times):
        started = time.perf_counter()
        run()
        spent.append(time.perf_counter() - started)
    return statistics.median(spent)


def _results(zone_map: ZoneMap) -> dict[str, str]:
    """One sample per unordered pair of zones, as agents write them."""
    rng = random.Random(1)
    first: dict[str, Place] = {}
    for place in zone_map.places.values():
        first.setdefault(place.zone, place)
    zones = sorted(first)
    samples = []
    for i, a in enumerate(zones):
        for b in zones[i + 1 :]:
            us = rng.uniform(500, 150_000)
            read = Measurement(
                prober="netperf", test="TCP_RR", min_us=us / 2, mean_us=us, max_us=us * 2, stddev_us=us / 9, p50_us=us,
                p90_us=us * 1.1, p99_us=us * 1.4, transactions=900, duration_s=1.0, transactions_per_s=900.0,
            )  # fmt: skip
            samples.append(Sample(origin=first[a], destination=first[b], measurement=read, sequence=1, taken_at=1e6))
    return {key: value for key, value in encode_samples(samples).items() if value is not None}


def _nodes(count: int) -> list[tuple[int, Node]]:
    return [(i, _node(i)) for i in range(count)]


def _node(i: int) -> Node:
    zone = i % ZONES
    labels = {
        "topology.kubernetes.io/zone": f"zone-{zone:02}",
        "topology.kubernetes.io/region": f"region-{zone // 4:02}",
    }
    return Node(metadata=ObjectMeta(name=f"node-{i:05}", labels=labels))


async def _programs() -> Figures:
    figures: Figures = {}
    binaries = await asyncio.to_thread(find_or_build)
    with tempfile.TemporaryDirectory(prefix="netaware-bench-") as folder:
        plane_dir = Path(folder) / "plane"
        async with (
            ControlPlane.start("bench", state_dir=plane_dir, components=(), binaries=binaries) as plane,
            Client(plane.client_config) as client,
        ):
            await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}}, Object)
            made = 0
            for size in SIZES:
                await _make_nodes(client, made, size)
                made = size
                figures |= await _one_size(plane, Path(folder), size)
            await _make_pods(client, POD_COUNT, SIZES[-1])
            figures |= await _with_pods(plane, Path(folder))
    return figures


async def _make_nodes(client: Client, first: int, until: int) -> None:
    waiting = iter(range(first, until))

    async def make() -> None:
        for i in waiting:
            await client.create(NODES, node_body(f"node-{i:05}", zone=i % ZONES, number=i), Object)

    async with asyncio.TaskGroup() as group:
        for _ in range(WRITERS):
            group.create_task(make())


async def _make_pods(client: Client, count: int, nodes: int) -> None:
    """Bound pods with a container and a dozen labels, which is what plans count as taken."""
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, Object, namespace=NAMESPACE)
    waiting = iter(range(count))

    async def make() -> None:
        for i in waiting:
            labels = {f"example.com/label-{j}": f"value-{j}" for j in range(12)}
            resources = {"requests": {"cpu": "100m", "memory": "128Mi"}}
            spec = {
                "nodeName": f"node-{i % nodes:05}",
                "automountServiceAccountToken": False,
                "containers": [{"name": "main", "image": "example.com/image", "resources": resources}],
            }
            body = {"metadata": {"name": f"pod-{i:06}", "labels": labels}, "spec": spec}
            await client.create(PODS, body, Object, namespace=NAMESPACE)

    async with asyncio.TaskGroup() as group:
        for _ in range(WRITERS):
            group.create_task(make())


async def _with_pods(plane: ControlPlane, folder: Path) -> Figures:
    found = await _run_manager(plane, folder)
    name = f"controller_memory_{SIZES[-1]}_nodes_{POD_COUNT}_pods"
    value = found["process_resident_memory_bytes"] / 1e6
    return {name: _figure(value, "MB", 181.0, "plans need to know what is taken on every node")}


async def _one_size(plane: ControlPlane, folder: Path, size: int) -> Figures:
    found = await _run_manager(plane, folder)
    assert found['netaware_informer_objects{kind="nodes"}'] == size
    largest = size == SIZES[-1]
    return {
        f"controller_sync_{size}_nodes": _figure(
            found["netaware_informer_sync_seconds"], "s", 2.0 if largest else None, "official client: 13 s for 10,000"
        ),
        f"controller_memory_{size}_nodes": _figure(
            found["process_resident_memory_bytes"] / 1e6,
            "MB",
            200.0 if largest else None,
            "official client: 840 MB for 10,000",
        ),
        f"controller_probed_pairs_{size}_nodes": _figure(
            found["netaware_probe_plan_zone_pairs"],
            "pairs",
            ZONES * (ZONES - 1) / 2,
            "40 zones, whatever the number of nodes",
        ),
    }


async def _run_manager(plane: ControlPlane, folder: Path) -> dict[str, float]:
    """Run the manager until it has planned; what it then says of itself."""
    probing = {"intervalS": 60, "slotS": 6, "durationS": 1}
    replica = Replica(folder, plane.kubeconfig, NAMESPACE, {"topology": {"probing": probing}}, AS_INSTALLED)
    replica.start()
    try:
        async with asyncio.timeout(120):
            while (found := await replica.metrics()).get("netaware_probe_plan_zone_pairs", 0) == 0:
                await asyncio.sleep(0.2)
            await asyncio.sleep(2.0)
            found = await replica.metrics()
    finally:
        await replica.stop()
    return found
