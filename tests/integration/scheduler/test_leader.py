"""The state of a new leader, on a real API server: old placements, reservations and rights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import pytest_asyncio

from controller.cluster.crds import APPGROUPS
from controller.cluster.pods import Pod
from controller.scheduler.config import GatesConfig, SchedulerConfig
from controller.scheduler.gating.controller import GatingController
from kubekit.client import MERGE_PATCH, Client
from kubekit.wire import DEPLOYMENTS, NAMESPACES, PODS, Object, Resource
from lab.polling import poll_until
from tests.integration.scheduler.conftest import (
    LONG_WAIT,
    PROFILE,
    Lead,
    MakeZones,
    create_group,
    create_pod,
    list_events,
    read_pod,
    workload_body,
)

pytestmark = [pytest.mark.usefixtures("kwok", "crds", "gate_policy"), pytest.mark.timeout(600)]

NO_WAIT_FOR_MISSING_WORKLOADS = SchedulerConfig(gates=GatesConfig(max_wait_s=1200, missing_workload_timeout_s=0))
FOREIGN_GATE = "example.com/gate"
NO_DEPENDENCIES: dict[str, dict[str, int]] = {"P0": {}, "P1": {}}


class DeniedClient:
    """A client that creates SelfSubjectAccessReviews, and changes their answers to denials."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def create(self, resource: Resource, body: object, type_: type[Any], **options: Any) -> Any:
        created = await self._client.create(resource, body, type_, **options)
        if resource.kind == "SelfSubjectAccessReview":
            created.status["allowed"] = False
        return created


@pytest_asyncio.fixture
async def admitting_namespace(client: Client, namespace: str) -> AsyncIterator[str]:
    """A namespace that admits groups of ``namespace``."""
    name = f"{namespace}-guest"
    labels = {"netaware.io/appgroups-from": namespace}
    await client.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}}, Object)
    yield name
    await client.delete(NAMESPACES, name)


async def bind(client: Client, namespace: str, pod: str, node: str) -> None:
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": {"kind": "Node", "name": node}}
    await client.request("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/binding", body=body)


async def open_gates(client: Client, namespace: str, pod: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
    await client.request("PATCH", path, body={"spec": {"schedulingGates": None}}, content_type=MERGE_PATCH)


async def count_placement_events(client: Client, namespace: str, *pods: str) -> list[int]:
    events_by_pod = [await list_events(client, namespace, pod) for pod in pods]
    return [sum(event["reason"] == "NetworkPlacement" for event in events) for events in events_by_pod]


async def has_placement_event(client: Client, namespace: str, pod: str) -> bool:
    return await count_placement_events(client, namespace, pod) == [1]


def sees_gated(controller: GatingController, count: int) -> bool:
    (family,) = controller.metrics.gated_pods.collect()
    return bool(family.samples[0].value == count)


async def is_released(client: Client, namespace: str, pod: str) -> bool:
    return not (await read_pod(client, namespace, pod)).is_gated


async def test_a_new_leader_reports_no_placement_of_pods_that_were_bound_before(
    client: Client, namespace: str, lead: Lead, zones: MakeZones
) -> None:
    await zones("a")
    await create_group(client, namespace, NO_DEPENDENCIES)
    start = asyncio.Event()
    async with lead(NO_WAIT_FOR_MISSING_WORKLOADS, start=start) as controller:
        # Until ``start`` is set, the controller only watches.
        for name in ("old", "gone"):
            await create_pod(
                client, namespace, name, group="a1", workload="P1", schedulingGates=[{"name": FOREIGN_GATE}]
            )
            await poll_until(lambda: sees_gated(controller, 1))
            await open_gates(client, namespace, name)
            await bind(client, namespace, name, "n-a")
            await poll_until(lambda: sees_gated(controller, 0))
        await client.delete(PODS, "gone", namespace=namespace, grace_period_s=0)
        start.set()
        # When this pod is released, the new leader has handled all earlier ones.
        await create_pod(client, namespace, "last", group="a1", workload="P0")
        await poll_until(lambda: is_released(client, namespace, "last"))
        await client.delete(PODS, "last", namespace=namespace, grace_period_s=0)
        await create_pod(client, namespace, "new", group="a1", workload="P1", schedulingGates=[{"name": FOREIGN_GATE}])
        await poll_until(lambda: sees_gated(controller, 1))
        await open_gates(client, namespace, "new")
        await bind(client, namespace, "new", "n-a")
        await poll_until(lambda: has_placement_event(client, namespace, "new"))
        assert await count_placement_events(client, namespace, "old", "gone") == [0, 0]


async def test_reservations_of_a_deleted_group_are_released(
    client: Client, namespace: str, admitting_namespace: str, lead: Lead, zones: MakeZones
) -> None:
    """After the deletion, its pod in another namespace belongs to no group."""
    await zones("a", capacity={"cpu": "2"})
    await create_group(
        client, namespace, NO_DEPENDENCIES, name="first", members=1, namespaces={"P1": admitting_namespace}
    )
    async with lead(SchedulerConfig(gates=LONG_WAIT)) as controller:
        await create_pod(
            client,
            admitting_namespace,
            "guest",
            group="first",
            workload="P1",
            requests={"cpu": "2"},
            automountServiceAccountToken=False,
        )

        await poll_until(lambda: is_released(client, admitting_namespace, "guest"))
        assert controller.plans.reservations.reserved_by_others("")
        await client.delete(APPGROUPS, "first", namespace=namespace)
        await poll_until(lambda: not controller.state.groups)
        await client.delete(PODS, "guest", namespace=admitting_namespace, grace_period_s=0)
        await create_group(client, namespace, NO_DEPENDENCIES, name="second", members=1)
        await create_pod(client, namespace, "own", group="second", workload="P1", requests={"cpu": "2"})
        await poll_until(lambda: controller.plans.planned_condition(f"{namespace}/second") is not None)
        planned = controller.plans.planned_condition(f"{namespace}/second")
        assert planned is not None
        assert planned.reason == "Complete"


async def test_in_affinity_mode_no_zone_is_required_without_the_right_to_evict(
    client: Client, namespace: str, lead: Lead, zones: MakeZones
) -> None:
    await zones("a", "b")
    await create_group(client, namespace, {"P1": {"P2": 10}, "P2": {}})
    body = workload_body("p1", "P1", schedulerName=PROFILE)
    # The leader asks for the right when it starts.
    writer = cast("Client", DeniedClient(client))
    async with lead(SchedulerConfig(gates=LONG_WAIT, placement="affinity"), writer=writer):
        await client.create(DEPLOYMENTS, body, Object, namespace=namespace)
        await create_pod(client, namespace, "p2", group="a1", workload="P2", nodeName="n-b")

        async def list_released() -> list[Pod]:
            pods = await client.list(PODS, Pod, namespace=namespace)
            return [pod for pod in pods if pod.workload == "P1" and not pod.is_gated]

        await poll_until(list_released)
        affinity = (await list_released())[0].spec.affinity
    assert affinity is not None
    assert affinity.node_affinity is not None
    assert affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
    assert affinity.node_affinity.required_during_scheduling_ignored_during_execution is None
