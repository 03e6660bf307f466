"""What confuses the page ends neither it nor the manager, and browsers are not left with what no longer holds."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from controller.cluster.caches import Caches
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.page import server, sources
from controller.page.config import PageConfig
from controller.page.server import Page
from controller.scheduler.config import SchedulerConfig
from controller.views import overview
from controller.views.model import Overview
from kubekit.client import Client
from kubekit.errors import UnreachableError
from netperf.policy import CostPolicy


class Deaf:
    """In the place of a client: there is no API server."""

    async def get(self, *_: object, **__: object) -> None:
        raise UnreachableError("deaf")

    list = get


async def test_a_page_that_cannot_be_made_ends_nothing_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    build, broken = overview.build, asyncio.Event()

    def confused(snapshot: ClusterSnapshot) -> Overview:
        if broken.is_set():
            raise IndexError
        return build(snapshot)

    monkeypatch.setattr(server, "build", confused)
    monkeypatch.setattr(server, "REFRESH_S", 0.0)
    monkeypatch.setattr(server, "LEAST_REST", 0.0)
    monkeypatch.setattr(sources, "FIRST_READING_TIMEOUT_S", 0.01)
    client = cast("Client", Deaf())
    page = Page(
        Caches(client, "netaware"),
        PageConfig(auth="none"),
        namespace="netaware",
        policy=CostPolicy(),
        scheduler=SchedulerConfig(),
        client=client,
    )
    app = web.Application()
    page.add_routes(app)
    running = asyncio.ensure_future(page.run())
    try:
        async with TestClient(TestServer(app)) as browser:
            policy = "default-src 'none'; frame-ancestors 'none'"
            broken.set()
            assert (await browser.get("/api/v1/overview")).status == 503
            assert not running.done()
            broken.clear()
            answer = await browser.get("/api/v1/overview")
            assert (answer.status, answer.headers["Content-Security-Policy"]) == (200, policy)
            broken.set()
            again = await browser.get("/api/v1/overview", headers={"If-None-Match": answer.headers["ETag"]})
            assert (again.status, again.headers["Content-Security-Policy"]) == (503, policy)
            assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
