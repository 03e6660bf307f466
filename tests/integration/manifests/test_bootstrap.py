"""The leader creates missing objects of a new installation, and keeps existing ones."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from controller.bootstrap import Bootstrap, BootstrapConfig
from controller.cluster.crds import NETWORK_TOPOLOGIES, NetworkTopology
from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import ApiError
from kubekit.reflector import Reflector
from kubekit.wire import NAMESPACES, SECRETS, ConfigMap, Object
from lab.polling import poll_until
from tests.integration.conftest import remove_crds
from tests.integration.manifests.kubectl import Kubectl

NAMESPACE = "bootstrap"


@pytest_asyncio.fixture
async def definitions_and_namespace(kubectl: Kubectl, admin: Client, crds: list[str]) -> AsyncIterator[None]:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    await admin.apply(NAMESPACES, NAMESPACE, body, Object, field_manager="tests")
    yield
    await kubectl("delete", "--wait=false", "namespace", NAMESPACE)
    await remove_crds(admin)


@asynccontextmanager
async def running_bootstrap(admin: Client, config: BootstrapConfig) -> AsyncIterator[Reflector[NetworkTopology]]:
    """Run the leader's bootstrap."""
    store: Reflector[NetworkTopology] = Reflector(admin, NETWORK_TOPOLOGIES, NetworkTopology)
    reflector_task = asyncio.create_task(store.run())
    await store.synced.wait()
    bootstrap_task = asyncio.create_task(Bootstrap(admin, store, config, namespace=NAMESPACE).run())
    try:
        yield store
        assert not bootstrap_task.done()
    finally:
        for task in (bootstrap_task, reflector_task):
            task.cancel()
        await asyncio.gather(bootstrap_task, reflector_task, return_exceptions=True)


async def read_passphrase(admin: Client) -> str:
    try:
        secret = await admin.get(SECRETS, "netaware-probe", ConfigMap, namespace=NAMESPACE)
    except ApiError as error:
        if error.is_not_found:
            return ""
        raise
    return base64.b64decode((secret.data or {})["passphrase"]).decode()


@pytest.mark.usefixtures("definitions_and_namespace")
async def test_leader_creates_missing_objects_if_configured(admin: Client) -> None:
    async with running_bootstrap(admin, BootstrapConfig()) as store:
        await asyncio.sleep(0.5)
        assert not store.items
        assert await read_passphrase(admin) == ""
    config = BootstrapConfig(network_topology="nt-default", probe_secret=True)
    async with running_bootstrap(admin, config) as store:

        async def is_created() -> bool:
            passphrase_bytes = bytes.fromhex(await read_passphrase(admin))
            return list(store.items) == [f"{NAMESPACE}/nt-default"] and len(passphrase_bytes) == 32

        await poll_until(is_created)
        assert store.items[f"{NAMESPACE}/nt-default"].spec.configmap_name == "netperf-metrics"
    # What exists is left alone, also a topology of another name in another namespace.
    edited_secret = {"stringData": {"passphrase": "chosen by a person"}}
    await admin.patch(SECRETS, "netaware-probe", edited_secret, Object, patch_type=MERGE_PATCH, namespace=NAMESPACE)
    head = {"apiVersion": NETWORK_TOPOLOGIES.api_version, "kind": "NetworkTopology", "metadata": {"name": "theirs"}}
    theirs = {**head, "spec": {"configmapName": "somewhere"}}
    await admin.create(NETWORK_TOPOLOGIES, theirs, Object, namespace="default")
    await admin.delete(NETWORK_TOPOLOGIES, "nt-default", namespace=NAMESPACE)
    async with running_bootstrap(admin, config) as store:
        await asyncio.sleep(0.5)
        assert list(store.items) == ["default/theirs"]
        assert await read_passphrase(admin) == "chosen by a person"
