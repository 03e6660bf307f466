"""Fixtures of scheduler tests: kube-scheduler with the extender and the leader's gating controller in the test's process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

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
from controller.scheduler.gating.controller import GatingController
from kubekit.client import MERGE_PATCH, Client
from kubekit.wire import NODES, PODS, Node, Object
from lab.controlplane import ControlPlane
from lab.nodes import is_usable
from lab.polling import poll_until
from lab.programs import Program
from tests.integration.conftest import MakeNode, StartScheduler
from tests.support.bodies import make_appgroup_body, make_weight_body
from tests.support.scheduling import run_leader, serve_extender

POLICY = Path(__file__).parents[3] / "manifests" / "policies" / "appgroup-gate.yaml"
PROFILE = "network-aware-scheduler"
LONG_WAIT = GatesConfig(max_wait_s=1200, missing_workload_timeout_s=600)
"""Timeouts of gates that do not pass during a test."""

Serve = Callable[..., AbstractAsyncContextManager[str]]
Lead = Callable[..., AbstractAsyncContextManager[GatingController]]
Scheduling = Callable[..., AbstractAsyncContextManager[GatingController]]
MakeZones = Callable[..., Awaitable[None]]


@pytest.fixture
def ready_node(client: Client, make_node: MakeNode, kwok: Program) -> MakeNode:
    """``make_node`` that returns when the node is ready, without taints, and without pods of an earlier test."""

    async def make(name: str, **fields: Any) -> Node:
        async def is_empty() -> bool:
            return not await client.list(PODS, Object, field_selector=f"spec.nodeName={name}")

        async def find_usable() -> Node | None:
            node = await client.get(NODES, name, Node)
            return node if is_usable(node) else None

        await poll_until(is_empty)
        await make_node(name, **fields)
        node: Node = await poll_until(find_usable)
        return node

    return make


@pytest.fixture
def extender(client: Client) -> Serve:
    """``async with extender(config) as url`` serves the extender."""
    return partial(serve_extender, client)


@pytest.fixture
def lead(client: Client) -> Lead:
    """``async with lead(config)`` runs the gating controller, see `run_leader`."""
    return partial(run_leader, client)


@pytest.fixture
def scheduling(scheduler: StartScheduler, extender: Serve, lead: Lead) -> Scheduling:
    """``async with scheduling(config)`` runs the leader, the extender and kube-scheduler; ``with_extender=False`` only the others."""

    @asynccontextmanager
    async def run(
        config: SchedulerConfig | None = None, *, with_extender: bool = True, **leading: Any
    ) -> AsyncIterator[GatingController]:
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(extender(config)) if with_extender else None
            controller = await stack.enter_async_context(lead(config, **leading))
            await scheduler(extender_url=url)
            yield controller

    return run


@pytest.fixture
def zones(client: Client, namespace: str, ready_node: MakeNode) -> MakeZones:
    """``await zones("a", "b", **options)`` creates the nodes ``n-a`` and ``n-b`` in these zones, with a cost of 40 between zones by default."""

    async def make(*names: str, costs: dict[tuple[str, str], int] | None = None, **fields: Any) -> None:
        for name in names:
            await ready_node(f"n-{name}", zone=name, region="r", **fields)
        await set_costs(client, namespace, costs or {(a, b): 40 for a in names for b in names if a != b})

    return make


@pytest_asyncio.fixture
async def gate_policy(client: Client, namespace: str, control_plane: ControlPlane) -> AsyncIterator[None]:
    """The shipped admission policy, in force during the test."""
    await control_plane.run_kubectl("apply", "--server-side", "-f", POLICY)

    async def is_in_force() -> bool:
        pod = await create_pod(client, namespace, "policy-probe", group="none", workload="none")
        await client.delete(PODS, pod.metadata.name, namespace=namespace, grace_period_s=0)
        return pod.is_gated

    await poll_until(is_in_force)
    yield
    await control_plane.run_kubectl("delete", "-f", POLICY)


async def create_pod(
    client: Client,
    namespace: str,
    name: str,
    *,
    group: str = "",
    workload: str = "",
    scheduler: str = PROFILE,
    labels: dict[str, str] | None = None,
    requests: dict[str, str] | None = None,
    **spec: Any,
) -> Pod:
    """Create a pod; other keywords are fields of its spec, and ``owners`` its ownerReferences."""
    all_labels = {APPGROUP_LABEL: group, WORKLOAD_LABEL: workload} if group else {}
    owners = spec.pop("owners", None)
    body: dict[str, Any] = {
        "metadata": {"name": name, "labels": {**all_labels, **(labels or {})}},
        "spec": pod_spec(requests, schedulerName=scheduler, **spec),
    }
    if owners:
        body["metadata"]["ownerReferences"] = owners
    return await client.create(PODS, body, Pod, namespace=namespace)


async def create_group(
    client: Client,
    namespace: str,
    calls: Mapping[str, Mapping[str, int]],
    *,
    name: str = "a1",
    algorithm: str = "KahnSort",
    members: int | None = None,
    namespaces: dict[str, str] | None = None,
) -> AppGroup:
    """Create an AppGroup with maxNetworkCost by caller and callee; ``namespaces`` are those of workloads elsewhere, by selector."""
    body = make_appgroup_body(name, calls, members=members or len(calls), algorithm=algorithm, namespaces=namespaces)
    return await client.create(APPGROUPS, body, AppGroup, namespace=namespace)


async def set_costs(
    client: Client,
    namespace: str,
    zones: dict[tuple[str, str], int],
    regions: dict[tuple[str, str], int] | None = None,
) -> NetworkTopology:
    """Create or replace the NetworkTopology nt-default of a namespace with these costs."""
    spec = {"configmapName": "netperf-metrics", "weights": [make_weight_body(zones, regions)]}
    body = {**NETWORK_TOPOLOGIES.type_meta, "metadata": {"name": "nt-default"}, "spec": spec}
    return await client.apply(
        NETWORK_TOPOLOGIES, "nt-default", body, NetworkTopology, field_manager="tests", namespace=namespace
    )


def workload_body(
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
    template = {"metadata": {"labels": all_labels, "annotations": annotations}, "spec": pod_spec(requests, **spec)}
    spec = {"replicas": replicas, "selector": {"matchLabels": all_labels}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


def pod_spec(requests: Mapping[str, str] | None, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"requests": requests or {}}}
    return {"terminationGracePeriodSeconds": 0, "containers": [container], **spec}


async def read_pod(client: Client, namespace: str, name: str) -> Pod:
    return await client.get(PODS, name, Pod, namespace=namespace)


async def wait_until_bound(client: Client, namespace: str, *names: str) -> dict[str, str]:
    """Wait until these pods, by default all of the namespace, are bound; returns node by pod."""

    async def find_nodes() -> dict[str, str] | None:
        pods = {p.metadata.name: p.spec.node_name for p in await client.list(PODS, Pod, namespace=namespace)}
        nodes = {name: pods.get(name, "") for name in names} if names else pods
        return nodes if all(nodes.values()) else None

    nodes: dict[str, str] = await poll_until(find_nodes)
    return nodes


async def wait_until_unschedulable(client: Client, namespace: str, name: str) -> str:
    """Wait until a pod is unschedulable; returns the scheduler's message."""

    async def find_message() -> str:
        condition = (await read_pod(client, namespace, name)).condition("PodScheduled")
        is_unschedulable = condition is not None and (condition.status, condition.reason) == ("False", "Unschedulable")
        return condition.message if condition is not None and is_unschedulable else ""

    return str(await poll_until(find_message))


async def cordon(client: Client, node: str) -> None:
    path = f"/api/v1/nodes/{node}"
    await client.request("PATCH", path, body={"spec": {"unschedulable": True}}, content_type=MERGE_PATCH)


async def wait_until_scheduler_sees_cordon(client: Client, namespace: str, node: str) -> None:
    """Wait until kube-scheduler refuses a pod that only this cordoned node could take."""
    only: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": node}}

    async def is_refused() -> bool:
        await create_pod(client, namespace, "cordon-probe", scheduler="default-scheduler", **only)
        while not (pod := await read_pod(client, namespace, "cordon-probe")).spec.node_name:
            condition = pod.condition("PodScheduled")
            if condition is not None and condition.status == "False":
                break
            await asyncio.sleep(0.05)
        await client.delete(PODS, "cordon-probe", namespace=namespace, grace_period_s=0)
        return not pod.spec.node_name

    await poll_until(is_refused)


async def wait_for_event(client: Client, namespace: str, pod: str, reason: str) -> str:
    """Wait for an event about a pod; returns its note."""

    async def find_notes() -> list[str]:
        return [e["note"] for e in await list_events(client, namespace, pod) if e["reason"] == reason]

    return str((await poll_until(find_notes))[0])


async def list_events(client: Client, namespace: str, pod: str) -> list[dict[str, Any]]:
    """List events about a pod."""
    listed = msgspec.json.decode(await client.request("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"))
    return [e for e in listed["items"] if e["regarding"]["name"] == pod]
