"""Serves the page in the test's process, over a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
import yaml
from prometheus_client import CollectorRegistry

from controller.cluster.cluster_cache import ClusterCache
from controller.page.access import PageAuthorizer
from controller.page.config import PageConfig
from controller.page.server import Page
from controller.page.snapshots import SnapshotReader
from controller.scheduler.config import SchedulerConfig
from kubekit.client import Client
from kubekit.http import Server
from kubekit.wire import SERVICE_ACCOUNTS, Object, Resource
from netperf.policy import CostPolicy
from tests.support.tasks import supervised_tasks

PAGE_MANIFEST = Path(__file__).parents[3] / "manifests" / "base" / "controller" / "page.yaml"
RBAC = {kind: Resource("rbac.authorization.k8s.io", "v1", f"{kind.lower()}s", kind) for kind in ("Role", "RoleBinding")}


@pytest_asyncio.fixture
async def page_url(client: Client, namespace: str, crds: list[str]) -> AsyncIterator[str]:
    """The URL of a page that needs a token."""
    cache = ClusterCache(client, namespace)
    snapshots = SnapshotReader(cache, client, namespace, policy=CostPolicy(), scheduler=SchedulerConfig())
    page = Page(PageConfig(), snapshots, PageAuthorizer(client, namespace))
    server = Server("127.0.0.1:0", registry=CollectorRegistry())
    page.add_routes(server.app)
    async with supervised_tasks(cache.reflector_tasks()), server.running() as address:
        await asyncio.wait_for(cache.wait_for_sync(), 20)
        yield f"http://{address}"


@pytest_asyncio.fixture
async def page_namespace(client: Client, namespace: str) -> str:
    """The test's namespace, with the page's service account and its shipped rights; the page itself has all rights."""
    for document in yaml.safe_load_all(PAGE_MANIFEST.read_text().replace("netaware-system", namespace)):
        if document["kind"].startswith("Cluster"):
            continue
        resource = RBAC.get(document["kind"], SERVICE_ACCOUNTS)
        await client.create(resource, document, Object, namespace=namespace)
    return namespace
