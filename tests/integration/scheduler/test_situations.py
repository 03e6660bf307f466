"""In every situation all pods of a group that fit are bound, by a real kube-scheduler in both modes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from controller.scheduler.config import GatesConfig, SchedulerConfig
from kubekit.client import MERGE_PATCH
from kubekit.wire import PODS, Object, Pod, Resource
from lab.polling import poll_until
from tests.integration.scheduler.chain_cluster import CHAIN, POD_COUNT, ChainCluster
from tests.integration.scheduler.harness import SchedulerHarness

pytestmark = [pytest.mark.usefixtures("gate_policy"), pytest.mark.timeout(900), pytest.mark.slow]

FOREIGN_GATE = "example.com/gate"
SHORT_WAIT = GatesConfig(max_wait_s=5, missing_workload_timeout_s=1)
PRIORITIES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", is_namespaced=False)
DEVICE_GROUP = "resource.k8s.io"
RESOURCE_SLICES = Resource(DEVICE_GROUP, "v1", "resourceslices", "ResourceSlice", is_namespaced=False)
DEVICE_CLASSES = Resource(DEVICE_GROUP, "v1", "deviceclasses", "DeviceClass", is_namespaced=False)
CLAIM_TEMPLATES = Resource(DEVICE_GROUP, "v1", "resourceclaimtemplates", "ResourceClaimTemplate")

Situation = Callable[[ChainCluster], Awaitable[None]]


@pytest_asyncio.fixture
async def cluster(request: pytest.FixtureRequest, harness: SchedulerHarness) -> AsyncIterator[ChainCluster]:
    """The cluster in a mode, with placed pods if the situation begins so; the parameter is (mode, situation)."""
    placement, situation = request.param
    cluster = ChainCluster(harness, placement, has_zones=situation is not change_pods_without_zones)
    await cluster.create_nodes_and_group()
    async with cluster.objects_stack, harness.run_extender(cluster.config) as url, cluster.gating_stack:
        await harness.start_scheduler(extender_url=url)
        await cluster.restart_gating_controller()
        if situation in WITH_PLACED_GROUP:
            await cluster.deploy(*CHAIN)
            await cluster.wait_until_placed()
        yield cluster


async def recreate_pods(cluster: ChainCluster) -> None:
    old_uids = await cluster.list_pod_uids()
    for pod in await cluster.list_active_pods():
        await cluster.harness.delete_pod(pod.metadata.name)
    await cluster.wait_until_placed(replaced_uids=old_uids)


async def roll_out(cluster: ChainCluster, revision: str = "1") -> None:
    old_uids = await cluster.list_pod_uids()
    await cluster.patch_deployments({"spec": {"template": {"metadata": {"annotations": {"revision": revision}}}}})
    await cluster.wait_until_placed(replaced_uids=old_uids)


async def scale_out(cluster: ChainCluster) -> None:
    """Each workload gets six replicas instead of two."""
    await cluster.patch_deployments({"spec": {"replicas": 6}})
    await cluster.wait_until_placed(6 * len(CHAIN))


async def cordon_a_zone(cluster: ChainCluster) -> None:
    for node, zone in cluster.zone_by_node.items():
        if zone == "z0":
            await cluster.harness.cordon(node)
    await recreate_pods(cluster)


async def change_pods_without_zones(cluster: ChainCluster) -> None:
    await roll_out(cluster)
    await scale_out(cluster)


async def open_foreign_gates_late(cluster: ChainCluster) -> None:
    """Our gates wait for gates of others, also longer than their own maximum."""
    await cluster.restart_gating_controller(SchedulerConfig(placement=cluster.config.placement, gates=SHORT_WAIT))
    await cluster.deploy(*CHAIN, schedulingGates=[{"name": FOREIGN_GATE}])

    async def are_created() -> bool:
        return len(await cluster.list_active_pods()) == POD_COUNT

    await poll_until(are_created)
    await asyncio.sleep(SHORT_WAIT.max_wait_s + 1)
    for pod in await cluster.list_active_pods():
        assert pod.is_gated
        our_gates = [{"name": gate.name} for gate in pod.spec.scheduling_gates or () if gate.name != FOREIGN_GATE]
        patch = {"spec": {"schedulingGates": our_gates}}
        await cluster.harness.client.patch(
            PODS, pod.metadata.name, patch, Pod, patch_type=MERGE_PATCH, namespace=cluster.harness.namespace
        )
    await cluster.wait_until_placed()


async def preempt_pods(cluster: ChainCluster) -> None:
    """All capacity is used by pods of lower priority."""
    priority_class = f"high-{cluster.harness.namespace}"
    await cluster.create_object(PRIORITIES, priority_class, {"value": 1000})
    for node in cluster.zone_by_node:
        for i in range(4):  # of 1 cpu on a node of 4 cpu
            low: dict[str, Any] = {"requests": {"cpu": "1"}, "scheduler": "default-scheduler"}
            await cluster.harness.create_pod(f"low-{node}-{i}", **low)
    await cluster.harness.wait_until_bound()
    await cluster.deploy(*CHAIN, priorityClassName=priority_class)
    await cluster.wait_until_placed()


async def request_devices(cluster: ChainCluster) -> None:
    """Each pod of m needs a device of z1, by dynamic resource allocation, which plans ignore."""
    driver = f"{cluster.harness.namespace}.example"
    selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
    await cluster.create_object(DEVICE_CLASSES, driver, {"spec": {"selectors": [selector]}})
    for node in ("n-z1-0", "n-z1-1"):
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec: dict[str, Any] = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "one"}]}
        await cluster.create_object(RESOURCE_SLICES, f"{cluster.harness.namespace}-{node}", {"spec": spec})
    request = {"name": "one", "exactly": {"deviceClassName": driver}}
    template = {"metadata": {"name": "device"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    await cluster.harness.client.create(CLAIM_TEMPLATES, template, Object, namespace=cluster.harness.namespace)
    await cluster.deploy("web", "db")
    await cluster.deploy("api", resourceClaims=[{"name": "one", "resourceClaimTemplateName": "device"}])
    await cluster.wait_until_placed()


async def restart_gating_between_bindings(cluster: ChainCluster) -> None:
    await cluster.deploy(*CHAIN)

    async def is_any_bound() -> bool:
        return any(pod.spec.node_name for pod in await cluster.list_active_pods())

    await poll_until(is_any_bound)
    await cluster.restart_gating_controller()
    await cluster.wait_until_placed()


async def roll_out_workloads_that_span_zones(cluster: ChainCluster) -> None:
    await cluster.deploy(*CHAIN, annotations={"netaware.io/spread": "zone"})
    await cluster.wait_until_placed()
    for revision in ("1", "2", "3"):
        await roll_out(cluster, revision)
        zones_by_workload = await cluster.list_zones()
        assert [name for name, zones in zones_by_workload.items() if len(set(zones)) == 1] == []


WITH_PLACED_GROUP: tuple[Situation, ...] = (
    recreate_pods,
    roll_out,
    scale_out,
    cordon_a_zone,
    change_pods_without_zones,
)
"""Situations that begin after the group is placed."""
WITHOUT_PODS: tuple[Situation, ...] = (
    open_foreign_gates_late,
    preempt_pods,
    request_devices,
    restart_gating_between_bindings,
    roll_out_workloads_that_span_zones,
)
MAY_PLACE_WITHOUT_PLAN: tuple[Situation, ...] = (request_devices, restart_gating_between_bindings)


@pytest.mark.parametrize(
    ("cluster", "situation"),
    [
        pytest.param((placement, situation), situation, id=f"{situation.__name__}-{placement}")
        for situation in (*WITH_PLACED_GROUP, *WITHOUT_PODS)
        for placement in ("extender", "affinity")
    ],
    indirect=["cluster"],
)
async def test_all_pods_that_fit_are_bound(
    cluster: ChainCluster, situation: Situation, record_property: Callable[[str, object], None]
) -> None:
    began_s = time.monotonic()
    await situation(cluster)
    record_property("seconds", round(time.monotonic() - began_s, 1))
    violation_count = await cluster.count_violations()
    record_property("violated", violation_count)
    assert situation in MAY_PLACE_WITHOUT_PLAN or violation_count == 0
