"""The descheduler moves a pod to its dependency when the latency between their zones rises, and not back when it falls.

The wide-area network is emulated, and kwok simulates kubelets. Agents, netperf, controller, extender and scheduler are
real, with the rights of the descheduler overlay.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

import aiohttp
import pytest

from controller.cluster.crds import APPGROUP_LABEL, NETPERF_COSTS, WORKLOAD_LABEL
from controller.topology.weights import zone_costs_of
from kubekit.client import Client
from kubekit.wire import EVENTS, NAMESPACES, PODS, SERVICE_ACCOUNTS, Object, Pod
from lab.controlplane import object_exists
from lab.installation import MANIFESTS, ROUND_S, get_network_topology
from lab.polling import poll_until
from netperf.contract import ZONE_LABEL
from tests.e2e.labs import installed_lab
from tests.integration.descheduler.harness import Event, create_bound_replica_set
from tests.integration.scheduler.harness import PodNamespace

HOLD_S = 6.0
MAX_COST = 15
ZONES = ("z1", "z2")  # of nodes n1 and n2, and of n3
SHOP = "shop"
CONTROLLER_CONFIG = {
    # Latencies of a busy machine vary; a large hysteresis keeps the costs.
    "topology": {"costPolicy": {"percentile": "p50", "hysteresis": 0.4}},
    "descheduler": {
        "enabled": True,
        "dryRun": False,
        "intervalS": 1,
        # LowNodeLoad never has so many underutilized nodes, and moves no pod.
        "policy": {"numberOfNodes": 1000},
        "protection": {"minPodAgeS": 0, "minReplicas": 1},
        "misplacement": {"enabled": True, "holdS": HOLD_S},
        "limits": {"usageLagS": 5},
    },
}
EVICTIONS = "netaware_descheduler_evictions_total"
HELPED_MOVES = 'netaware_descheduler_moves_evaluated_total{outcome="helped",strategy="NetworkMisplacement"}'

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def find_node(client: Client, workload: str) -> str:
    """Node of the workload's only running pod; empty unless exactly one runs."""
    pods = await client.list(PODS, Pod, namespace=SHOP, label_selector=f"app={workload}")
    running = [p for p in pods if p.status.phase == "Running" and p.metadata.deletion_timestamp is None]
    return running[0].spec.node_name if len(running) == 1 else ""


def make_labels(workload: str) -> dict[str, str]:
    return {APPGROUP_LABEL: SHOP, WORKLOAD_LABEL: workload}


async def read_metric(controller_url: str, name: str) -> float:
    """Return the sum of the controller's samples whose text starts with ``name``."""
    timeout = aiohttp.ClientTimeout(total=5)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{controller_url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def deploy_shop(client: Client) -> None:
    """Create an AppGroup: web, which starts in z2, depends on db, which must be in z1. Both use 0.2 cores."""
    await client.create(NAMESPACES, {"metadata": {"name": SHOP}}, Object)
    await poll_until(partial(object_exists, client, SERVICE_ACCOUNTS, "default", SHOP), "its service account", 30)
    await PodNamespace(client, SHOP).create_group({"web": {"db": MAX_COST}, "db": {}}, name=SHOP)
    scheduler = {"schedulerName": "network-aware-scheduler"}
    in_zone = {**scheduler, "nodeSelector": {ZONE_LABEL: ZONES[0]}}
    await create_bound_replica_set(client, SHOP, "db", 0.2, ["n1"], labels=make_labels("db"), **in_zone)
    await create_bound_replica_set(client, SHOP, "web", 0.2, ["n3"], labels=make_labels("web"), **scheduler)


@pytest.mark.usefixtures("require_lab_privileges")
async def test_a_pod_moves_when_latency_to_its_dependency_rises_and_stays_when_it_falls() -> None:
    overlay = MANIFESTS / "overlays" / "descheduler"
    context = installed_lab("e2e-descheduler", controller_config=CONTROLLER_CONFIG, overlay=overlay)
    async with context as (lab, installation, client):

        async def is_near() -> bool:
            cost_by_pair = zone_costs_of((await get_network_topology(client)).weight(NETPERF_COSTS))
            return ZONES in cost_by_pair and cost_by_pair[ZONES] <= MAX_COST

        async def are_both_running() -> bool:
            return bool(await find_node(client, "web") and await find_node(client, "db"))

        async def has_moved() -> bool:
            return await find_node(client, "web") in {"n1", "n2"}

        original_link = lab.wan.read_links()[ZONES]
        await poll_until(is_near, "a cost within the limit", 90)
        await deploy_shop(client)
        await poll_until(are_both_running, "both pods", 30)
        # Rounds of the descheduler in which a move would have become due.
        await asyncio.sleep(HOLD_S + 5)
        assert await read_metric(installation.controller_url, EVICTIONS) == 0, "web is near enough"

        started_s = time.monotonic()
        lab.wan.change_link(*ZONES, rtt_us=60_000.0)
        # Two rounds of probes, the time that the gain must last, and the pod's move.
        await poll_until(has_moved, "web in db's zone", 2 * ROUND_S + HOLD_S + 15)
        assert time.monotonic() - started_s >= HOLD_S, "moved before the gain had lasted"
        node = await find_node(client, "web")
        assert await read_metric(installation.controller_url, EVICTIONS) == 1
        (event,) = [e for e in await client.list(EVENTS, Event, namespace=SHOP) if e.reason == "Descheduled"]
        assert event.note.startswith('Pod evicted from node "n3" by the reason "pod is misplaced, network cost(')

        lab.wan.set_link(*ZONES, original_link)
        await poll_until(is_near, "a cost within the limit again", 60)
        # Time for the evaluation of the move, and for a move back.
        await asyncio.sleep(2 * HOLD_S)
        assert await read_metric(installation.controller_url, EVICTIONS) == 1, "flapping"
        assert await find_node(client, "web") == node
        assert await read_metric(installation.controller_url, HELPED_MOVES) == 1
