"""An HTTP server limits connections and times, and refuses requests for unknown public host names."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from kubekit import http_limits
from kubekit.http import Server
from lab.certificates import CertificateAuthority
from lab.polling import poll_until

HALF_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"


def make_server(limits: tuple[int, int] = (20, 10), **options: Any) -> Server:
    """A server with limits of connections, in total and per peer."""
    server = Server("127.0.0.1:0", registry=CollectorRegistry(), **options)
    server.connection_limiter = http_limits.ConnectionLimiter(*limits)
    return server


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "pki", "tests")


@pytest.fixture
def server_tls(authority: CertificateAuthority) -> ssl.SSLContext:
    pair = authority.issue("server", "server", hosts=("127.0.0.1",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


async def connect(address: str, peer: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port), local_addr=(peer, 0))


@asynccontextmanager
async def open_half_requests(address: str, count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    connections = []
    try:
        for _ in range(count):
            reader, writer = await connect(address)
            connections.append((reader, writer))
            writer.write(HALF_REQUEST)
        yield [reader for reader, _ in connections]
    finally:
        for _, writer in connections:
            writer.close()


async def get_status(address: str, path: str = "/healthz", **headers: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}", headers=headers) as answer:
        return answer.status


async def test_half_open_connections_are_limited_and_block_no_request() -> None:
    server = make_server()
    async with server.running() as address:
        async with aiohttp.ClientSession() as session, session.get(f"http://{address}/healthz") as first_answer:
            assert first_answer.status == 200
            async with open_half_requests(address, 50):
                assert await get_status(address) == 200
                assert len(server.connection_limiter) <= 10
                async with session.get(f"http://{address}/healthz") as second_answer:
                    assert second_answer.status == 200
        assert server.connection_limiter.closed_count >= 40


async def open_connections(address: str, peer: str, count: int, path: str) -> list[asyncio.StreamWriter]:
    """Connections from one address that have sent a request and stay open."""
    open_writers = []
    for _ in range(count):
        reader, writer = await connect(address, peer)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        if path == "/healthz":
            await reader.readuntil(b"ok\n")
        open_writers.append(writer)
    return open_writers


@pytest.mark.parametrize("path", ["/healthz", "/slow"])
async def test_two_peers_with_all_connections_block_no_probe(path: str) -> None:
    server = make_server()
    requests = asyncio.Semaphore(0)

    async def slow(_: web.Request) -> web.Response:
        requests.release()
        await asyncio.Event().wait()
        return web.Response()

    server.app.router.add_get("/slow", slow)
    async with server.running() as address:
        open_writers = [
            writer for peer in ("127.0.0.2", "127.0.0.3") for writer in await open_connections(address, peer, 10, path)
        ]
        async with asyncio.timeout(30):
            for _ in open_writers if path == "/slow" else ():
                await requests.acquire()
            for _ in range(30):
                assert await get_status(address) == 200
        for writer in open_writers:
            writer.close()


async def test_idle_connections_of_a_peer_with_many_are_closed_before_new_ones_of_others() -> None:
    server = make_server((20, 15))
    async with server.running() as address:
        open_writers = await open_connections(address, "127.0.0.2", 14, "/healthz")
        reader, writer = await connect(address)
        await poll_until(lambda: len(server.connection_limiter) == 15)
        open_writers += await open_connections(address, "127.0.0.3", 10, "/healthz")
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(30):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        for open_writer in (writer, *open_writers):
            open_writer.close()


async def test_a_connection_whose_peer_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "UNREAD_TIMEOUT_S", 1.0)
    server, has_request = make_server(), asyncio.Event()

    async def large(_: web.Request) -> web.Response:
        has_request.set()
        return web.Response(body=b"x" * (32 << 20))

    server.app.router.add_get("/large", large)
    async with server.running() as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as peer:
            peer.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            await has_request.wait()
            await poll_until(lambda: len(server.connection_limiter) == 0)


async def test_half_open_tls_handshakes_are_limited_and_block_no_request(
    authority: CertificateAuthority, server_tls: ssl.SSLContext
) -> None:
    client = ssl.create_default_context(cafile=str(authority.certificate))
    server = make_server(ssl_context=server_tls)
    server.handshake_limiter = http_limits.ConnectionLimiter(20, 10)
    async with server.running() as address, aiohttp.ClientSession() as session:
        connections = [
            await connect(address, peer) for peer in ("127.0.0.2", "127.0.0.3", "127.0.0.4") for _ in range(50)
        ]
        async with asyncio.timeout(30):
            for _ in range(3):
                async with session.get(f"https://{address}/healthz", ssl=client) as answer:
                    assert await answer.text() == "ok\n"
            await poll_until(lambda: server.handshake_limiter.closed_count >= 130)
        assert len(server.handshake_limiter) <= 20
        assert len(server.connection_limiter) == 1
        for _, writer in connections:
            writer.close()
    assert len(server.handshake_limiter) == 0


@pytest.mark.parametrize("limit", ["HANDSHAKE_TIMEOUT_S", "HEAD_TIMEOUT_S"])
async def test_a_tls_handshake_and_a_request_head_have_timeouts(
    server_tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(http_limits, limit, 0.2)
    server = make_server(ssl_context=server_tls if limit == "HANDSHAKE_TIMEOUT_S" else None)
    async with server.running() as address, open_half_requests(address, 1) as (reader,), asyncio.timeout(30):
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        assert len(server.handshake_limiter) == 0


async def test_a_body_that_does_not_arrive_gets_status_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "BODY_TIMEOUT_S", 0.2)
    async with make_server().running() as address:
        reader, writer = await connect(address)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf")
        async with asyncio.timeout(30):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
            await reader.read()
        writer.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("localhost", 200),
        ("netaware-controller.netaware-system.svc:9850", 200),
        ("Page.Example.com", 200),
        ("rebound.attacker.example", 421),
        ("127.0.0.1.attacker.example:9850", 421),
    ],
)
async def test_requests_for_unknown_public_host_names_are_refused(host: str, status: int) -> None:
    async with make_server(public_hosts=["page.example.com"]).running() as address:
        assert await get_status(address, Host=host) == status
    async with make_server().running() as address:
        assert await get_status(address, Host=host) == 200
