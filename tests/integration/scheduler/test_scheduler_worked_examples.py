"""The published examples give the published placements on a real kube-scheduler with our extender."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.scheduler.config import AllocatableArgs, SchedulerConfig
from kubekit.client import Client
from kubekit.wire import PODS
from lab.polling import poll_until
from tests.integration.conftest import MakeNode, StartScheduler
from tests.integration.scheduler.conftest import (
    Lead,
    Serve,
    cordon,
    create_group,
    create_pod,
    set_costs,
    wait_until_bound,
    wait_until_scheduler_sees_cordon,
    wait_until_unschedulable,
)

pytestmark = [pytest.mark.usefixtures("kwok", "crds"), pytest.mark.timeout(600)]

ZONES = {("z1", "z2"): 5, ("z2", "z1"): 5, ("z3", "z4"): 10, ("z4", "z3"): 10}
REGIONS = {("us-west-1", "us-east-1"): 20, ("us-east-1", "us-west-1"): 20}


async def create_eight_nodes(ready_node: MakeNode, client: Client, namespace: str, max_network_cost: int = 15) -> None:
    """Create eight nodes in four zones of two regions; P1 depends on P2 (example 001)."""
    for i in range(1, 9):
        region = "us-west-1" if i <= 4 else "us-east-1"
        await ready_node(f"n{i}", zone=f"z{(i + 1) // 2}", region=region, capacity={"cpu": "2"})
    await set_costs(client, namespace, ZONES, REGIONS)
    await create_group(client, namespace, {"P1": {"P2": max_network_cost}, "P2": {}})


async def pin(client: Client, namespace: str, name: str, workload: str, node: str) -> None:
    await create_pod(client, namespace, name, group="a1", workload=workload, nodeName=node)


async def wait_until_filter_passes(url: str, namespace: str, nodes: set[str]) -> None:
    """Wait until the extender passes only these nodes for a pod of P1."""
    labels = {APPGROUP_LABEL: "a1", WORKLOAD_LABEL: "P1"}
    pod = {"metadata": {"name": "asked", "namespace": namespace, "uid": "asked", "labels": labels}, "spec": {}}
    body = {"Pod": pod, "NodeNames": [f"n{i}" for i in range(1, 9)]}

    async def passes_nodes() -> bool:
        async with session.post(f"{url}/filter", json=body) as response:
            return set((await response.json(content_type=None))["nodenames"] or ()) == nodes

    async with aiohttp.ClientSession() as session:
        await poll_until(passes_nodes)


async def test_a_pod_is_bound_beside_its_dependency_then_near_it_and_otherwise_pending_with_a_reason(
    client: Client, namespace: str, ready_node: MakeNode, scheduler: StartScheduler, extender: Serve
) -> None:
    """Example 000: after N1 is full, P1 is bound to N2 with cost 1 and score 80, not to N3 or N4 with cost 5 and score 0."""
    await create_eight_nodes(ready_node, client, namespace)
    async with extender() as url:
        await scheduler(extender_url=url)
        await pin(client, namespace, "p2-one", "P2", "n1")
        await wait_until_filter_passes(url, namespace, {"n1", "n2", "n3", "n4"})
        await create_pod(client, namespace, "with-it", group="a1", workload="P1")
        assert await wait_until_bound(client, namespace, "with-it") == {"with-it": "n1"}
        await pin(client, namespace, "p3-one", "P3", "n4")
        await create_pod(client, namespace, "fill-n1", requests={"cpu": "2"}, nodeName="n1")
        await create_pod(client, namespace, "near-it", group="a1", workload="P1", requests={"cpu": "1"})
        assert await wait_until_bound(client, namespace, "near-it") == {"near-it": "n2"}
        for node in ("n1", "n2"):
            await cordon(client, node)
        for node in ("n3", "n4"):
            await create_pod(client, namespace, f"fill-{node}", requests={"cpu": "2"}, nodeName=node)
        await wait_until_scheduler_sees_cordon(client, namespace, "n2")
        await create_pod(client, namespace, "p1", group="a1", workload="P1", requests={"cpu": "1"})
        message = await wait_until_unschedulable(client, namespace, "p1")
    for node in ("n5", "n6", "n7", "n8"):
        expected = (
            f"Node {node} does not meet several network requirements from Workload dependencies: "
            "Satisfied: 0 Violated: 1"
        )
        assert expected in message
    assert "2 node(s) were unschedulable" in message
    assert "2 Insufficient cpu" in message


@pytest.mark.parametrize("parity", ["none", "upstream"])
async def test_allocatable_least_fits_the_large_pods_too(
    client: Client, namespace: str, ready_node: MakeNode, scheduler: StartScheduler, extender: Serve, parity: Any
) -> None:
    """Example 002: nodes of 10 and 200, pods of 5, 5, 100 and 100."""
    await ready_node("small", capacity={"cpu": "10", "memory": "10Gi"})
    await ready_node("large", capacity={"cpu": "200", "memory": "200Gi"})
    config = SchedulerConfig(parity=parity, allocatable=AllocatableArgs(weight=1))
    async with extender(config) as url:
        await scheduler(extender_url=url)
        for i, cpu in enumerate((5, 5, 100, 100)):
            await create_pod(client, namespace, f"p{i}", requests={"cpu": str(cpu), "memory": f"{cpu}Mi"})
            await wait_until_bound(client, namespace, f"p{i}")
    placed = await wait_until_bound(client, namespace)
    assert placed == {"p0": "small", "p1": "small", "p2": "large", "p3": "large"}


async def test_replaced_pods_of_example_002_leave_capacity_for_the_large_pod(
    client: Client, namespace: str, ready_node: MakeNode, scheduler: StartScheduler, extender: Serve
) -> None:
    """Nodes of 20 and 100 with 10 and 90 used: a pod of 10 comes, one of 40 ends, one of 50 comes, and all fit."""
    await ready_node("small", capacity={"cpu": "20", "memory": "20Gi"})
    await ready_node("large", capacity={"cpu": "100", "memory": "100Gi"})
    async with extender(SchedulerConfig(allocatable=AllocatableArgs(weight=1))) as url:
        await scheduler(extender_url=url)
        for name, cpu, node in (("a", "10", "small"), ("b", "50", "large"), ("c", "40", "large")):
            await create_pod(client, namespace, name, requests={"cpu": cpu}, nodeName=node)
        await create_pod(client, namespace, "ten", requests={"cpu": "10"})
        assert await wait_until_bound(client, namespace, "ten") == {"ten": "small"}
        await client.delete(PODS, "c", namespace=namespace, grace_period_s=0)
        await create_pod(client, namespace, "fifty", requests={"cpu": "50"})
        assert await wait_until_bound(client, namespace, "fifty") == {"fifty": "large"}


async def test_a_refused_pod_is_retried_after_costs_change(
    client: Client, namespace: str, ready_node: MakeNode, scheduler: StartScheduler, extender: Serve, lead: Lead
) -> None:
    await ready_node("far", zone="z3", region="us-east-1", capacity={"cpu": "2"})
    await set_costs(client, namespace, {}, REGIONS)
    await ready_node("near", zone="z1", region="us-west-1", capacity={"cpu": "2"})
    await create_group(client, namespace, {"P1": {"P2": 15}, "P2": {}})
    async with extender() as url, lead():
        await scheduler(extender_url=url)
        await pin(client, namespace, "p2-one", "P2", "near")
        await cordon(client, "near")
        await wait_until_scheduler_sees_cordon(client, namespace, "near")
        await create_pod(client, namespace, "p1", group="a1", workload="P1")
        await wait_until_unschedulable(client, namespace, "p1")
        await asyncio.sleep(3)  # kube-scheduler's retries after the refusal itself are over
        await set_costs(client, namespace, {}, dict.fromkeys(REGIONS, 10))
        assert await wait_until_bound(client, namespace, "p1") == {"p1": "far"}
