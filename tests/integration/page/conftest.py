"""The page's server over the real API server, without a manager: mirrors, page, HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest_asyncio
from prometheus_client import CollectorRegistry

from controller.cluster.caches import Caches
from controller.page.config import PageConfig
from controller.page.server import Page
from controller.scheduler.config import SchedulerConfig
from controller.topology.results import ResultsMirror
from kubekit.client import Client
from kubekit.http import Server
from netperf.policy import CostPolicy

ServePage = Callable[..., Awaitable[str]]


@asynccontextmanager
async def serving(client: Client, namespace: str, config: PageConfig) -> AsyncIterator[str]:
    """Run a page for the time of the block; its URL."""
    registry = CollectorRegistry()
    caches = Caches(client, namespace)
    results = ResultsMirror(client, namespace)
    policy, scheduler = CostPolicy(), SchedulerConfig()
    page = Page(
        caches,
        results,
        config,
        registry,
        namespace=namespace,
        policy=policy,
        scheduler=scheduler,
        client=client,
    )
    server = Server("127.0.0.1:0", registry=registry)
    page.add_routes(server.app)
    tasks = [asyncio.ensure_future(work) for work in (*caches.tasks().values(), results.run(), page.run())]
    try:
        async with server.running() as address:
            await asyncio.wait_for(caches.settle(), 20)
            yield f"http://{address}"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest_asyncio.fixture
async def serve_page(client: Client, namespace: str, crds: list[str]) -> AsyncIterator[ServePage]:
    """``await serve_page(config)`` serves the page for the rest of the test and returns its URL."""
    assert crds
    async with AsyncExitStack() as stack:

        async def serve(config: PageConfig | None = None) -> str:
            return await stack.enter_async_context(serving(client, namespace, config or PageConfig(auth="none")))

        yield serve
