"""The descheduler moves a pod to its dependency when the latency between their zones rises, and not back when it falls.

The wide-area network is emulated, and kwok simulates kubelets. Agents, netperf, controller, extender and scheduler are real, with the
rights of the descheduler overlay.
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
from lab.installation import MANIFESTS, get_network_topology
from lab.polling import poll_until
from lab.topology import load_topology
from tests.e2e.labs import installed_lab
from tests.integration.descheduler.harness import Event, create_bound_replica_set
from tests.integration.scheduler.conftest import create_group

POLICY = {"percentile": "p50", "hysteresis": 0.4}
HOLD_S = 6.0
PAIR = ("z1", "z2")
SHOP = "shop"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def read_cost(client: Client) -> int:
    return zone_costs_of((await get_network_topology(client)).weight(NETPERF_COSTS)).get(PAIR, -1)


async def find_node(client: Client, app: str) -> str:
    """Node of the workload's only running pod; empty unless exactly one runs."""
    pods = await client.list(PODS, Pod, namespace=SHOP, label_selector=f"app={app}")
    running = [p for p in pods if p.status.phase == "Running" and p.metadata.deletion_timestamp is None]
    return running[0].spec.node_name if len(running) == 1 else ""


def build_labels(workload: str) -> dict[str, str]:
    return {APPGROUP_LABEL: "shop", WORKLOAD_LABEL: workload}


async def read_metric(controller_url: str, name: str = "netaware_descheduler_evictions_total") -> float:
    """Return the sum of the controller's samples whose text starts with ``name``."""
    timeout = aiohttp.ClientTimeout(total=5)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{controller_url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def deploy(client: Client) -> None:
    """Create an AppGroup: web in z2 depends on db, which must be in z1."""
    await client.create(NAMESPACES, {"metadata": {"name": SHOP}}, Object)
    await poll_until(partial(object_exists, client, SERVICE_ACCOUNTS, "default", SHOP), "its service account", 30)
    await create_group(client, SHOP, {"web": {"db": 15}, "db": {}}, name="shop")
    profile = {"schedulerName": "network-aware-scheduler"}
    in_zone = {**profile, "nodeSelector": {"topology.kubernetes.io/zone": PAIR[0]}}
    await create_bound_replica_set(client, SHOP, "db", 0.2, ["n1"], labels=build_labels("db"), **in_zone)
    await create_bound_replica_set(client, SHOP, "web", 0.2, ["n3"], labels=build_labels("web"), **profile)


@pytest.mark.usefixtures("require_lab_privileges")
async def test_a_pod_moves_when_latency_to_its_dependency_rises_and_stays_when_it_falls() -> None:
    topology = load_topology("four-zones")
    section = {
        "dryRun": False,
        "intervalS": 1,
        "policy": {"numberOfNodes": 1000},
        "protection": {"minPodAgeS": 0, "minReplicas": 1},
        "misplacement": {"enabled": True, "holdS": HOLD_S},
        "limits": {"usageLagS": 5},
        "enabled": True,
    }
    config = {"topology": {"costPolicy": POLICY}, "descheduler": section}
    overlay = MANIFESTS / "overlays" / "descheduler"
    async with installed_lab("e2e-descheduler", controller_config=config, overlay=overlay) as (
        lab,
        installation,
        client,
    ):

        async def is_measured() -> bool:
            return 0 <= await read_cost(client) <= 15

        await poll_until(is_measured, "costs", 90)
        await deploy(client)

        async def both_run() -> bool:
            return bool(await find_node(client, "web") and await find_node(client, "db"))

        await poll_until(both_run, "both pods", 30)
        await asyncio.sleep(HOLD_S + 5)
        assert await read_metric(installation.controller_url) == 0, "web is near enough"

        lab.wan.change_link(*PAIR, rtt_us=60_000.0)

        async def has_moved() -> bool:
            return await find_node(client, "web") in {"n1", "n2"}

        # Two rounds of probes, the time that the gain must last, and the pod's move.
        started = time.monotonic()
        await poll_until(has_moved, "web in db's zone", 2 * 8 + HOLD_S + 15)
        assert time.monotonic() - started >= HOLD_S, "moved before the gain had lasted"
        node = await find_node(client, "web")
        assert await read_metric(installation.controller_url) == 1
        (event,) = [e for e in await client.list(EVENTS, Event, namespace=SHOP) if e.reason == "Descheduled"]
        assert event.note.startswith('Pod evicted from node "n3" by the reason "pod is misplaced, network cost(')

        lab.wan.change_link(*PAIR, rtt_us=topology.link_between(*PAIR).rtt_us)

        await poll_until(is_measured, "costs as before", 60)
        await asyncio.sleep(2 * HOLD_S)
        assert await read_metric(installation.controller_url) == 1, "flapping"
        assert await find_node(client, "web") == node
        helped = 'netaware_descheduler_moves_evaluated_total{outcome="helped",strategy="NetworkMisplacement"}'
        assert await read_metric(installation.controller_url, helped) == 1
