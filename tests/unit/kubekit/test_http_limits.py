"""An HTTP server limits its connections and the time of requests, and still responds to the kubelet's probes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from kubekit import http_limits
from kubekit.http import Server
from lab.certificates import CertificateAuthority
from lab.polling import poll_until

MAX_CONNECTIONS, MAX_PER_PEER = 20, 10
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "pki", "tests")


@pytest.fixture
def server_tls(authority: CertificateAuthority) -> ssl.SSLContext:
    pair = authority.issue("server", "server", hosts=("127.0.0.1",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def make_server(max_per_peer: int = MAX_PER_PEER, ssl_context: ssl.SSLContext | None = None) -> Server:
    server = Server("127.0.0.1:0", registry=CollectorRegistry(), ssl_context=ssl_context)
    server.connection_limiter = http_limits.ConnectionLimiter(MAX_CONNECTIONS, max_per_peer)
    return server


@asynccontextmanager
async def open_connections(
    address: str, request: bytes = b"", *, count: int, peer: str = "127.0.0.1"
) -> AsyncIterator[list[Connection]]:
    """Connections of a peer that have sent a request, or a part of one."""
    host, _, port = address.rpartition(":")
    connections: list[Connection] = []
    try:
        for _ in range(count):
            connections.append(await asyncio.open_connection(host, int(port), local_addr=(peer, 0)))
            connections[-1][1].write(request)
        yield connections
    finally:
        for _, writer in connections:
            writer.close()


@asynccontextmanager
async def open_idle_connections(address: str, *, count: int, peer: str) -> AsyncIterator[None]:
    """Connections of a peer that have received a response."""
    async with open_connections(address, encode_get("/healthz"), count=count, peer=peer) as connections:
        for reader, _ in connections:
            await reader.readuntil(b"ok\n")
        yield


def encode_get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def get_status(address: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/healthz") as response:
        return response.status


async def test_half_open_connections_are_limited_and_block_no_request() -> None:
    server = make_server()
    async with server.running() as address, aiohttp.ClientSession() as session:
        async with session.get(f"http://{address}/healthz") as response:
            assert response.status == 200
        half_request = encode_get("/metrics").removesuffix(b"\r\n")
        async with open_connections(address, half_request, count=50):
            assert await get_status(address) == 200
            assert len(server.connection_limiter) <= MAX_PER_PEER
            async with session.get(f"http://{address}/healthz") as response:
                assert response.status == 200
        assert server.connection_limiter.closed_count >= 50 - MAX_PER_PEER


async def test_two_peers_with_all_connections_waiting_for_a_response_block_no_probe() -> None:
    server = make_server()
    requests = asyncio.Semaphore(0)

    async def never_respond(_: web.Request) -> web.Response:
        requests.release()
        await asyncio.Event().wait()
        return web.Response()

    server.app.router.add_get("/slow", never_respond)
    async with (
        server.running() as address,
        open_connections(address, encode_get("/slow"), count=MAX_PER_PEER, peer="127.0.0.2"),
        open_connections(address, encode_get("/slow"), count=MAX_PER_PEER, peer="127.0.0.3"),
        asyncio.timeout(30),
    ):
        for _ in range(2 * MAX_PER_PEER):
            await requests.acquire()
        for _ in range(30):
            assert await get_status(address) == 200


async def test_idle_connections_of_a_peer_with_many_are_closed_before_new_ones_of_others() -> None:
    server = make_server(max_per_peer=15)
    # 14 + 1 + 10 connections are 5 above the limit.
    async with (
        server.running() as address,
        open_idle_connections(address, count=14, peer="127.0.0.2"),
        open_connections(address, count=1) as ((reader, writer),),
    ):
        await poll_until(lambda: len(server.connection_limiter) == 15)
        async with open_idle_connections(address, count=10, peer="127.0.0.3"), asyncio.timeout(30):
            writer.write(encode_get("/healthz"))
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")


async def test_a_connection_whose_peer_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "UNREAD_TIMEOUT_S", 1.0)
    server, has_request = make_server(), asyncio.Event()

    async def respond_with_32_mib(_: web.Request) -> web.Response:
        has_request.set()
        return web.Response(body=bytes(32 << 20))  # more than socket buffers hold

    server.app.router.add_get("/large", respond_with_32_mib)
    async with server.running() as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as peer:
            peer.sendall(encode_get("/large"))
            await has_request.wait()
            await poll_until(lambda: len(server.connection_limiter) == 0)


async def test_half_open_tls_handshakes_are_limited_and_block_no_request(
    authority: CertificateAuthority, server_tls: ssl.SSLContext
) -> None:
    client_tls = ssl.create_default_context(cafile=str(authority.certificate))
    server = make_server(ssl_context=server_tls)
    server.handshake_limiter = http_limits.ConnectionLimiter(MAX_CONNECTIONS, MAX_PER_PEER)
    async with (
        server.running() as address,
        aiohttp.ClientSession() as session,
        open_connections(address, count=50, peer="127.0.0.2"),
        open_connections(address, count=50, peer="127.0.0.3"),
        open_connections(address, count=50, peer="127.0.0.4"),
        asyncio.timeout(30),
    ):
        for _ in range(3):
            async with session.get(f"https://{address}/healthz", ssl=client_tls) as response:
                assert await response.text() == "ok\n"
        await poll_until(lambda: server.handshake_limiter.closed_count >= 3 * 50 - MAX_CONNECTIONS)
        assert len(server.handshake_limiter) <= MAX_CONNECTIONS
        assert len(server.connection_limiter) == 1, "handshakes do not count as connections"
    assert len(server.handshake_limiter) == 0


@pytest.mark.parametrize("timeout", ["HANDSHAKE_TIMEOUT_S", "HEAD_TIMEOUT_S"])
async def test_a_tls_handshake_and_a_request_head_have_timeouts(
    server_tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, timeout: str
) -> None:
    monkeypatch.setattr(http_limits, timeout, 0.2)
    server = make_server(ssl_context=server_tls if timeout == "HANDSHAKE_TIMEOUT_S" else None)
    async with (
        server.running() as address,
        open_connections(address, b"GET /metrics HTTP/1.1\r\n", count=1) as ((reader, _),),
        asyncio.timeout(30),
    ):
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        assert len(server.handshake_limiter) == 0


async def test_a_body_that_does_not_arrive_gets_status_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "BODY_TIMEOUT_S", 0.2)
    half_body = b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf"
    async with (
        make_server().running() as address,
        open_connections(address, half_body, count=1) as ((reader, _),),
        asyncio.timeout(30),
    ):
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        await reader.read()
