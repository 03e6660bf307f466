"""What the leader creates on a fresh installation, and what it leaves alone, on the real API server."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from controller.bootstrap import Bootstrap, BootstrapConfig
from controller.cluster.resources import NETWORK_TOPOLOGIES, NetworkTopology
from kubekit.client import Client
from kubekit.errors import ApiError, ConfigError
from kubekit.reflector import Reflector
from kubekit.wire import NAMESPACES, SECRETS, ConfigMap, Object
from tests.integration.conftest import eventually
from tests.integration.manifests.kubectl import MANIFESTS, Kubectl, established

SPACE = "bootstrap"


@pytest_asyncio.fixture
async def space(kubectl: Kubectl, admin: Client) -> AsyncIterator[str]:
    """A namespace, and our definitions."""
    await kubectl("apply", "--server-side", "-k", str(MANIFESTS / "crds"))
    await established(kubectl)
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
    await admin.apply(NAMESPACES, SPACE, body, Object, field_manager="tests")
    yield SPACE
    for topology in await admin.list(NETWORK_TOPOLOGIES, NetworkTopology):
        await admin.delete(NETWORK_TOPOLOGIES, topology.metadata.name, namespace=topology.metadata.namespace)
    await admin.delete(SECRETS, "netaware-probe", namespace=SPACE)
    await kubectl("delete", "--ignore-not-found", "-k", str(MANIFESTS / "crds"))


@asynccontextmanager
async def leading(admin: Client, config: BootstrapConfig) -> AsyncIterator[Reflector[NetworkTopology]]:
    """Bootstrap as it runs on the leader."""
    store: Reflector[NetworkTopology] = Reflector(admin, NETWORK_TOPOLOGIES, NetworkTopology)
    following = asyncio.create_task(store.run())
    await store.synced.wait()
    bootstrap = Bootstrap(
        admin,
        store,
        config,
        namespace=SPACE,
        results_name="netperf-metrics",
        make_passphrase=lambda: "0123456789abcdef",
    )
    work = asyncio.create_task(bootstrap.run())
    try:
        yield store
        assert not work.done()
    finally:
        for task in (work, following):
            task.cancel()
        await asyncio.gather(work, following, return_exceptions=True)


async def passphrase(admin: Client) -> str:
    try:
        found = await admin.get(SECRETS, "netaware-probe", ConfigMap, namespace=SPACE)
    except ApiError as error:
        if error.not_found:
            return ""
        raise
    return base64.b64decode((found.data or {})["passphrase"]).decode()


async def test_missing_topology_and_passphrase_are_created_where_that_is_asked_for(admin: Client, space: str) -> None:
    async with leading(admin, BootstrapConfig()) as store:
        await asyncio.sleep(0.5)
        assert not store.items
        assert await passphrase(admin) == ""
    config = BootstrapConfig(network_topology="nt-default", probe_secret=True)
    async with leading(admin, config) as store:

        async def created() -> bool:
            return list(store.items) == [f"{space}/nt-default"] and await passphrase(admin) == "0123456789abcdef"

        await eventually(created)
        assert store.items[f"{space}/nt-default"].spec.configmap_name == "netperf-metrics"


async def test_what_exists_is_left_alone(admin: Client, space: str) -> None:
    theirs = {
        "apiVersion": NETWORK_TOPOLOGIES.api_version,
        "kind": "NetworkTopology",
        "metadata": {"name": "theirs"},
        "spec": {"configmapName": "somewhere"},
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "netaware-probe"},
        "stringData": {"passphrase": "chosen by a person"},
    }
    await admin.create(NETWORK_TOPOLOGIES, theirs, Object, namespace="default")
    await admin.create(SECRETS, secret, Object, namespace=space)
    config = BootstrapConfig(network_topology="nt-default", probe_secret=True)
    async with leading(admin, config) as store:
        await asyncio.sleep(0.5)
        assert list(store.items) == ["default/theirs"]
        assert await passphrase(admin) == "chosen by a person"


def test_name_that_no_object_can_have_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap.networkTopology"):
        BootstrapConfig(network_topology="x" * 254).validate("bootstrap")
