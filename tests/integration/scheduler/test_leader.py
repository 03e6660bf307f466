"""A new leader handles earlier placements, and the rights that it has, on a real API server."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from controller.cluster.pods import Pod
from controller.scheduler.config import GatesConfig, SchedulerConfig
from controller.scheduler.gating.controller import GatingController
from kubekit.client import MERGE_PATCH, Client
from kubekit.wire import DEPLOYMENTS, PODS, Object, Resource
from lab.polling import poll_until
from tests.integration.scheduler.harness import LONG_WAIT, PROFILE, SchedulerHarness, make_deployment

pytestmark = [pytest.mark.usefixtures("gate_policy"), pytest.mark.timeout(600)]

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


async def create_and_bind(harness: SchedulerHarness, name: str, controller: GatingController) -> None:
    """Create a gated pod of P1, and bind it after the controller has seen it."""
    foreign_gate = [{"name": FOREIGN_GATE}]
    await harness.create_pod(name, group="a1", workload="P1", schedulingGates=foreign_gate)
    await wait_for_gated_pods(controller, 1)
    no_gates = {"spec": {"schedulingGates": None}}
    await harness.client.patch(PODS, name, no_gates, Object, patch_type=MERGE_PATCH, namespace=harness.namespace)
    target = {"kind": "Node", "name": "n-a"}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    await harness.client.request("POST", PODS.path(harness.namespace, name, "binding"), body=body)


async def wait_for_gated_pods(controller: GatingController, count: int) -> None:
    """Wait until the controller sees this number of gated pods."""

    def has_count() -> bool:
        (family,) = controller.metrics.gated_pods.collect()
        return bool(family.samples[0].value == count)

    await poll_until(has_count)


async def test_a_new_leader_reports_no_placement_of_pods_that_were_bound_before(harness: SchedulerHarness) -> None:
    await harness.create_zones("a")
    await harness.create_group(NO_DEPENDENCIES)
    leads = asyncio.Event()

    async def is_last_released() -> bool:
        return not (await harness.read_pod("last")).is_gated

    # Until the event is set, the controller only watches.
    async with harness.run_leader(NO_WAIT_FOR_MISSING_WORKLOADS, start=leads) as controller:
        for name in ("old", "deleted"):
            await create_and_bind(harness, name, controller)
            await wait_for_gated_pods(controller, 0)
        await harness.delete_pod("deleted")
        leads.set()
        # When this pod is released, the new leader has handled all earlier ones.
        await harness.create_pod("last", group="a1", workload="P0")
        await poll_until(is_last_released)
        await harness.delete_pod("last")

        await create_and_bind(harness, "new", controller)
        await harness.wait_for_event("new", "NetworkPlacement")
        for name in ("old", "deleted"):
            reasons = [event["reason"] for event in await harness.list_events(name)]
            assert "NetworkPlacement" not in reasons


async def test_in_affinity_mode_no_zone_is_required_without_the_right_to_evict(harness: SchedulerHarness) -> None:
    await harness.create_zones("a", "b")
    await harness.create_group({"P1": {"P2": 10}, "P2": {}})
    body = make_deployment("p1", "P1", schedulerName=PROFILE)
    # The leader requests the review when it starts.
    writer = cast("Client", DeniedClient(harness.client))

    async def list_released() -> list[Pod]:
        pods = await harness.list_pods()
        return [pod for pod in pods if pod.workload == "P1" and not pod.is_gated]

    async with harness.run_leader(SchedulerConfig(gates=LONG_WAIT, placement="affinity"), writer=writer):
        await harness.client.create(DEPLOYMENTS, body, Object, namespace=harness.namespace)
        await harness.create_pod("p2", group="a1", workload="P2", nodeName="n-b")
        (released_pod, *_) = await poll_until(list_released)
    affinity = released_pod.spec.affinity
    assert affinity is not None
    assert affinity.node_affinity is not None
    assert affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
    assert affinity.node_affinity.required_during_scheduling_ignored_during_execution is None
