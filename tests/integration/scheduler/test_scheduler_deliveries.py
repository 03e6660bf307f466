"""Plans work with autoscalers, preemption and overdue gates, on the stock kube-scheduler."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from controller.cluster.pods import GATE, Pod
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.gating.opener import GateOpener
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.runtime import supervise
from kubekit.wire import PODS, Object, Resource
from lab.polling import poll_until
from tests.integration.conftest import MakeNode, StartScheduler
from tests.integration.scheduler.conftest import (
    LONG_WAIT,
    MakeZones,
    Scheduling,
    Serve,
    create_group,
    create_pod,
    read_pod,
    wait_until_bound,
)

pytestmark = [pytest.mark.usefixtures("kwok", "crds", "gate_policy"), pytest.mark.timeout(600)]

PRIORITIES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", is_namespaced=False)


def autoscaler_sees(pod: Pod) -> bool:
    """Whether Cluster Autoscaler would create a node for the pod: it lists unschedulable pods."""
    scheduled = pod.condition("PodScheduled")
    return pod.is_waiting and scheduled is not None and scheduled.reason == "Unschedulable"


async def test_the_autoscaler_sees_all_pods_of_an_unschedulable_chain(
    client: Client, namespace: str, ready_node: MakeNode, scheduling: Scheduling, zones: MakeZones
) -> None:
    """Gates do not wait for a workload that is unschedulable; otherwise one pod would be seen in ten minutes."""
    await zones("a", capacity={"cpu": "2"})
    chain = ("P1", "P2", "P3", "P4")
    await create_group(client, namespace, {a: {b: 10} for a, b in pairwise(chain)} | {"P4": {}})
    names = [workload.lower() for workload in chain]
    config = SchedulerConfig(gates=LONG_WAIT)
    async with scheduling(config):
        for workload in chain:
            await create_pod(client, namespace, workload.lower(), group="a1", workload=workload, requests={"cpu": "4"})

        async def autoscaler_sees_all() -> bool:
            return all([autoscaler_sees(await read_pod(client, namespace, name)) for name in names])

        await poll_until(autoscaler_sees_all)
        pods = [await read_pod(client, namespace, name) for name in names]
        assert [pod.spec.affinity for pod in pods] == [None] * len(names)
        for node in ("n-b", "n-c"):
            await ready_node(node, zone="a", region="r", capacity={"cpu": "8"})
        placed = await wait_until_bound(client, namespace, *names)
    assert set(placed.values()) == {"n-b", "n-c"}


async def test_a_gate_without_a_group_is_refused_with_a_reason(client: Client, namespace: str) -> None:
    async def ask_for_a_minute() -> None:
        """The API server takes a policy that was just made into account after a while."""
        for number in range(120):
            await create_pod(client, namespace, f"lost-{number}", schedulingGates=[{"name": GATE}])
            await asyncio.sleep(0.5)

    with pytest.raises(ApiError, match=r"add the label appgroup.diktyo.x-k8s.io with the AppGroup's name") as refused:
        await ask_for_a_minute()
    assert refused.value.status == 422


async def test_overdue_gates_are_opened_without_a_controller(
    client: Client, namespace: str, ready_node: MakeNode, scheduler: StartScheduler
) -> None:
    await ready_node("n-a", zone="a", region="r")
    await scheduler()
    await create_group(client, namespace, {"A": {}})
    for name in ("one", "two"):
        await create_pod(client, namespace, name, group="a1", workload="A")
    opener = GateOpener(client, max_wait_s=1.0)
    running = asyncio.create_task(supervise(opener.tasks()))
    try:
        await wait_until_bound(client, namespace, "one", "two")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_pods_are_preempted_only_on_nodes_that_the_filter_allows(
    client: Client, namespace: str, scheduler: StartScheduler, extender: Serve, zones: MakeZones
) -> None:
    """P2 of P1 is in zone a. Both zones are full of pods of lower priority; those of zone b are not evicted."""
    await zones("a", "b", capacity={"cpu": "2"})
    await create_group(client, namespace, {"P1": {"P2": 10}, "P2": {}})
    urgent = f"urgent-{namespace}"
    body = {"metadata": {"name": urgent}, "value": 1000, "globalDefault": False}
    await client.create(PRIORITIES, body, Object)
    try:
        async with extender() as url:
            await scheduler(extender_url=url)
            await create_pod(client, namespace, "p2", group="a1", workload="P2", nodeName="n-a")
            for zone in ("a", "b"):
                await create_pod(client, namespace, f"low-{zone}", requests={"cpu": "2"}, nodeName=f"n-{zone}")
            spec: dict[str, Any] = {"priorityClassName": urgent, "requests": {"cpu": "2"}}
            created = await create_pod(client, namespace, "p1", group="a1", workload="P1", **spec)
            gates = {"spec": {"schedulingGates": None}, "metadata": {"uid": created.metadata.uid}}
            await client.patch(PODS, "p1", gates, Object, namespace=namespace)
            assert await wait_until_bound(client, namespace, "p1") == {"p1": "n-a"}
            remaining = {pod.metadata.name for pod in await client.list(PODS, Pod, namespace=namespace)}
    finally:
        await client.delete(PRIORITIES, urgent)
    assert remaining == {"p1", "p2", "low-b"}
