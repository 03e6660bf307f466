"""Runs a control plane for a benchmark, and creates and deletes many objects in it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from controller.cluster.crds import APPGROUPS
from kubekit.client import MERGE_PATCH, Client
from kubekit.wire import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, NODES, PODS, Node, Object
from lab.controlplane import ControlPlane
from lab.polling import poll_until
from netperf.contract import REGION_LABEL, ZONE_LABEL
from tests.integration.conftest import read_crd_bodies

MAX_CONCURRENT_REQUESTS = 12


@asynccontextmanager
async def bench_control_plane(name: str, **options: Any) -> AsyncIterator[tuple[ControlPlane, Client]]:
    """A control plane with our CustomResourceDefinitions and a namespace."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            ControlPlane.start(name, state_dir=Path(folder) / "state", **options) as plane,
            Client(plane.client_config) as client,
        ):
            for crd, body in read_crd_bodies().items():
                await client.apply(CUSTOM_RESOURCE_DEFINITIONS, crd, body, Object, field_manager=name)
            await client.create(NAMESPACES, {"metadata": {"name": name}}, Object)
            yield plane, client


async def create_ready_node(client: Client, name: str, zone: str, region: str, capacity: Mapping[str, str]) -> Node:
    """Create a node that is Ready without a kubelet."""
    labels = {ZONE_LABEL: zone, REGION_LABEL: region, "kubernetes.io/hostname": name}
    status = {"capacity": capacity, "allocatable": capacity, "conditions": [{"type": "Ready", "status": "True"}]}
    await client.create(NODES, {"metadata": {"name": name, "labels": labels}, "status": status}, Node)
    # Admission taints every new node, and no node controller runs here.
    return await client.patch(NODES, name, {"spec": {"taints": None}}, Node, patch_type=MERGE_PATCH)


async def gather_limited(requests: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run requests, at most `MAX_CONCURRENT_REQUESTS` at once; return their results in order."""
    semaphore = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    async def run(request: Coroutine[Any, Any, Any]) -> Any:
        async with semaphore:
            return await request

    return await asyncio.gather(*map(run, requests))


async def delete_pods_and_groups(client: Client, namespace: str) -> None:
    """Delete all pods and AppGroups of a namespace, and wait until no pod is left."""
    for resource in (PODS, APPGROUPS):
        path = resource.path(namespace)
        await client.request("DELETE", path, body={"gracePeriodSeconds": 0}, timeout_s=120)

    async def is_empty() -> bool:
        return not await client.list(PODS, Object, namespace=namespace)

    await poll_until(is_empty)
