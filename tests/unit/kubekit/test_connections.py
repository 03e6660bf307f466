"""The client has few connections, separated by purpose; dead peers are detected, and throttled requests are sent again."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from aiohttp import web

from kubekit import transport
from kubekit.client import Client
from kubekit.errors import ApiError, UnreachableError
from kubekit.transport import MAX_SHARED_REQUESTS
from kubekit.wire import NODES, Object
from tests.unit.kubekit.simulated_api import connected

WATCH_COUNT = 80


async def test_lease_requests_do_not_wait_for_watches_lists_or_writes() -> None:
    connections: set[object] = set()
    waiting_count, are_pools_full = 0, asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal waiting_count
        connections.add(request.transport)
        if request.path.endswith("/lease"):
            return web.json_response({"metadata": {"name": "lease"}})
        if request.query.get("watch"):
            stream = web.StreamResponse()
            await stream.prepare(request)
        waiting_count += 1
        if waiting_count >= WATCH_COUNT + MAX_SHARED_REQUESTS:
            are_pools_full.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def watch(client: Client) -> None:
        async with client.watch(NODES, "1") as events:
            async for _ in events:
                pass

    async with connected(answer) as client:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(watch(client)) for _ in range(WATCH_COUNT)]
        tasks += [asyncio.create_task(client.request("GET", "/list", timeout_s=60)) for _ in range(20)]
        tasks += [asyncio.create_task(client.request("PATCH", "/write", timeout_s=60)) for _ in range(20)]
        async with asyncio.timeout(30):
            await are_pools_full.wait()
        assert await client.with_dedicated_connection().request("GET", "/lease", timeout_s=30)
        assert len(connections) == WATCH_COUNT + MAX_SHARED_REQUESTS + 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_streamed_list_has_the_timeout_of_a_list() -> None:
    """With the timeout of a small request, a thousand agents would repeat their lists to a busy server for ever."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return web.json_response({"type": "BOOKMARK", "object": {}})

    async with connected(answer) as patient, Client(patient.config, timeout_s=0.05) as client:
        async with client.watch(NODES, "0", send_initial_events=True) as events:
            assert [event.type async for event in events] == ["BOOKMARK"]
        impatient = Client(patient.config, list_timeout_s=0.05)
        for watch in (client.watch(NODES, "1"), impatient.watch(NODES, "0", send_initial_events=True)):
            with pytest.raises(UnreachableError):
                async with impatient, watch:
                    pass


@pytest.mark.parametrize(("first_method", "other_method", "max_first"), [("GET", "PATCH", 2), ("PATCH", "GET", 4)])
async def test_writes_use_all_shared_connections_but_one(first_method: str, other_method: str, max_first: int) -> None:
    count_by_method: dict[str, int] = {"GET": 0, "PATCH": 0}
    are_pools_full = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        count_by_method[request.method] += 1
        if sum(count_by_method.values()) >= MAX_SHARED_REQUESTS:
            are_pools_full.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with connected(answer) as client:
        tasks = []
        for method in (first_method, other_method):
            tasks += [asyncio.create_task(client.request(method, "/x", timeout_s=60)) for _ in range(20)]
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await are_pools_full.wait()
        assert count_by_method == {first_method: max_first, other_method: MAX_SHARED_REQUESTS - max_first}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_connections_to_a_dead_peer_end_within_45_s(monkeypatch: pytest.MonkeyPatch) -> None:
    opened_sockets: list[socket.socket] = []
    open_socket = transport._create_socket

    def open_and_remember(address: Any) -> socket.socket:
        opened_sockets.append(open_socket(address))
        return opened_sockets[-1]

    monkeypatch.setattr(transport, "_create_socket", open_and_remember)

    async def answer(request: web.Request) -> web.Response:
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        idle_s, interval_s, count, unacknowledged_ms = (
            opened_sockets[0].getsockopt(socket.IPPROTO_TCP, n) for n in names
        )
        assert opened_sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert idle_s + max(interval_s * count, unacknowledged_ms / 1000) <= 45
        return web.json_response({})

    async with connected(answer) as client:
        await client.request("GET", "/x")


async def test_a_throttled_request_is_sent_again_after_its_retry_after() -> None:
    sent_at_s: list[float] = []

    async def answer(request: web.Request) -> web.Response:
        sent_at_s.append(asyncio.get_running_loop().time())
        if len(sent_at_s) < 3:
            body = {"kind": "Status", "code": 429, "reason": "TooManyRequests"}
            return web.json_response(body, status=429, headers={"Retry-After": "1"})
        return web.json_response({"metadata": {"name": "n"}})

    async with connected(answer) as client:
        await client.patch(NODES, "n", {}, Object)
    assert len(sent_at_s) == 3
    assert min(sent_at_s[1] - sent_at_s[0], sent_at_s[2] - sent_at_s[1]) >= 1.0


@pytest.mark.parametrize(
    ("wait_s", "causes", "retry_after_s"), [(3600, [], 60), (1, [{"reason": "DisruptionBudget"}], 1)]
)
async def test_a_long_retry_after_is_limited_and_not_retried_nor_is_a_refused_eviction(
    wait_s: int, causes: list[dict[str, str]], retry_after_s: int
) -> None:
    requests = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal requests
        requests += 1
        body = {"kind": "Status", "code": 429, "reason": "TooManyRequests", "details": {"causes": causes}}
        return web.json_response(body, status=429, headers={"Retry-After": str(wait_s)})

    async with connected(answer) as client:
        with pytest.raises(ApiError) as refused:
            await client.create(NODES, {}, Object)
    assert refused.value.retry_after_s == retry_after_s
    assert requests == 1
