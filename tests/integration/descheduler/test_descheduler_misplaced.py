"""A zone becomes distant: the AppGroup's pod follows its peer, through the extender, and stays when the latency returns.

Control plane, manager and extender are real; latencies are what simulated agents report.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from controller.cluster.resources import APPGROUPS, NETWORK_TOPOLOGIES
from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.errors import KubekitError
from kubekit.wire import Object
from lab.controlplane import credentials_of, free_ports
from tests.integration.conftest import MakeNode, StartScheduler
from tests.integration.controller.harness import ROOT, SimulatedAgents, announce
from tests.integration.descheduler.stage import Stage, after_rounds, evictions, place, until

NEAR, FAR = "za", "zb"
HOLD_S = 4.0


@asynccontextmanager
async def run_extender(stage: Stage) -> AsyncIterator[str]:
    """`python -m controller extender`, in a process of its own; its URL."""
    port = free_ports(1)[0]
    config = stage.folder / "extender.yaml"
    head = {"apiVersion": "netaware.io/v1alpha1", "kind": "ControllerConfiguration", "namespace": stage.namespace}
    config.write_text(yaml.safe_dump(head))
    command = [
        "setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", "controller", "extender", "--config", str(config),
        "--credentials", str(credentials_of(stage.plane.kubeconfig)), "--listen", f"127.0.0.1:{port}",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with (stage.folder / "extender.log").open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        try:
            async with Client(ClusterConfig(url), timeout_s=2) as client:
                await until(lambda: _is_ready(client), 30)
            yield url
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait, 20)


async def _is_ready(client: Client) -> bool:
    try:
        await client.request("GET", "/readyz")
    except KubekitError:
        return False
    return True


@asynccontextmanager
async def measuring(agents: SimulatedAgents) -> AsyncIterator[None]:
    """Agents that report once a second."""

    async def report() -> None:
        while True:
            await agents.measure()
            await asyncio.sleep(1)

    task = asyncio.create_task(report())
    try:
        yield
    finally:
        task.cancel()


async def create_group(client: Client, namespace: str) -> None:
    web = {"kind": "ReplicaSet", "name": "web", "selector": "web", "apiVersion": "apps/v1", "namespace": namespace}
    db = {**web, "name": "db", "selector": "db"}
    spec = {
        "numMembers": 2,
        "topologySortingAlgorithm": "KahnSort",
        "workloads": [{"workload": web, "dependencies": [{"workload": db, "maxNetworkCost": 15}]}, {"workload": db}],
    }
    body = {"apiVersion": APPGROUPS.api_version, "kind": "AppGroup", "metadata": {"name": "shop"}, "spec": spec}
    await client.create(APPGROUPS, body, Object, namespace=namespace)
    topology = {
        "apiVersion": NETWORK_TOPOLOGIES.api_version,
        "kind": "NetworkTopology",
        "metadata": {"name": "nt-default"},
        "spec": {"configmapName": "netperf-metrics"},
    }
    await client.create(NETWORK_TOPOLOGIES, topology, Object, namespace=namespace)


def member(workload: str) -> dict[str, str]:
    return {"appgroup.diktyo.x-k8s.io": "shop", "appgroup.diktyo.x-k8s.io.workload": workload}


@pytest.mark.timeout(240)
async def test_a_pod_follows_its_peer_when_its_zone_becomes_distant_and_does_not_flap(
    stage: Stage,
    crds: list[str],
    make_node: MakeNode,
    scheduler: StartScheduler,
) -> None:
    nodes = {f"{zone}{i}-{stage.namespace}": zone for zone in (NEAR, FAR) for i in (1, 2)}
    for i, (name, zone) in enumerate(nodes.items()):
        await make_node(name, zone=zone, region="r", capacity={"cpu": "8"}, labels=stage.label)
        await announce(stage.client, name, f"10.9.9.{i + 1}")
    stage.usage.nodes.update(nodes)
    near, far = ([name for name, zone in nodes.items() if zone == wanted] for wanted in (NEAR, FAR))
    agents = SimulatedAgents(stage.client, stage.namespace)
    agents.set(NEAR, FAR, 3)
    await create_group(stage.client, stage.namespace)
    profile = {"schedulerName": "network-aware-scheduler"}
    tied = {**profile, "nodeSelector": {"topology.kubernetes.io/zone": NEAR}}
    await place(stage.client, stage.namespace, "db", 0.2, [near[0]], labels=member("db"), **tied)
    await place(stage.client, stage.namespace, "web", 0.2, [far[0]], labels=member("web"), **profile)
    await stage.running(2)

    def where(workload: str) -> set[str]:
        return {
            nodes[node]
            for node, pods in stage.usage.running().items()
            for pod in pods
            if pod.metadata.label("app") == workload
        }

    async with run_extender(stage) as url, measuring(agents):
        await scheduler(extender_url=url)
        replica = stage.start(misplacement={"enabled": True, "holdS": HOLD_S})
        await until(_priced(stage, 3), 60)
        await after_rounds(replica, int(HOLD_S) + 4)
        assert await evictions(replica) == 0, "three milliseconds are no reason to move"
        agents.set(NEAR, FAR, 60)

        async def followed() -> bool:
            return where("web") == {NEAR}

        started = asyncio.get_running_loop().time()
        await until(followed, HOLD_S + 30)
        took_s = asyncio.get_running_loop().time() - started
        assert took_s >= HOLD_S, "moved before the gain had lasted"
        (event,) = await stage.events("Descheduled")
        assert event.note.startswith(
            f'Pod evicted from node "{far[0]}" by the reason "pod is misplaced, network cost(60)>'
        )
        assert event.metadata.name.startswith("web-first-0")
        agents.set(NEAR, FAR, 3)
        await until(_priced(stage, 3), 60)
        await after_rounds(replica, 15)
        assert await evictions(replica) == 1, "flapping"
        assert (where("web"), where("db")) == ({NEAR}, {NEAR})
        ended = (await replica.metrics()).get(
            'netaware_descheduler_moves_ended_total{outcome="helped",strategy="NetworkMisplacement"}'
        )
        assert ended == 1


def _priced(stage: Stage, cost: int) -> Callable[[], Any]:
    async def check() -> bool:
        topology = await stage.client.get(NETWORK_TOPOLOGIES, "nt-default", dict, namespace=stage.namespace)
        text = str(topology.get("spec", {}).get("weights"))
        return f"'networkCost': {cost}" in text

    return check
