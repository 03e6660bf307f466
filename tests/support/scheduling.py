"""Runs the extender, and the gating controller as the leader runs it, in the test's process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from controller.cluster.cluster_cache import ClusterCache
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.extender.program import ExtenderService
from controller.scheduler.gating.controller import GatingController
from kubekit.client import Client
from kubekit.events import EventRecorder
from kubekit.runtime import supervise
from lab.polling import poll_until
from netperf.contract import NETAWARE_NAMESPACE


@asynccontextmanager
async def serve_extender(
    client: Client, config: SchedulerConfig | None = None, *, namespace: str = NETAWARE_NAMESPACE
) -> AsyncIterator[str]:
    """Run the extender with synced stores; yields its URL."""
    config = config or SchedulerConfig()
    registry = CollectorRegistry()
    service = ExtenderService(client, config, listen="127.0.0.1:0", netaware_namespace=namespace, registry=registry)
    async with service.server.running() as address, running(service.store_tasks()):
        await poll_until(lambda: not service.describe_unlisted_stores())
        yield f"http://{address}"


@asynccontextmanager
async def run_leader(
    client: Client, config: SchedulerConfig | None = None, *, namespace: str = NETAWARE_NAMESPACE
) -> AsyncIterator[None]:
    """Run the gating controller; it leads at once."""
    registry, cache = CollectorRegistry(), ClusterCache(client, namespace)
    recorder = EventRecorder(client, component="netaware-controller", instance="tests", registry=registry)
    controller = GatingController(client, cache, config or SchedulerConfig(), recorder, registry)

    async def lead() -> None:
        await cache.wait_for_sync()
        await controller.run()

    async with running(
        {**cache.reflector_tasks(), **controller.store_tasks(), "events": recorder.run(), "lead": lead()}
    ):
        yield


@asynccontextmanager
async def running(tasks: dict[str, Awaitable[None]]) -> AsyncIterator[None]:
    """Run endless tasks in the background; if one fails, the error is raised when the block ends."""
    task = asyncio.create_task(supervise(tasks))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure
