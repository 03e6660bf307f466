"""The control plane that all other integration tests stand on behaves like a cluster's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kubekit.client import Client
from kubekit.config import load_cluster
from kubekit.errors import ApiError
from kubekit.wire import NODES, PODS, SERVICE_ACCOUNTS, Node, Object, Pod
from lab.controlplane import ControlPlane, credentials_of
from lab.programs import Program
from netperf.contract import ZONE_LABEL
from tests.scale.objects import node_body, running_pod, zone_name
from tests.support.etcd import put_all


async def until_running(client: Client, namespace: str, name: str) -> Pod:
    async with asyncio.timeout(20):
        while True:
            pod = await client.get(PODS, name, Pod, namespace=namespace)
            if pod.status.phase == "Running":
                return pod
            await asyncio.sleep(0.05)


def is_ready(pod: Pod) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ())


def pod(name: str, scheduler_name: str) -> dict[str, object]:
    spec = {"schedulerName": scheduler_name, "containers": [{"name": "main", "image": "none"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize("profile", ["default-scheduler", "network-aware-scheduler"])
async def test_both_profiles_place_pods_and_kwok_runs_them(
    client: Client,
    namespace: str,
    kwok: Program,
    make_node: Callable[..., Awaitable[Node]],
    scheduler: Callable[..., Awaitable[Program]],
    profile: str,
) -> None:
    await make_node("placed-here", zone="z1", region="r1", capacity={"cpu": "2"}, address="198.51.100.7")
    await scheduler()
    await client.create(PODS, pod("p", profile), Pod, namespace=namespace)
    placed = await until_running(client, namespace, "p")
    assert placed.spec.node_name == "placed-here"
    assert placed.status.host_ip == "198.51.100.7"
    node = await client.get(NODES, "placed-here", Node)
    assert node.ready
    assert not [t for t in node.spec.taints or [] if t.key == "node.kubernetes.io/not-ready"]
    assert (node.status.capacity or {})["cpu"] == "2"


async def test_a_pod_that_the_node_controller_marked_not_ready_is_ready_again(
    client: Client, namespace: str, kwok: Program, make_node: Callable[..., Awaitable[Node]]
) -> None:
    await make_node("was-away", zone="z1")
    spec = {"nodeName": "was-away", "containers": [{"name": "main", "image": "none"}]}
    await client.create(PODS, {"metadata": {"name": "p"}, "spec": spec}, Pod, namespace=namespace)
    await until_running(client, namespace, "p")
    unready = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}}
    marked = await client.patch(PODS, "p", unready, Pod, namespace=namespace, subresource="status")
    assert not is_ready(marked)
    async with asyncio.timeout(20):
        while not is_ready(await client.get(PODS, "p", Pod, namespace=namespace)):
            await asyncio.sleep(0.1)


async def test_what_is_put_into_etcd_is_read_watched_and_played_like_what_was_created(
    control_plane: ControlPlane, client: Client, namespace: str, kwok: Program
) -> None:
    version = (await anext(client.pages(NODES))).metadata.resource_version
    node = node_body("restored", zone=3, number=1)
    standing = running_pod(namespace, "stands", "restored", {"app": "a"}, 1)
    assert await put_all(control_plane, [("minions/restored", node), (f"pods/{namespace}/stands", standing)]) == 2
    async with asyncio.timeout(20), client.watch(NODES, version, field_selector="metadata.name=restored") as events:
        event = await anext(events)
    assert event.type == "ADDED"
    found = await client.get(NODES, "restored", Node)
    assert found.ready
    assert found.metadata.label(ZONE_LABEL) == zone_name(3)
    assert found.metadata.uid
    # Defaults are filled in as they are for what was created, and it can be changed and deleted.
    assert (await client.get(PODS, "stands", Pod, namespace=namespace)).spec.scheduler_name == "default-scheduler"
    assert is_ready(await client.patch(PODS, "stands", {"metadata": {"labels": {"b": "c"}}}, Pod, namespace=namespace))
    await client.delete(PODS, "stands", namespace=namespace)
    async with asyncio.timeout(20):
        while await client.list(PODS, Pod, namespace=namespace):
            await asyncio.sleep(0.1)
    await client.delete(NODES, "restored")


async def test_a_service_accounts_token_is_its_own_identity_under_rbac(
    control_plane: ControlPlane, client: Client, namespace: str
) -> None:
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "stranger"}}
    await client.create(SERVICE_ACCOUNTS, body, Object, namespace=namespace)
    kubeconfig = await control_plane.write_token_kubeconfig(namespace, "stranger")
    async with Client(load_cluster(credentials_of(kubeconfig))) as stranger:
        with pytest.raises(ApiError, match=rf"system:serviceaccount:{namespace}:stranger") as refused:
            await stranger.list(NODES, Node)
    assert refused.value.forbidden
