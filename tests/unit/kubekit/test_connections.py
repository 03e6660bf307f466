"""Connections: few, each for its purpose, and dead ones are known; what the server has no room for is asked again."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from aiohttp import web

from kubekit.client import Client
from kubekit.errors import ApiError, SilentWatchError, UnreachableError
from kubekit.reflector import Reflector
from kubekit.wire import CONFIGMAPS, NODES, ConfigMap, Object
from kubekit.workqueue import WorkQueue
from tests.support.stores import wait_synced
from tests.unit.kubekit.simulated_api import SimulatedApi, connected


async def test_a_lease_waits_neither_for_watches_nor_for_lists_nor_for_writes() -> None:
    peers: set[object] = set()
    busy, enough = 0, asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal busy
        peers.add(request.transport)
        if request.path.endswith("/lease"):
            return web.json_response({"metadata": {"name": "lease"}})
        if request.query.get("watch"):
            stream = web.StreamResponse()
            await stream.prepare(request)
        busy += 1
        if busy >= 80 + 2 + 3:
            enough.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def watch(client: Client) -> None:
        async with client.watch(NODES, "1") as events:
            async for _ in events:
                pass

    async with connected(answer) as client:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(watch(client)) for _ in range(80)]
        tasks += [asyncio.create_task(client.request("GET", "/list", timeout_s=60)) for _ in range(20)]
        tasks += [asyncio.create_task(client.request("PATCH", "/write", timeout_s=60)) for _ in range(20)]
        async with asyncio.timeout(30):
            await enough.wait()
        assert await client.with_dedicated_connection().request("GET", "/lease", timeout_s=30)
        assert len(peers) == 80 + 6, "kinds watched and six"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_server_that_thousands_ask_at_once_may_take_as_long_for_a_streamed_list_as_for_a_list() -> None:
    """A thousand agents on a starved server gave up after 15 s and queued anew: after four minutes 81 had their stores."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return web.json_response({"type": "BOOKMARK", "object": {}})

    async with connected(answer) as patient, Client(patient.config, timeout_s=0.05) as client:
        async with client.watch(NODES, "0", initial=True) as events:
            assert [event.type async for event in events] == ["BOOKMARK"]
        with pytest.raises(UnreachableError):
            async with client.watch(NODES, "1"):
                pass


@pytest.mark.parametrize(("first", "other", "most"), [("GET", "PATCH", 2), ("PATCH", "GET", 4)])
async def test_what_reads_do_not_use_writes_may_but_for_one(first: str, other: str, most: int) -> None:
    seen: dict[str, int] = {"GET": 0, "PATCH": 0}
    enough = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        seen[request.method] += 1
        if sum(seen.values()) >= 5:
            enough.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with connected(answer) as client:
        tasks = []
        for method in (first, other):
            tasks += [asyncio.create_task(client.request(method, "/x", timeout_s=60)) for _ in range(20)]
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await enough.wait()
        assert seen == {first: most, other: 5 - most}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_kernel_watches_over_every_connection() -> None:
    found: list[tuple[int, ...]] = []

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({})

    from kubekit import transport

    def open_socket(address: object) -> socket.socket:
        opened = kept(address)  # type: ignore[arg-type]
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        found.append(tuple(opened.getsockopt(socket.IPPROTO_TCP, name) for name in names))
        found.append((opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),))
        return opened

    kept = transport._socket
    async with connected(answer) as client:
        client._pools._sessions[transport.ConnectionPool.READ].connector._socket_factory = open_socket  # type: ignore[union-attr]
        await client.request("GET", "/x")
    (idle_s, interval_s, count, unacknowledged_ms), (alive,) = found
    assert alive == 1
    assert idle_s + interval_s * count <= 45
    assert unacknowledged_ms <= 45_000 - idle_s * 1000


async def test_what_the_server_has_no_room_for_is_sent_again_when_it_asks_for_it() -> None:
    times: list[float] = []

    async def answer(request: web.Request) -> web.Response:
        times.append(asyncio.get_running_loop().time())
        if len(times) < 3:
            body = {"kind": "Status", "code": 429, "reason": "TooManyRequests"}
            return web.json_response(body, status=429, headers={"Retry-After": "1"})
        return web.json_response({"metadata": {"name": "n"}})

    async with connected(answer) as client:
        await client.patch(NODES, "n", {}, Object)
    assert len(times) == 3
    assert min(times[1] - times[0], times[2] - times[1]) >= 1.0


@pytest.mark.parametrize(("wait_s", "causes"), [(3600, []), (1, [{"reason": "DisruptionBudget"}])])
async def test_a_long_wait_or_a_disruption_budget_is_the_callers_business(
    wait_s: int, causes: list[dict[str, str]]
) -> None:
    asked = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        body = {"kind": "Status", "code": 429, "reason": "TooManyRequests", "details": {"causes": causes}}
        return web.json_response(body, status=429, headers={"Retry-After": str(wait_s)})

    async with connected(answer) as client:
        with pytest.raises(ApiError) as refused:
            await client.create(NODES, {}, Object)
    assert refused.value.retry_after_s == wait_s
    assert asked == 1


async def test_a_key_is_not_due_before_the_server_asked_for_it() -> None:
    queue, times = WorkQueue(), list[float]()

    async def reconcile(_: str) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            raise ApiError(429, "TooManyRequests", "busy", retry_after_s=1.0)

    work = asyncio.create_task(queue.work(reconcile, name="test", base_s=0.01))
    queue.add("a")
    async with asyncio.timeout(30):
        while len(times) < 2:
            await asyncio.sleep(0.01)
    work.cancel()
    assert times[1] - times[0] >= 0.99


async def test_a_silent_watch_ends() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        await asyncio.Event().wait()
        return stream

    async with connected(answer) as client, client.watch(NODES, "1", silence_s=0.1) as events:
        with pytest.raises(SilentWatchError, match="silent"):
            await anext(events)


async def test_a_mirror_says_how_old_it_is_and_why() -> None:
    api = SimulatedApi(CONFIGMAPS)
    async with api.running() as config, Client(config) as client:
        store = Reflector(client, CONFIGMAPS, ConfigMap, namespace="ns")
        task = asyncio.create_task(store.run())
        await wait_synced(store, timeout_s=30)
        assert store.staleness == ""
        store.contact_at -= 60
        assert store.staleness == "", "a quiet minute is nothing"
        store.failure = "503"
        assert store.staleness == "store of configmaps is 60 s old (503)"
        task.cancel()


@pytest.mark.parametrize("streams", [True, False])
async def test_lists_are_streamed_where_the_server_can_and_listed_where_not(streams: bool) -> None:
    api = SimulatedApi(CONFIGMAPS)
    api.streams_lists = streams
    api.put("a", data={"v": "1"})
    api.put("bad", data=7)
    async with api.running() as config, Client(config) as client:
        store = Reflector(client, CONFIGMAPS, ConfigMap, namespace="ns")
        task = asyncio.create_task(store.run())
        async with asyncio.timeout(30):
            while not (store.synced.is_set() and api.watching):
                await asyncio.sleep(0.01)
            api.put("b", data={"v": "2"})
            while "b" not in store.items:
                await asyncio.sleep(0.01)
        assert sorted(store.items) == ["a", "b"]
        assert list(store.malformed) == ["bad"]
        assert api.count("limit=") == (0 if streams else 1)
        api.drop("a", event=False)
        api.fail_watches.append(410)
        api.end_watches()
        async with asyncio.timeout(30):
            while "a" in store.items:
                await asyncio.sleep(0.01)
        task.cancel()


@pytest.mark.parametrize(
    ("selector", "cached"),
    [("metadata.name=n", True), ("spec.nodeName=n", True), ("spec.nodeName!=", False), ("", False)],
)
async def test_mirrors_of_few_objects_are_listed_from_the_servers_memory(selector: str, cached: bool) -> None:
    api = SimulatedApi(CONFIGMAPS)
    async with api.running() as config, Client(config) as client:
        store = Reflector(client, CONFIGMAPS, ConfigMap, namespace="ns", field_selector=selector)
        task = asyncio.create_task(store.run())
        await wait_synced(store, timeout_s=30)
        task.cancel()
    assert api.count("resourceVersion=0") == cached
