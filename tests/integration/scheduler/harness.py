"""Creates pods, AppGroups and costs, and runs kube-scheduler, the extender and the gating controller, in scheduler tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import permutations
from typing import Any

from controller.cluster.crds import (
    APPGROUP_LABEL,
    APPGROUPS,
    NETWORK_TOPOLOGIES,
    WORKLOAD_LABEL,
    AppGroup,
    NetworkTopology,
)
from controller.cluster.pods import Pod
from controller.scheduler.config import GatesConfig, SchedulerConfig
from kubekit.client import MERGE_PATCH, Client
from kubekit.wire import EVENTS, NODES, PODS, Node, Object
from lab.nodes import is_usable
from lab.polling import poll_until
from tests.integration.conftest import CreateNode, StartScheduler
from tests.support.bodies import make_appgroup_body, make_topology_body, make_weight_body
from tests.support.scheduling import run_gating_controller, serve_extender

PROFILE = "network-aware-scheduler"
DEFAULT_COST = 40
LONG_WAIT = GatesConfig(max_wait_s=1200, missing_workload_timeout_s=600)
"""Timeouts of gates that do not pass during a test."""


class PodNamespace:
    """A namespace with pods, AppGroups and costs."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace

    async def create_pod(
        self,
        name: str,
        *,
        group: str = "",
        workload: str = "",
        scheduler: str = PROFILE,
        labels: dict[str, str] | None = None,
        requests: dict[str, str] | None = None,
        **spec: Any,
    ) -> Pod:
        """Create a pod; other keywords are fields of its spec."""
        group_labels = {APPGROUP_LABEL: group, WORKLOAD_LABEL: workload} if group else {}
        body = {
            "metadata": {"name": name, "labels": {**group_labels, **(labels or {})}},
            "spec": make_pod_spec(requests, schedulerName=scheduler, **spec),
        }
        return await self.client.create(PODS, body, Pod, namespace=self.namespace)

    async def create_group(
        self,
        calls: Mapping[str, Mapping[str, int]],
        *,
        name: str = "a1",
        algorithm: str = "KahnSort",
        members: int | None = None,
    ) -> AppGroup:
        """Create an AppGroup with maxNetworkCost by caller and callee."""
        body = make_appgroup_body(name, calls, members=members or len(calls), algorithm=algorithm)
        return await self.client.create(APPGROUPS, body, AppGroup, namespace=self.namespace)

    async def set_costs(
        self, zones: dict[tuple[str, str], int], regions: dict[tuple[str, str], int] | None = None
    ) -> NetworkTopology:
        """Create or replace the NetworkTopology nt-default of a namespace with these costs."""
        body = make_topology_body(weights=[make_weight_body(zones, regions)])
        return await self.client.apply(
            NETWORK_TOPOLOGIES, "nt-default", body, NetworkTopology, field_manager="tests", namespace=self.namespace
        )

    async def read_pod(self, name: str) -> Pod:
        return await self.client.get(PODS, name, Pod, namespace=self.namespace)

    async def list_pods(self) -> list[Pod]:
        return await self.client.list(PODS, Pod, namespace=self.namespace)

    async def delete_pod(self, name: str) -> None:
        await self.client.delete(PODS, name, namespace=self.namespace, grace_period_s=0)

    async def wait_until_bound(self, *names: str) -> dict[str, str]:
        """Wait until these pods, by default all of the namespace, are bound; returns node by pod."""

        async def find_nodes() -> dict[str, str] | None:
            pods = {pod.metadata.name: pod.spec.node_name for pod in await self.list_pods()}
            nodes = {name: pods.get(name, "") for name in names} if names else pods
            return nodes if all(nodes.values()) else None

        nodes: dict[str, str] = await poll_until(find_nodes)
        return nodes

    async def wait_until_unschedulable(self, name: str) -> str:
        """Wait until a pod is unschedulable; returns the scheduler's message."""

        async def find_message() -> str:
            condition = (await self.read_pod(name)).condition("PodScheduled")
            is_unschedulable = condition is not None and (condition.status, condition.reason) == (
                "False",
                "Unschedulable",
            )
            return condition.message if condition is not None and is_unschedulable else ""

        return str(await poll_until(find_message))

    async def wait_for_event(self, pod: str, reason: str) -> str:
        """Wait for an event about a pod; returns its note."""

        async def find_notes() -> list[str]:
            return [event["note"] for event in await self.list_events(pod) if event["reason"] == reason]

        return str((await poll_until(find_notes))[0])

    async def list_events(self, pod: str = "") -> list[dict[str, Any]]:
        """List events about a pod, by default all of the namespace."""
        events: list[dict[str, Any]] = await self.client.list(EVENTS, dict, namespace=self.namespace)
        return [event for event in events if pod in {"", event["regarding"]["name"]}]

    async def wait_until_scheduler_sees_cordon(self, node_name: str) -> None:
        """Wait until kube-scheduler refuses a pod that can run only on this cordoned node."""
        only_here: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": node_name}}

        async def is_refused() -> bool:
            await self.create_pod("cordon-probe", scheduler="default-scheduler", **only_here)
            while not (pod := await self.read_pod("cordon-probe")).spec.node_name:
                condition = pod.condition("PodScheduled")
                if condition is not None and condition.status == "False":
                    break
                await asyncio.sleep(0.05)
            await self.delete_pod("cordon-probe")
            return not pod.spec.node_name

        await poll_until(is_refused)

    async def cordon(self, node_name: str) -> None:
        await self.client.patch(NODES, node_name, {"spec": {"unschedulable": True}}, Node, patch_type=MERGE_PATCH)


class SchedulerHarness(PodNamespace):
    """The namespace of a test, its nodes, and the programs that place its pods."""

    def __init__(
        self, client: Client, namespace: str, create_node: CreateNode, start_scheduler: StartScheduler
    ) -> None:
        super().__init__(client, namespace)
        self.start_scheduler = start_scheduler
        self._create_node = create_node

    async def create_ready_node(self, name: str, **fields: Any) -> None:
        """Create a node, see `create_node`, and wait until it is ready, without taints, and without earlier pods."""

        async def is_empty() -> bool:
            return not await self.client.list(PODS, Object, field_selector=f"spec.nodeName={name}")

        async def is_ready() -> bool:
            return is_usable(await self.client.get(NODES, name, Node))

        await poll_until(is_empty)
        await self._create_node(name, **fields)
        await poll_until(is_ready)

    async def create_zones(self, *zones: str, costs: dict[tuple[str, str], int] | None = None, **fields: Any) -> None:
        """Create a node ``n-ZONE`` in each zone, and costs between them, by default `DEFAULT_COST`."""
        for zone in zones:
            await self.create_ready_node(f"n-{zone}", zone=zone, region="r", **fields)
        await self.set_costs(costs or dict.fromkeys(permutations(zones, 2), DEFAULT_COST))

    def run_extender(self, config: SchedulerConfig | None = None) -> AbstractAsyncContextManager[str]:
        """Run the extender during the block; yields its URL."""
        return serve_extender(self.client, config)

    def run_gating_controller(self, config: SchedulerConfig | None = None) -> AbstractAsyncContextManager[None]:
        """Run the gating controller during the block."""
        return run_gating_controller(self.client, config)

    @asynccontextmanager
    async def run_scheduling(
        self, config: SchedulerConfig | None = None, *, with_extender: bool = True
    ) -> AsyncIterator[None]:
        """Run the gating controller and the extender during the block, and kube-scheduler until the end of the test."""
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(self.run_extender(config)) if with_extender else None
            await stack.enter_async_context(self.run_gating_controller(config))
            await self.start_scheduler(extender_url=url)
            yield


def make_deployment(
    name: str,
    workload: str,
    *,
    replicas: int = 1,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    requests: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A Deployment of a workload of the AppGroup a1; other keywords are fields of its pods' spec."""
    all_labels = {APPGROUP_LABEL: "a1", WORKLOAD_LABEL: workload, **(labels or {})}
    template = {"metadata": {"labels": all_labels, "annotations": annotations}, "spec": make_pod_spec(requests, **spec)}
    spec = {"replicas": replicas, "selector": {"matchLabels": all_labels}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


def make_pod_spec(requests: Mapping[str, str] | None, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"requests": requests or {}}}
    return {"terminationGracePeriodSeconds": 0, "containers": [container], **spec}
