"""Runs the extender and the gating controller in the test's process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from controller.cluster.cluster_cache import ClusterCache
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.extender.program import ExtenderService
from controller.scheduler.gating.controller import GatingController
from kubekit.client import Client
from kubekit.events import EventRecorder
from lab.polling import poll_until
from netperf.contract import NETAWARE_NAMESPACE
from tests.support.tasks import supervised_tasks


@asynccontextmanager
async def serve_extender(
    client: Client, config: SchedulerConfig | None = None, *, namespace: str = NETAWARE_NAMESPACE
) -> AsyncIterator[str]:
    """Run the extender with synced stores; yields its URL."""
    config = config or SchedulerConfig()
    registry = CollectorRegistry()
    service = ExtenderService(client, config, listen="127.0.0.1:0", netaware_namespace=namespace, registry=registry)
    async with service.server.running() as address, supervised_tasks(service.store_tasks()):
        await poll_until(lambda: not service.describe_unlisted_stores())
        yield f"http://{address}"


@asynccontextmanager
async def run_gating_controller(
    client: Client, config: SchedulerConfig | None = None, *, namespace: str = NETAWARE_NAMESPACE
) -> AsyncIterator[None]:
    """Run the gating controller without leader election."""
    registry, cache = CollectorRegistry(), ClusterCache(client, namespace)
    recorder = EventRecorder(client, component="netaware-controller", instance="tests", registry=registry)
    controller = GatingController(client, cache, config or SchedulerConfig(), recorder, registry)

    async def run_after_sync() -> None:
        await cache.wait_for_sync()
        await controller.run()

    async with supervised_tasks(
        {**cache.reflector_tasks(), **controller.store_tasks(), "events": recorder.run(), "gating": run_after_sync()}
    ):
        yield
