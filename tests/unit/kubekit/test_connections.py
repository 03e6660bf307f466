"""The client has few connections, separated by purpose, notices dead peers, and sends throttled requests again."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import Any

import pytest
from aiohttp import web

from kubekit import transport
from kubekit.client import Client
from kubekit.errors import ApiError, UnreachableError
from kubekit.transport import MAX_SHARED_REQUESTS
from kubekit.wire import NODES, Object
from tests.support.tasks import running_tasks
from tests.unit.kubekit.simulated_api import run_server, run_server_with_client

WATCH_COUNT = 80


class HangingServer:
    """A server that never responds, and knows which requests it has.

    Attributes:
        is_full: set when it has as many requests as the client may have connections.
    """

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self.count_by_method: Counter[str] = Counter()
        self.connections: set[object] = set()
        self.is_full = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.connections.add(request.transport)
        if request.path.endswith("/lease"):
            return web.json_response({"metadata": {"name": "lease"}})
        if request.query.get("watch"):
            await web.StreamResponse().prepare(request)
        self.count_by_method[request.method] += 1
        if self.count_by_method.total() >= self._max_requests:
            self.is_full.set()
        await asyncio.Event().wait()
        raise AssertionError


async def watch_nodes(client: Client) -> None:
    async with client.watch(NODES, "1") as events:
        async for _ in events:
            pass


async def test_lease_requests_do_not_wait_for_watches_lists_or_writes() -> None:
    server = HangingServer(WATCH_COUNT + MAX_SHARED_REQUESTS)
    async with (
        run_server_with_client(server.handle) as client,
        running_tasks(
            *(watch_nodes(client) for _ in range(WATCH_COUNT)),
            *(client.request("GET", "/list", timeout_s=60) for _ in range(20)),
            *(client.request("PATCH", "/write", timeout_s=60) for _ in range(20)),
        ),
    ):
        async with asyncio.timeout(30):
            await server.is_full.wait()
        assert await client.with_dedicated_connection().request("GET", "/lease", timeout_s=30)
        assert len(server.connections) == WATCH_COUNT + MAX_SHARED_REQUESTS + 1


# Of five shared connections, reads may use two and writes four.
@pytest.mark.parametrize(("earlier", "later", "max_earlier"), [("GET", "PATCH", 2), ("PATCH", "GET", 4)])
async def test_writes_use_all_shared_connections_but_one(earlier: str, later: str, max_earlier: int) -> None:
    server = HangingServer(MAX_SHARED_REQUESTS)
    async with (
        run_server_with_client(server.handle) as client,
        running_tasks(*(client.request(earlier, "/x", timeout_s=60) for _ in range(20))),
    ):
        await asyncio.sleep(0)
        async with running_tasks(*(client.request(later, "/x", timeout_s=60) for _ in range(20))), asyncio.timeout(30):
            await server.is_full.wait()
            assert server.count_by_method == {earlier: max_earlier, later: MAX_SHARED_REQUESTS - max_earlier}


async def test_a_streamed_list_has_the_timeout_of_a_list() -> None:
    """With the timeout of a small request, a thousand agents would repeat their lists to a busy server for ever."""

    async def respond_after_300_ms(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return web.json_response({"type": "BOOKMARK", "object": {}})

    async with run_server(respond_after_300_ms) as config:
        async with Client(config, timeout_s=0.05) as client:
            async with client.watch(NODES, "0", send_initial_events=True) as events:
                assert [event.type async for event in events] == ["BOOKMARK"]
            with pytest.raises(UnreachableError):
                async with client.watch(NODES, "1"):
                    pass
        async with Client(config, list_timeout_s=0.05) as client:
            with pytest.raises(UnreachableError):
                async with client.watch(NODES, "0", send_initial_events=True):
                    pass


async def test_connections_to_a_dead_peer_end_within_45_s(monkeypatch: pytest.MonkeyPatch) -> None:
    opened_sockets: list[socket.socket] = []
    create_socket = transport._create_socket

    def create_and_remember(address: Any) -> socket.socket:
        opened_sockets.append(create_socket(address))
        return opened_sockets[-1]

    async def respond(_: web.Request) -> web.Response:
        (opened_socket,) = opened_sockets
        idle_s, interval_s, probe_count, unacknowledged_ms = (
            opened_socket.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        )
        assert opened_socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert idle_s + max(interval_s * probe_count, unacknowledged_ms / 1000) <= 45
        return web.json_response({})

    monkeypatch.setattr(transport, "_create_socket", create_and_remember)
    async with run_server_with_client(respond) as client:
        await client.request("GET", "/x")


async def test_a_throttled_request_is_sent_again_after_its_retry_after() -> None:
    sent_at_s: list[float] = []

    async def respond(_: web.Request) -> web.Response:
        sent_at_s.append(asyncio.get_running_loop().time())
        if len(sent_at_s) < 3:
            body = {"kind": "Status", "code": 429, "reason": "TooManyRequests"}
            return web.json_response(body, status=429, headers={"Retry-After": "1"})
        return web.json_response({"metadata": {"name": "n"}})

    async with run_server_with_client(respond) as client:
        await client.patch(NODES, "n", {}, Object)
    assert len(sent_at_s) == 3
    assert min(sent_at_s[1] - sent_at_s[0], sent_at_s[2] - sent_at_s[1]) >= 1.0


@pytest.mark.parametrize(
    ("retry_after_s", "causes", "reported_s"),
    [
        pytest.param(3600, [], 60, id="an hour, of which a minute is reported"),
        pytest.param(1, [{"reason": "DisruptionBudget"}], 1, id="eviction that a PodDisruptionBudget refuses"),
    ],
)
async def test_a_request_with_a_long_retry_after_and_a_refused_eviction_are_not_sent_again(
    retry_after_s: int, causes: list[dict[str, str]], reported_s: int
) -> None:
    requests: list[web.Request] = []

    async def refuse(request: web.Request) -> web.Response:
        requests.append(request)
        body = {"kind": "Status", "code": 429, "reason": "TooManyRequests", "details": {"causes": causes}}
        return web.json_response(body, status=429, headers={"Retry-After": str(retry_after_s)})

    async with run_server_with_client(refuse) as client:
        with pytest.raises(ApiError) as caught:
            await client.create(NODES, {}, Object)
    assert caught.value.retry_after_s == reported_s
    assert len(requests) == 1
