"""Events are sent in the background, repeated ones as a series, and an unreachable server costs nothing but a count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry

from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.events import CAUSES, EventRecorder, Reference
from kubekit.http import Server
from tests.support.stores import until

POD = Reference("v1", "Pod", "web-1", "shop", "uid-1")


class SimulatedApiServer:
    """Keeps what it is sent; refuses on demand."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.patched: list[dict[str, Any]] = []
        self.refuse = self.expired = False
        self.server = Server("127.0.0.1:0", registry=CollectorRegistry())
        base = "/apis/events.k8s.io/v1/namespaces/shop/events"
        self.server.app.router.add_post(base, self._create)
        self.server.app.router.add_patch(base + "/{name}", self._patch)

    async def _create(self, request: web.Request) -> web.Response:
        if self.refuse:
            return web.json_response({"kind": "Status", "code": 403, "reason": "Forbidden"}, status=403)
        self.created.append(await request.json())
        return web.json_response(self.created[-1], status=201)

    async def _patch(self, request: web.Request) -> web.Response:
        if self.expired:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        self.patched.append(await request.json())
        return web.json_response({"metadata": {"name": request.match_info["name"]}})


@asynccontextmanager
async def recording(api: SimulatedApiServer) -> AsyncIterator[tuple[EventRecorder, list[float], CollectorRegistry]]:
    now, registry = [1000.0], CollectorRegistry()
    async with api.server.running() as address, Client(ClusterConfig(f"http://{address}")) as client:
        recorder = EventRecorder(client, component="netaware", instance="n1", registry=registry, clock=lambda: now[0])
        task = asyncio.create_task(recorder.run())
        yield recorder, now, registry
        task.cancel()


async def test_an_event_and_its_repetition() -> None:
    api = SimulatedApiServer()
    async with recording(api) as (recorder, now, _):
        recorder.warning(POD, "LimitNotEnforced", "no TBF on veth1")
        await until(lambda: api.created)
        recorder.warning(POD, "LimitNotEnforced", "no TBF on veth1")
        now[0] += 61
        recorder.warning(POD, "LimitNotEnforced", "no TBF on veth1")
        await until(lambda: api.patched)
    (event,) = api.created
    about = {"apiVersion": "v1", "kind": "Pod", "name": "web-1", "namespace": "shop", "uid": "uid-1"}
    assert event["regarding"] == about
    assert (event["type"], event["reason"], event["note"]) == ("Warning", "LimitNotEnforced", "no TBF on veth1")
    assert [p["series"]["count"] for p in api.patched] == [3]


async def test_an_event_about_an_object_with_a_long_name_has_a_name_that_the_server_takes() -> None:
    api = SimulatedApiServer()
    async with recording(api) as (recorder, _, _):
        recorder.normal(Reference("v1", "Pod", "a" * 199 + "." + "b" * 50, "shop", "uid-1"), "Placed", "by the plan")
        await until(lambda: api.created)
    assert ".." not in api.created[0]["metadata"]["name"]


async def test_an_event_that_the_server_has_expired_is_created_anew_at_once() -> None:
    api = SimulatedApiServer()
    async with recording(api) as (recorder, now, _):
        api.expired = True
        for count in (1, 2, 3):
            recorder.warning(POD, "LimitNotEnforced", "no TBF on veth1")
            await until(lambda count=count: len(api.created) == count)
            now[0] += 7200


async def test_losses_are_counted_from_zero_and_the_next_event_is_sent() -> None:
    api = SimulatedApiServer()
    async with recording(api) as (recorder, _, registry):

        def lost(cause: str) -> float | None:
            return registry.get_sample_value("netaware_events_lost_total", {"cause": cause})

        assert [lost(cause) for cause in CAUSES] == [0.0] * len(CAUSES), "a rate sees the first"
        api.refuse = True
        recorder.normal(POD, "A", "first")
        await until(lambda: lost("refused") == 1)
        api.refuse = False
        recorder.normal(POD, "B", "second")
        await until(lambda: api.created)
    assert api.created[0]["reason"] == "B"


async def test_a_full_queue_drops_the_oldest() -> None:
    registry = CollectorRegistry()
    async with Client(ClusterConfig("http://127.0.0.1:9")) as client:
        recorder = EventRecorder(client, component="netaware", instance="n1", registry=registry, max_pending=2)
        for i in range(5):
            recorder.normal(POD, "R", f"note {i}")
    assert registry.get_sample_value("netaware_events_lost_total", {"cause": "queue-full"}) == 3
