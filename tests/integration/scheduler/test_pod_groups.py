"""Pods of an AppGroup and a PodGroup are bound together by the plan, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from controller.cluster.crds import AppGroup
from controller.cluster.pods import PlacementMode, Pod, target_of
from controller.scheduler.config import SchedulerConfig
from kubekit import conditions
from kubekit.client import Client
from kubekit.wire import PODS, Condition, Object, Resource
from lab.polling import poll_until
from tests.integration.conftest import MakeNode
from tests.integration.scheduler.conftest import (
    LONG_WAIT,
    MakeZones,
    Scheduling,
    create_group,
    create_pod,
    read_pod,
    wait_until_bound,
    wait_until_unschedulable,
)

pytestmark = [pytest.mark.usefixtures("kwok", "crds", "gate_policy"), pytest.mark.timeout(600)]

PODGROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")


async def create_pod_group(client: Client, namespace: str, name: str, minimum: int) -> None:
    spec = {"schedulingPolicy": {"gang": {"minCount": minimum}}}
    body = {**PODGROUPS.type_meta, "metadata": {"name": name}, "spec": spec}
    await client.create(PODGROUPS, body, Object, namespace=namespace)


async def create_members(
    client: Client, namespace: str, names: Iterable[str], workload: str, **fields: Any
) -> dict[str, Pod]:
    spec: dict[str, Any] = {"schedulingGroup": {"podGroupName": "gang"}, **fields}
    return {name: await create_pod(client, namespace, name, group="a1", workload=workload, **spec) for name in names}


async def list_pods(client: Client, namespace: str) -> list[Pod]:
    return await client.list(PODS, Pod, namespace=namespace)


async def find_condition(client: Client, namespace: str) -> Condition | None:
    """The condition that the scheduler sets on a PodGroup that it has tried; None before."""
    pod_group = await client.get(PODGROUPS, "gang", AppGroup, namespace=namespace)
    return conditions.find_condition(pod_group.status.conditions, "PodGroupInitiallyScheduled")


@pytest.mark.parametrize("placement", ["extender", "affinity"])
async def test_gates_of_one_pod_group_open_together(
    client: Client, namespace: str, zones: MakeZones, placement: PlacementMode, scheduling: Scheduling
) -> None:
    """Otherwise the pods of one workload wait for others to be bound, which wait for the whole PodGroup."""
    await zones("a", "b", capacity={"cpu": "3"})
    await create_group(client, namespace, {"A": {"B": 10}, "B": {}}, members=3)
    await create_pod_group(client, namespace, "gang", 3)
    config = SchedulerConfig(gates=LONG_WAIT, placement=placement)
    async with scheduling(config):
        await create_members(client, namespace, ("b1",), "B", requests={"cpu": "1"})
        await create_members(client, namespace, ("a1", "a2"), "A", requests={"cpu": "1"})
        placed = await wait_until_bound(client, namespace, "a1", "a2", "b1")
        pods = {pod.metadata.name: target_of(pod) for pod in await list_pods(client, namespace)}
    assert len(set(placed.values())) == 1, placed
    assert {name: target.node for name, target in pods.items() if target is not None} == placed


async def test_simulated_placements_of_a_failed_pod_group_reserve_nothing(
    client: Client, namespace: str, ready_node: MakeNode, zones: MakeZones, scheduling: Scheduling
) -> None:
    """A PodGroup fails because of a pod outside the AppGroup; the nodes of its other pods stay free."""
    nodes = ["n-1", "n-2", "n-3"]
    await zones("1", "2", "3", capacity={"cpu": "2"})
    await create_group(client, namespace, {"A": {}}, members=3)
    await create_pod_group(client, namespace, "gang", 4)
    config = SchedulerConfig(gates=LONG_WAIT)
    async with scheduling(config):
        gang = {"podGroupName": "gang"}
        await create_pod(client, namespace, "large", requests={"cpu": "16"}, schedulingGroup=gang)
        await create_members(client, namespace, ("p1", "p2", "p3"), "A", requests={"cpu": "2"})
        message = await wait_until_unschedulable(client, namespace, "p1")
        before = {name: target_of(await read_pod(client, namespace, name)) for name in ("p1", "p2", "p3")}
        assert sorted(target.node for target in before.values() if target is not None) == nodes, (before, message)
        await ready_node("n-large", zone="a", region="r", capacity={"cpu": "16"})
        placed = await wait_until_bound(client, namespace, "large", "p1", "p2", "p3")
    assert placed.pop("large") == "n-large"
    # Plans are made again when a node comes, so that equal pods may change places.
    assert sorted(placed.values()) == nodes


async def test_a_pod_group_that_does_not_fit_reserves_nothing(
    client: Client, namespace: str, ready_node: MakeNode, zones: MakeZones, scheduling: Scheduling
) -> None:
    """Thirty of fifty pods fit: none is bound or has a target or reservation, and another AppGroup gets all capacity."""
    await zones("1", "2", "3", capacity={"cpu": "10"})
    await create_group(client, namespace, {"A": {}}, members=50)
    await create_group(client, namespace, {"B": {}}, members=30, name="a2")
    await create_pod_group(client, namespace, "gang", 50)
    members, others = [f"m{i:02}" for i in range(50)], [f"o{i:02}" for i in range(30)]
    config = SchedulerConfig(gates=LONG_WAIT)
    async with scheduling(config):
        await create_members(client, namespace, members, "A", requests={"cpu": "1"})

        async def is_refused() -> bool:
            condition, pods = await find_condition(client, namespace), await list_pods(client, namespace)
            has_failed = condition is not None and condition.status == "False"
            return has_failed and all(pod.status.scheduling_failed for pod in pods)

        await poll_until(is_refused)
        pods = await list_pods(client, namespace)
        assert [
            (p.metadata.name, p.spec.node_name, target_of(p)) for p in pods if p.spec.node_name or target_of(p)
        ] == []
        for name in others:
            await create_pod(client, namespace, name, group="a2", workload="B", requests={"cpu": "1"})
        placed = await wait_until_bound(client, namespace, *others)
        target_by_pod = {name: target_of(await read_pod(client, namespace, name)) for name in others}
        assert {name: target.node for name, target in target_by_pod.items() if target is not None} == placed
        for node in ("n-4", "n-5", "n-6", "n-7", "n-8"):
            await ready_node(node, zone="a", region="r", capacity={"cpu": "10"})
        node_by_pod = await wait_until_bound(client, namespace, *members)
    assert set(node_by_pod.values()) == {"n-4", "n-5", "n-6", "n-7", "n-8"}
