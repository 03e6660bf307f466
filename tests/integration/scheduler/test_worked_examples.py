"""The published examples give the published placements on a real kube-scheduler with our extender."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.scheduler.config import AllocatableArgs, Parity, SchedulerConfig
from lab.polling import poll_until
from tests.integration.scheduler.harness import SchedulerHarness
from tests.support.bodies import make_symmetric_costs

pytestmark = pytest.mark.timeout(600)

ZONE_COSTS = make_symmetric_costs({("z1", "z2"): 5, ("z3", "z4"): 10})
REGION_COSTS = make_symmetric_costs({("us-west-1", "us-east-1"): 20})
NODES = [f"n{i}" for i in range(1, 9)]


@pytest_asyncio.fixture
async def example_000(harness: SchedulerHarness) -> AsyncIterator[None]:
    """kube-scheduler with the extender, two nodes of 2 cpu in each zone, and P2, on which P1 depends, on n1."""
    for i, name in enumerate(NODES):
        region = "us-west-1" if i < 4 else "us-east-1"
        await harness.create_ready_node(name, zone=f"z{i // 2 + 1}", region=region, capacity={"cpu": "2"})
    await harness.set_costs(ZONE_COSTS, REGION_COSTS)
    await harness.create_group({"P1": {"P2": 15}, "P2": {}})
    async with harness.run_extender() as url:
        await harness.start_scheduler(extender_url=url)
        await harness.create_pod("p2", group="a1", workload="P2", nodeName="n1")
        await wait_until_filter_passes(harness, url, {"n1", "n2", "n3", "n4"})
        yield


async def wait_until_filter_passes(harness: SchedulerHarness, url: str, node_names: set[str]) -> None:
    """Wait until the extender passes only these nodes for a pod of P1."""
    labels = {APPGROUP_LABEL: "a1", WORKLOAD_LABEL: "P1"}
    pod = {"metadata": {"name": "probe", "namespace": harness.namespace, "uid": "probe", "labels": labels}, "spec": {}}

    async def passes_nodes() -> bool:
        async with session.post(f"{url}/filter", json={"Pod": pod, "NodeNames": NODES}) as response:
            return set((await response.json(content_type=None))["nodenames"] or ()) == node_names

    async with aiohttp.ClientSession() as session:
        await poll_until(passes_nodes)


@pytest.mark.usefixtures("example_000")
async def test_a_pod_is_bound_beside_its_dependency(harness: SchedulerHarness) -> None:
    await harness.create_pod("p1", group="a1", workload="P1")
    assert await harness.wait_until_bound("p1") == {"p1": "n1"}


@pytest.mark.usefixtures("example_000")
async def test_a_pod_is_bound_near_its_dependency_if_that_node_is_full(harness: SchedulerHarness) -> None:
    """N2 has cost 1 and score 80, N3 and N4 have cost 5 and score 0."""
    await harness.create_pod("p3", group="a1", workload="P3", nodeName="n4")
    await harness.create_pod("fill-n1", requests={"cpu": "2"}, nodeName="n1")
    await harness.create_pod("p1", group="a1", workload="P1", requests={"cpu": "1"})
    assert await harness.wait_until_bound("p1") == {"p1": "n2"}


@pytest.mark.usefixtures("example_000")
async def test_a_pod_is_pending_with_a_reason_if_only_nodes_above_its_cost_are_free(harness: SchedulerHarness) -> None:
    for node in ("n1", "n2"):
        await harness.cordon(node)
    for node in ("n3", "n4"):
        await harness.create_pod(f"fill-{node}", requests={"cpu": "2"}, nodeName=node)
    await harness.wait_until_scheduler_sees_cordon("n2")
    await harness.create_pod("p1", group="a1", workload="P1", requests={"cpu": "1"})

    message = await harness.wait_until_unschedulable("p1")

    requirements = "does not meet several network requirements from Workload dependencies: Satisfied: 0 Violated: 1"
    for node in ("n5", "n6", "n7", "n8"):
        assert f"Node {node} {requirements}" in message
    assert "2 node(s) were unschedulable" in message
    assert "2 Insufficient cpu" in message


@pytest.mark.parametrize("parity", ["none", "upstream"])
async def test_allocatable_least_fits_the_large_pods_too(harness: SchedulerHarness, parity: Parity) -> None:
    """Example 002: nodes of 10 and 200, pods of 5, 5, 100 and 100."""
    await harness.create_ready_node("small", capacity={"cpu": "10", "memory": "10Gi"})
    await harness.create_ready_node("large", capacity={"cpu": "200", "memory": "200Gi"})
    config = SchedulerConfig(parity=parity, allocatable=AllocatableArgs(weight=1))
    async with harness.run_extender(config) as url:
        await harness.start_scheduler(extender_url=url)
        for i, cpu in enumerate((5, 5, 100, 100)):
            await harness.create_pod(f"p{i}", requests={"cpu": str(cpu), "memory": f"{cpu}Mi"})
            await harness.wait_until_bound(f"p{i}")
    node_by_pod = await harness.wait_until_bound()
    assert node_by_pod == {"p0": "small", "p1": "small", "p2": "large", "p3": "large"}


async def test_replaced_pods_of_example_002_leave_capacity_for_the_large_pod(harness: SchedulerHarness) -> None:
    """Nodes of 20 and 100 with 10 and 90 used: a pod of 10 comes, one of 40 ends, one of 50 comes, and all fit."""
    await harness.create_ready_node("small", capacity={"cpu": "20", "memory": "20Gi"})
    await harness.create_ready_node("large", capacity={"cpu": "100", "memory": "100Gi"})
    async with harness.run_extender(SchedulerConfig(allocatable=AllocatableArgs(weight=1))) as url:
        await harness.start_scheduler(extender_url=url)
        for name, cpu, node in (("a", "10", "small"), ("b", "50", "large"), ("c", "40", "large")):
            await harness.create_pod(name, requests={"cpu": cpu}, nodeName=node)
        await harness.create_pod("ten", requests={"cpu": "10"})
        assert await harness.wait_until_bound("ten") == {"ten": "small"}
        await harness.delete_pod("c")
        await harness.create_pod("fifty", requests={"cpu": "50"})
        assert await harness.wait_until_bound("fifty") == {"fifty": "large"}


async def test_a_refused_pod_is_retried_after_costs_change(harness: SchedulerHarness) -> None:
    await harness.create_ready_node("far", zone="z3", region="us-east-1", capacity={"cpu": "2"})
    await harness.set_costs({}, REGION_COSTS)
    await harness.create_ready_node("near", zone="z1", region="us-west-1", capacity={"cpu": "2"})
    await harness.create_group({"P1": {"P2": 15}, "P2": {}})
    async with harness.run_extender() as url, harness.run_gating_controller():
        await harness.start_scheduler(extender_url=url)
        await harness.create_pod("p2", group="a1", workload="P2", nodeName="near")
        await harness.cordon("near")
        await harness.wait_until_scheduler_sees_cordon("near")
        await harness.create_pod("p1", group="a1", workload="P1")
        await harness.wait_until_unschedulable("p1")
        await asyncio.sleep(3)  # until kube-scheduler no longer retries because of the refusal itself
        await harness.set_costs({}, dict.fromkeys(REGION_COSTS, 10))
        assert await harness.wait_until_bound("p1") == {"p1": "far"}
