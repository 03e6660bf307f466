"""Fixtures of integration tests: the session's control plane, namespaces, nodes, schedulers and kwok."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import yaml

from kubekit.client import Client
from kubekit.wire import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, NODES, SERVICE_ACCOUNTS, Node, Object
from lab.controlplane import KWOK_NODE_ANNOTATION, ControlPlane, object_exists
from lab.polling import poll_until
from lab.programs import Program

CRDS = Path(__file__).parents[2] / "manifests" / "crds"
WRITERS = ("manager-a", "manager-b", "manager-c", "manager-d")
"""Users whose writes are in the audit log, besides all requests of netaware's service accounts."""
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "userGroups": ["system:serviceaccounts:netaware-system"]},
        {"level": "Metadata", "users": list(WRITERS), "verbs": ["create", "update", "patch", "delete"]},
        {"level": "None"},
    ],
}

StartScheduler = Callable[..., Awaitable[Program]]
CreateNode = Callable[..., Awaitable[Node]]


@pytest.fixture(scope="session")
def audit_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The audit log of the session's API server."""
    return tmp_path_factory.mktemp("audit") / "audit.log"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def control_plane(tmp_path_factory: pytest.TempPathFactory, audit_log: Path) -> AsyncIterator[ControlPlane]:
    """etcd, kube-apiserver and kube-controller-manager of the session."""
    policy = audit_log.with_suffix(".yaml")
    policy.write_text(yaml.safe_dump(AUDIT))
    flags = (f"--audit-policy-file={policy}", f"--audit-log-path={audit_log}", "--audit-log-mode=blocking")
    state_dir = tmp_path_factory.mktemp("control-plane") / "state"
    async with ControlPlane.start("tests", state_dir=state_dir, api_server_flags=flags) as plane:
        yield plane


@pytest_asyncio.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[Client]:
    """A client with the administrator's rights."""
    async with Client(control_plane.client_config) as admin:
        yield admin


@pytest_asyncio.fixture
async def namespace(client: Client) -> AsyncIterator[str]:
    """A new namespace with a default service account, so that pods can be created."""
    async with _create_namespace(client) as name:
        yield name


@pytest_asyncio.fixture
async def netaware_namespace(client: Client) -> AsyncIterator[str]:
    """A new namespace for a manager, whose pods are not evicted and whose traffic is ignored."""
    async with _create_namespace(client) as name:
        yield name


@pytest_asyncio.fixture
async def crds(client: Client) -> list[str]:
    """Names of our CustomResourceDefinitions, which are applied and served."""
    return await install_crds(client)


@pytest_asyncio.fixture
async def start_scheduler(control_plane: ControlPlane) -> AsyncIterator[StartScheduler]:
    """``await start_scheduler(config, extender_url=...)`` runs kube-scheduler until the end of the test."""
    programs: list[Program] = []

    async def start(config: Mapping[str, Any] | None = None, *, extender_url: str | None = None) -> Program:
        name = f"kube-scheduler-{uuid.uuid4().hex[:6]}"
        programs.append(await control_plane.start_scheduler(config, name=name, extender_url=extender_url))
        return programs[-1]

    yield start
    for program in programs:
        await control_plane.programs.stop(program)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kwok(control_plane: ControlPlane) -> Program:
    """kwok, which simulates the kubelets of nodes of ``create_node``."""
    return await control_plane.start_kwok()


@pytest_asyncio.fixture
async def create_node(client: Client) -> AsyncIterator[CreateNode]:
    """``await create_node(name, **options)`` creates a node, see `make_node`; it becomes ready if ``kwok`` runs."""
    names: list[str] = []

    async def make(name: str, **options: Any) -> Node:
        names.append(name)
        return await client.create(NODES, make_node(name, **options), Node)

    yield make
    for name in names:
        await client.delete(NODES, name)


@asynccontextmanager
async def _create_namespace(client: Client) -> AsyncIterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    await client.create(NAMESPACES, {"metadata": {"name": name}}, Object)
    await poll_until(lambda: object_exists(client, SERVICE_ACCOUNTS, "default", name))
    yield name
    await client.delete(NAMESPACES, name)


async def install_crds(client: Client) -> list[str]:
    """Apply our CustomResourceDefinitions, and wait until they are served; returns their names."""
    bodies = read_crd_bodies()
    for name, body in bodies.items():
        await client.apply(CUSTOM_RESOURCE_DEFINITIONS, name, body, Object, field_manager="tests")
    await wait_until_crds_are_served(client)
    return list(bodies)


async def wait_until_crds_are_served(client: Client) -> None:
    for name in read_crd_bodies():
        await poll_until(partial(_is_established, client, name))


async def _is_established(client: Client, name: str) -> bool:
    definition: dict[str, Any] = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name, dict)
    conditions = (definition.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def read_crd_bodies() -> dict[str, Any]:
    """Our CustomResourceDefinitions, by name."""
    bodies = [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("[!k]*.yaml"))]
    return {str(body["metadata"]["name"]): body for body in bodies}


async def remove_crds(client: Client) -> None:
    """Delete our CustomResourceDefinitions with their objects."""
    names = read_crd_bodies().keys()
    for name in names:
        await client.delete(CUSTOM_RESOURCE_DEFINITIONS, name)

    async def are_gone() -> bool:
        return not names & {crd.metadata.name for crd in await client.list(CUSTOM_RESOURCE_DEFINITIONS, Object)}

    await poll_until(are_gone)


def make_node(
    name: str,
    *,
    zone: str = "",
    region: str = "",
    capacity: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    address: str = "",
) -> dict[str, Any]:
    """A node whose kubelet kwok simulates."""
    location = {"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": region}
    all_labels = {"kubernetes.io/hostname": name, **{k: v for k, v in location.items() if v}, **(labels or {})}
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", **(capacity or {})}
    status: dict[str, Any] = {"capacity": amounts, "allocatable": amounts}
    if address:
        status["addresses"] = [{"type": "InternalIP", "address": address}]
    metadata = {"name": name, "labels": all_labels, "annotations": dict([KWOK_NODE_ANNOTATION])}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}


def read_audit_events(log: Path) -> list[dict[str, Any]]:
    """The events of complete lines of a running API server's audit log; raises ValueError if a line is no JSON."""
    complete, _, _ = log.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in complete.splitlines()]


async def request_token(client: Client, namespace: str, account: str = "default", *audiences: str) -> str:
    """A token of a service account for these audiences, by default for the API server."""
    spec = {"audiences": audiences} if audiences else {}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    response = await client.request("POST", SERVICE_ACCOUNTS.path(namespace, account, "token"), body=body)
    return str(msgspec.json.decode(response)["status"]["token"])
