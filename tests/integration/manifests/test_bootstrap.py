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
from tests.support.bodies import make_topology_body
from tests.support.tasks import running_tasks

NAMESPACE = "bootstrap"
CONFIG = BootstrapConfig(network_topology="nt-default", probe_secret=True)
SETTLING_S = 0.5
"""Within which the leader would create objects."""


@pytest_asyncio.fixture
async def definitions_and_namespace(kubectl: Kubectl, admin: Client, crds: list[str]) -> AsyncIterator[None]:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    await admin.apply(NAMESPACES, NAMESPACE, body, Object, field_manager="tests")
    yield
    await kubectl("delete", "--wait=false", "namespace", NAMESPACE)
    await remove_crds(admin)


@asynccontextmanager
async def run_bootstrap(admin: Client, config: BootstrapConfig) -> AsyncIterator[Reflector[NetworkTopology]]:
    """Run the leader's bootstrap during the block; yields the store of NetworkTopologies."""
    store: Reflector[NetworkTopology] = Reflector(admin, NETWORK_TOPOLOGIES, NetworkTopology)
    async with running_tasks(store.run()):
        await store.synced.wait()
        async with running_tasks(Bootstrap(admin, store, config, namespace=NAMESPACE).run()) as (bootstrap_task,):
            yield store
            assert not bootstrap_task.done()


async def read_passphrase(admin: Client) -> str:
    try:
        secret = await admin.get(SECRETS, "netaware-probe", ConfigMap, namespace=NAMESPACE)
    except ApiError as error:
        if error.is_not_found:
            return ""
        raise
    return base64.b64decode((secret.data or {})["passphrase"]).decode()


@pytest.mark.usefixtures("definitions_and_namespace")
async def test_the_leader_creates_missing_objects_if_configured_and_leaves_existing_ones(admin: Client) -> None:
    async with run_bootstrap(admin, BootstrapConfig()) as store:
        await asyncio.sleep(SETTLING_S)
        assert not store.items
        assert await read_passphrase(admin) == ""

    async with run_bootstrap(admin, CONFIG) as store:

        async def is_created() -> bool:
            passphrase_bytes = bytes.fromhex(await read_passphrase(admin))
            return list(store.items) == [f"{NAMESPACE}/nt-default"] and len(passphrase_bytes) == 32

        await poll_until(is_created)
        assert store.items[f"{NAMESPACE}/nt-default"].spec.configmap_name == "netperf-metrics"

    # Also a topology of another name in another namespace makes ours unnecessary.
    edited_secret = {"stringData": {"passphrase": "chosen by a person"}}
    await admin.patch(SECRETS, "netaware-probe", edited_secret, Object, patch_type=MERGE_PATCH, namespace=NAMESPACE)
    await admin.create(NETWORK_TOPOLOGIES, make_topology_body("foreign"), Object, namespace="default")
    await admin.delete(NETWORK_TOPOLOGIES, "nt-default", namespace=NAMESPACE)
    async with run_bootstrap(admin, CONFIG) as store:
        await asyncio.sleep(SETTLING_S)
        assert list(store.items) == ["default/foreign"]
        assert await read_passphrase(admin) == "chosen by a person"
