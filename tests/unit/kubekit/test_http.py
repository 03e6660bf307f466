"""A program's HTTP server exports metrics, names failing checks, refuses unknown hosts, and limits connections and the time of requests."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge

from kubekit import http_limits
from kubekit.errors import ConfigError
from kubekit.http import HealthChecks, Server, parse_listen
from lab.certificates import CertificateAuthority
from lab.polling import poll_until

MAX_CONNECTIONS, MAX_PER_PEER = 20, 10
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Response(NamedTuple):
    status: int
    text: str
    content_type: str


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "pki", "tests")


@pytest.fixture
def server_tls(authority: CertificateAuthority) -> ssl.SSLContext:
    pair = authority.issue("server", "server", hosts=("127.0.0.1",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


async def fetch(address: str, path: str, **headers: str) -> Response:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}", headers=headers) as response:
        return Response(response.status, await response.text(), response.headers["Content-Type"])


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


async def test_metrics_are_served_as_text_and_as_openmetrics() -> None:
    registry = CollectorRegistry()
    Gauge("netaware_test_seconds", "A gauge.", registry=registry).set(1.5)
    async with Server("127.0.0.1:0", registry=registry).running() as address:
        response = await fetch(address, "/metrics")
        assert "netaware_test_seconds 1.5" in response.text
        assert response.content_type.startswith("text/plain")
        response = await fetch(address, "/metrics", Accept="application/openmetrics-text")
        assert response.content_type.startswith("application/openmetrics-text")
        assert response.text.endswith("# EOF\n")
        assert (await fetch(address, "/metrics?name[]=other")).text == ""


async def test_health_responses_name_each_failing_check() -> None:
    checks = HealthChecks()
    checks.ready["caches"] = lambda: "nodes not listed yet"
    checks.live["loop"] = lambda: ""
    async with Server("127.0.0.1:0", checks=checks, registry=CollectorRegistry()).running() as address:
        assert (await fetch(address, "/readyz"))[:2] == (503, "caches: nodes not listed yet\n")
        assert (await fetch(address, "/healthz"))[:2] == (200, "ok\n")
        checks.ready["caches"] = lambda: ""
        checks.warnings["probing"] = lambda: "the passphrase has 5 bytes"
        assert (await fetch(address, "/readyz"))[:2] == (200, "ok\nprobing: the passphrase has 5 bytes\n")


async def test_an_address_in_use_is_a_configuration_error() -> None:
    async with Server("127.0.0.1:0", registry=CollectorRegistry()).running() as address:
        with pytest.raises(ConfigError, match=r"^--metrics-listen: cannot bind"):
            async with Server(address, registry=CollectorRegistry(), listen_field="--metrics-listen").running():
                pass


async def test_without_a_host_all_ipv4_and_ipv6_addresses_are_served() -> None:
    async with Server(":0", registry=CollectorRegistry()).running() as address:
        port = address.rpartition(":")[2]
        for host in ["127.0.0.1", *(["[::1]"] if socket.has_dualstack_ipv6() else [])]:
            assert (await fetch(f"{host}:{port}", "/healthz")).status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("127.0.0.1:8080", "[::1]:8080", "localhost", "Page.Example.com")),
        ("netaware-controller.netaware-system.svc:9850", 200),
        *((host, 421) for host in ("rebound.attacker.example", "127.0.0.1.attacker.example:9850")),
    ],
)
async def test_requests_for_unknown_public_host_names_are_refused(host: str, status: int) -> None:
    restricted = Server("127.0.0.1:0", registry=CollectorRegistry(), public_hosts=["page.example.com"])
    async with restricted.running() as address:
        assert (await fetch(address, "/healthz", Host=host)).status == status
    async with Server("127.0.0.1:0", registry=CollectorRegistry()).running() as address:
        assert (await fetch(address, "/healthz", Host=host)).status == 200


@pytest.mark.parametrize(("text", "host", "port"), [("[::1]:0", "::1", 0), (":9850", "::", 9850)])
def test_listen_addresses_have_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert parse_listen(text) == (host, port)


@pytest.mark.parametrize("text", ["", "9850", "host:9850", "127.0.0.1:http", "1.2.3.4:70000"])
def test_errors_of_invalid_listen_addresses_name_the_flag(text: str) -> None:
    with pytest.raises(ConfigError, match="--listen"):
        parse_listen(text)


async def test_half_open_connections_are_limited_and_block_no_request() -> None:
    server = make_server()
    async with server.running() as address, aiohttp.ClientSession() as session:
        async with session.get(f"http://{address}/healthz") as response:
            assert response.status == 200
        half_request = encode_get("/metrics").removesuffix(b"\r\n")
        async with open_connections(address, half_request, count=50):
            assert (await fetch(address, "/healthz")).status == 200
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
            assert (await fetch(address, "/healthz")).status == 200


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
