"""Measures pods a second that kube-scheduler binds on thousands of nodes: alone, with our extender, and by affinity.

Run by hand (minutes): ``python tests/bench/throughput.py``. Nodes are API objects without a kubelet. The time is that
from the scheduler's readiness to the last binding. Before the measurement the controller plans gated pods of the same
names; measured pods get their targets and affinity.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))

from controller.cluster.crds import APPGROUP_LABEL, APPGROUPS, NETWORK_TOPOLOGIES, WORKLOAD_LABEL
from controller.cluster.pods import GATE, TARGET_ANNOTATION, Pod
from kubekit.client import Client
from kubekit.reflector import Reflector
from kubekit.wire import NAMESPACES, PODS, SERVICE_ACCOUNTS, Object
from lab.controlplane import ControlPlane
from lab.polling import poll_until
from lab.scheduler_config import build_scheduler_config
from netperf.contract import NETAWARE_NAMESPACE
from tests.bench.control_plane import bench_control_plane, create_ready_node, delete_pods_and_groups, gather_limited
from tests.support.bodies import make_appgroup_body, make_random_weight, make_topology_body
from tests.support.controller_program import run_controller
from tests.support.tasks import supervised_tasks

NAMESPACE = "throughput"
ZONES, REGIONS = 40, 4
GROUP_SIZE, CALL_PROBABILITY, MAX_COST = 10, 0.3, 20
TIMEOUT_S = 600.0
Mode = Literal["gated", "stock", "extender", "affinity"]
MEASURED_MODES: tuple[Mode, ...] = ("stock", "extender", "affinity")
PlannedPods = dict[str, Pod]
"""Name -> pod with the target and affinity that the controller wrote to it."""
# netaware ignores pods without a controller. This ReplicaSet does not exist.
OWNER = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "name": "throughput",
    "uid": "00000000-0000-0000-0000-000000000001",
    "controller": True,
}


@asynccontextmanager
async def start_cluster(nodes: int) -> AsyncIterator[tuple[ControlPlane, Client]]:
    """Start a control plane with this number of nodes and a NetworkTopology; yields it with its client."""
    async with bench_control_plane(NAMESPACE, components=()) as (plane, client):
        await client.create(NAMESPACES, {"metadata": {"name": NETAWARE_NAMESPACE}}, Object)
        account = {"metadata": {"name": "default"}}
        await client.create(SERVICE_ACCOUNTS, account, Object, namespace=NAMESPACE)
        amounts = {"cpu": "32", "memory": "128Gi", "pods": "110"}
        locations = [(f"z{i % ZONES:02d}", f"r{i % ZONES % REGIONS}") for i in range(nodes)]
        await gather_limited(
            [create_ready_node(client, f"node-{i:05d}", *location, amounts) for i, location in enumerate(locations)]
        )
        weight = make_random_weight([f"z{i:02d}" for i in range(ZONES)], [f"r{i}" for i in range(REGIONS)])
        topology = make_topology_body(weights=[weight])
        await client.create(NETWORK_TOPOLOGIES, topology, Object, namespace=NAMESPACE)
        yield plane, client


async def create_group(client: Client, number: int, mode: Mode, planned_pods: PlannedPods) -> None:
    """Create an AppGroup with random calls, and a pod of each of its workloads."""
    rng = random.Random(number)
    calls: dict[str, dict[str, int]] = {f"w{i}": {} for i in range(GROUP_SIZE)}
    for caller, callee in itertools.combinations(calls, 2):
        if rng.random() < CALL_PROBABILITY:
            calls[caller][callee] = MAX_COST
    body = make_appgroup_body(f"g{number}", calls, members=GROUP_SIZE, algorithm="ReverseKahn")
    await client.create(APPGROUPS, body, Object, namespace=NAMESPACE)
    for workload in calls:
        await client.create(PODS, make_pod(f"g{number}", workload, mode, planned_pods), Object, namespace=NAMESPACE)


def make_pod(group: str, workload: str, mode: Mode, planned_pods: PlannedPods) -> dict[str, Any]:
    name = f"{group}-{workload}"
    labels = {APPGROUP_LABEL: group, WORKLOAD_LABEL: workload}
    metadata: dict[str, Any] = {"name": name, "labels": labels, "ownerReferences": [OWNER]}
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}}}
    spec: dict[str, Any] = {
        "schedulerName": "network-aware-scheduler" if mode == "extender" else "default-scheduler",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    if mode == "gated":
        spec["schedulingGates"] = [{"name": GATE}]
    elif mode == "extender":
        metadata["annotations"] = {TARGET_ANNOTATION: planned_pods[name].metadata.annotation(TARGET_ANNOTATION)}
    elif mode == "affinity":
        spec["affinity"] = planned_pods[name].spec.affinity
    return {"metadata": metadata, "spec": spec}


@asynccontextmanager
async def watch_pods(client: Client) -> AsyncIterator[Reflector[Pod]]:
    reflector: Reflector[Pod] = Reflector(client, PODS, Pod, namespace=NAMESPACE)
    async with supervised_tasks({"pods": reflector.run()}):
        await reflector.synced.wait()
        yield reflector


@asynccontextmanager
async def run_program(plane: ControlPlane, verb: str, placement: str, *flags: str) -> AsyncIterator[str]:
    """Run a command of the controller with this placement; yields its URL."""
    config_file = plane.state_dir / f"{verb}.yaml"
    type_meta = {"apiVersion": "netaware.io/v1alpha1", "kind": "ControllerConfiguration"}
    config_file.write_text(yaml.safe_dump({**type_meta, "scheduler": {"placement": placement}}))
    async with run_controller(plane, verb, f"--config={config_file}", "--log-level=warning", *flags) as (_, url):
        yield url


async def run_mode(
    plane: ControlPlane, client: Client, mode: Mode, percentage: int, pod_count: int, planned_pods: PlannedPods
) -> tuple[float, PlannedPods]:
    """Create, bind and delete all pods; returns pods bound per second, and the bound pods by name."""
    await gather_limited([create_group(client, i, mode, planned_pods) for i in range(pod_count // GROUP_SIZE)])
    async with AsyncExitStack() as stack:
        pods = await stack.enter_async_context(watch_pods(client))
        url = None
        if mode == "extender":
            url = await stack.enter_async_context(run_program(plane, "extender", "extender"))
        config = build_scheduler_config(extender_url=url, percentage_of_nodes_to_score=percentage)
        config["clientConnection"] = {"qps": 2000, "burst": 4000}
        scheduler = await plane.start_scheduler(config, name=f"scheduler-{time.time_ns()}")
        started_s = time.monotonic()
        try:
            if mode == "gated":
                await stack.enter_async_context(run_program(plane, "manager", "affinity", "--no-leader-elect"))
            await poll_until(
                lambda: sum(bool(pod.spec.node_name) for pod in pods) == pod_count, timeout_s=TIMEOUT_S, every_s=0.1
            )
            return pod_count / (time.monotonic() - started_s), {pod.metadata.name: pod for pod in pods}
        finally:
            await plane.programs.stop(scheduler)
            await delete_pods_and_groups(client, NAMESPACE)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=1000, help=f"a multiple of {GROUP_SIZE}")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each mode; the highest rate is reported")
    args = parser.parse_args()
    if args.pods % GROUP_SIZE:
        parser.error(f"--pods is not a multiple of {GROUP_SIZE}")
    best_rates: dict[str, float] = {}
    async with start_cluster(args.nodes) as (plane, client):
        _, planned_pods = await run_mode(plane, client, "gated", 100, args.pods, {})
        for percentage, label in ((0, "default sample"), (100, "100 %")):
            for mode in MEASURED_MODES * args.rounds:
                rate, _ = await run_mode(plane, client, mode, percentage, args.pods, planned_pods)
                name = f"{mode}, {label} of nodes"
                best_rates[name] = max(best_rates.get(name, 0.0), round(rate, 1))
                print(f"{name}: {rate:.1f} pods/s", file=sys.stderr, flush=True)
    print(json.dumps(best_rates, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
