"""Pods of an AppGroup and a PodGroup are bound together by the plan, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from controller.cluster.crds import AppGroup
from controller.cluster.pods import PlacementMode, target_of
from controller.scheduler.config import SchedulerConfig
from kubekit.conditions import find_condition
from kubekit.wire import Object, Resource
from lab.polling import poll_until
from tests.integration.scheduler.harness import LONG_WAIT, SchedulerHarness

pytestmark = [pytest.mark.usefixtures("gate_policy"), pytest.mark.timeout(600)]

POD_GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")
POD_GROUP = "gang"


async def create_pod_group(harness: SchedulerHarness, min_count: int) -> None:
    """Create the PodGroup, of which at least this number of pods is bound together."""
    spec = {"schedulingPolicy": {"gang": {"minCount": min_count}}}
    body = {**POD_GROUPS.type_meta, "metadata": {"name": POD_GROUP}, "spec": spec}
    await harness.client.create(POD_GROUPS, body, Object, namespace=harness.namespace)


async def create_members(harness: SchedulerHarness, names: Iterable[str], workload: str, cpu: str = "1") -> None:
    """Create pods of the AppGroup and the PodGroup."""
    spec: dict[str, Any] = {"schedulingGroup": {"podGroupName": POD_GROUP}, "requests": {"cpu": cpu}}
    for name in names:
        await harness.create_pod(name, group="a1", workload=workload, **spec)


async def read_targets(harness: SchedulerHarness, *names: str) -> dict[str, str]:
    """The planned node of each pod that has one, by default of all pods of the namespace."""
    pods = [pod for pod in await harness.list_pods() if not names or pod.metadata.name in names]
    return {pod.metadata.name: target.node for pod in pods if (target := target_of(pod)) is not None}


async def has_pod_group_failed(harness: SchedulerHarness) -> bool:
    """Whether kube-scheduler has tried to place the PodGroup in vain."""
    # An AppGroup's status has conditions as a PodGroup's.
    pod_group = await harness.client.get(POD_GROUPS, POD_GROUP, AppGroup, namespace=harness.namespace)
    condition = find_condition(pod_group.status.conditions, "PodGroupInitiallyScheduled")
    return condition is not None and condition.status == "False"


@pytest.mark.parametrize("placement", ["extender", "affinity"])
async def test_gates_of_one_pod_group_open_together(harness: SchedulerHarness, placement: PlacementMode) -> None:
    """Otherwise the pods of one workload wait for others to be bound, which wait for the whole PodGroup."""
    await harness.create_zones("a", "b", capacity={"cpu": "3"})
    await harness.create_group({"A": {"B": 10}, "B": {}}, members=3)
    await create_pod_group(harness, 3)
    async with harness.run_scheduling(SchedulerConfig(gates=LONG_WAIT, placement=placement)):
        await create_members(harness, ("b1",), "B")
        await create_members(harness, ("a1", "a2"), "A")
        node_by_pod = await harness.wait_until_bound("a1", "a2", "b1")
        target_by_pod = await read_targets(harness)
    assert len(set(node_by_pod.values())) == 1, node_by_pod
    assert target_by_pod == node_by_pod


async def test_simulated_placements_of_a_failed_pod_group_reserve_nothing(harness: SchedulerHarness) -> None:
    """A PodGroup fails because of a pod outside the AppGroup; the nodes of its other pods stay free."""
    nodes, names = ["n-1", "n-2", "n-3"], ("p1", "p2", "p3")
    await harness.create_zones("1", "2", "3", capacity={"cpu": "2"})
    await harness.create_group({"A": {}}, members=3)
    await create_pod_group(harness, 4)
    async with harness.run_scheduling(SchedulerConfig(gates=LONG_WAIT)):
        pod_group = {"podGroupName": POD_GROUP}
        await harness.create_pod("large", requests={"cpu": "16"}, schedulingGroup=pod_group)
        await create_members(harness, names, "A", cpu="2")
        message = await harness.wait_until_unschedulable("p1")
        assert sorted((await read_targets(harness, *names)).values()) == nodes, message

        await harness.create_ready_node("n-large", zone="a", region="r", capacity={"cpu": "16"})
        node_by_pod = await harness.wait_until_bound("large", *names)
    assert node_by_pod.pop("large") == "n-large"
    # A new node causes new plans, in which equal pods may change places.
    assert sorted(node_by_pod.values()) == nodes


async def test_a_pod_group_that_does_not_fit_reserves_nothing(harness: SchedulerHarness) -> None:
    """Thirty of fifty pods fit: none is bound or has a target, and another AppGroup gets all capacity."""
    await harness.create_zones("1", "2", "3", capacity={"cpu": "10"})
    await harness.create_group({"A": {}}, members=50)
    await harness.create_group({"B": {}}, members=30, name="a2")
    await create_pod_group(harness, 50)
    members, others = [f"m{i:02}" for i in range(50)], [f"o{i:02}" for i in range(30)]

    async def have_all_failed() -> bool:
        pods = await harness.list_pods()
        return await has_pod_group_failed(harness) and all(pod.status.scheduling_failed for pod in pods)

    async with harness.run_scheduling(SchedulerConfig(gates=LONG_WAIT)):
        await create_members(harness, members, "A")
        await poll_until(have_all_failed)
        assert [pod.metadata.name for pod in await harness.list_pods() if pod.spec.node_name] == []
        assert await read_targets(harness) == {}

        for name in others:
            await harness.create_pod(name, group="a2", workload="B", requests={"cpu": "1"})
        node_by_pod = await harness.wait_until_bound(*others)
        assert await read_targets(harness, *others) == node_by_pod

        new_nodes = {f"n-{i}" for i in range(4, 9)}
        for node in new_nodes:
            await harness.create_ready_node(node, zone="a", region="r", capacity={"cpu": "10"})
        node_by_member = await harness.wait_until_bound(*members)
    assert set(node_by_member.values()) == new_nodes
