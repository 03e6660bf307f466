"""A server answers whoever asks, whatever others hold open: deadlines, bounds, and names that it is not served under."""

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

HALF = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"


@asynccontextmanager
async def half_open(address: str, count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    host, _, port = address.rpartition(":")
    opened = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection(host, int(port))
            opened.append((reader, writer))
            writer.write(HALF)
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.close()


async def status_of(address: str, path: str = "/healthz", **headers: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}", headers=headers) as answer:
        return answer.status


async def test_half_open_connections_take_few_places_and_nobodys_answer() -> None:
    server = Server("127.0.0.1:0", registry=CollectorRegistry())
    server.connections = http_limits.ConnectionLimiter(20, 10)
    async with server.running() as address:
        async with aiohttp.ClientSession() as session, session.get(f"http://{address}/healthz") as kept:
            assert kept.status == 200
            async with half_open(address, 50):
                assert await status_of(address) == 200
                assert len(server.connections) <= 10
                async with session.get(f"http://{address}/healthz") as again:
                    assert again.status == 200
        assert server.connections.refused >= 40


async def hold(address: str, peer: str, count: int, path: str) -> list[asyncio.StreamWriter]:
    """Connections from one address that have asked once and stay."""
    host, _, port = address.rpartition(":")
    held = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection(host, int(port), local_addr=(peer, 0))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        if path == "/healthz":
            await reader.readuntil(b"ok\n")
        held.append(writer)
    return held


@pytest.mark.parametrize("path", ["/healthz", "/slow"])
async def test_two_peers_that_hold_every_connection_keep_no_probe_out(path: str) -> None:
    server = Server("127.0.0.1:0", registry=CollectorRegistry())
    server.connections = http_limits.ConnectionLimiter(20, 10)
    asked = asyncio.Semaphore(0)

    async def slow(_: web.Request) -> web.Response:
        asked.release()
        await asyncio.Event().wait()
        return web.Response()

    server.app.router.add_get("/slow", slow)
    async with server.running() as address:
        held = [writer for peer in ("127.0.0.2", "127.0.0.3") for writer in await hold(address, peer, 10, path)]
        async with asyncio.timeout(30):
            for _ in held if path == "/slow" else ():
                await asked.acquire()
            for _ in range(30):
                assert await status_of(address) == 200
        for writer in held:
            writer.close()


async def test_a_peer_with_many_idle_connections_makes_room_for_one_that_has_not_asked_yet() -> None:
    server = Server("127.0.0.1:0", registry=CollectorRegistry())
    server.connections = http_limits.ConnectionLimiter(20, 15)
    async with server.running() as address:
        host, _, port = address.rpartition(":")
        held = await hold(address, "127.0.0.2", 14, "/healthz")
        reader, writer = await asyncio.open_connection(host, int(port))
        while len(server.connections) < 15:
            await asyncio.sleep(0.01)
        held += await hold(address, "127.0.0.3", 10, "/healthz")
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(30):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        for open_one in (writer, *held):
            open_one.close()


async def test_an_answer_that_nobody_reads_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "UNREAD_TIMEOUT_S", 1.0)
    server = Server("127.0.0.1:0", registry=CollectorRegistry())

    async def large(_: web.Request) -> web.Response:
        return web.Response(body=b"x" * (32 << 20))

    server.app.router.add_get("/large", large)
    async with server.running() as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as peer:
            peer.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(5):
                while not len(server.connections):
                    await asyncio.sleep(0.01)
            async with asyncio.timeout(30):
                while len(server.connections):
                    await asyncio.sleep(0.05)


async def test_half_open_tls_handshakes_are_few_and_keep_no_request_out(
    tmp_path: Path,
) -> None:
    authority = CertificateAuthority(tmp_path / "pki", "tests")
    pair = authority.issue("server", "server", hosts=("127.0.0.1",))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.certificate, pair.key)
    client = ssl.create_default_context(cafile=str(authority.certificate))
    server = Server("127.0.0.1:0", registry=CollectorRegistry(), tls=tls)
    server.handshakes = http_limits.ConnectionLimiter(20, 10)
    async with server.running() as address, aiohttp.ClientSession() as session:
        host, _, port = address.rpartition(":")
        held = [
            (await asyncio.open_connection(host, int(port), local_addr=(peer, 0)))
            for peer in ("127.0.0.2", "127.0.0.3", "127.0.0.4")
            for _ in range(50)
        ]
        async with asyncio.timeout(30):
            for _ in range(3):
                async with session.get(f"https://{address}/healthz", ssl=client) as answer:
                    assert await answer.text() == "ok\n"
            while server.handshakes.refused < 130:
                await asyncio.sleep(0.01)
        assert len(server.handshakes) <= 20
        assert len(server.connections) == 1
        for _, writer in held:
            writer.close()
    assert len(server.handshakes) == 0


async def test_a_tls_handshake_that_does_not_come_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "HANDSHAKE_TIMEOUT_S", 0.2)
    pair = CertificateAuthority(tmp_path / "pki", "tests").issue("server", "server", hosts=("127.0.0.1",))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.certificate, pair.key)
    server = Server("127.0.0.1:0", registry=CollectorRegistry(), tls=tls)
    async with server.running() as address, half_open(address, 1) as (reader,), asyncio.timeout(30):
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        assert len(server.handshakes) == 0


async def test_a_request_whose_head_does_not_come_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "HEAD_TIMEOUT_S", 0.2)
    async with (
        Server("127.0.0.1:0", registry=CollectorRegistry()).running() as address,
        half_open(address, 1) as (reader,),
        asyncio.timeout(30),
    ):
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)


async def test_a_body_that_does_not_come_is_answered_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "BODY_TIMEOUT_S", 0.2)
    async with Server("127.0.0.1:0", registry=CollectorRegistry()).running() as address:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
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
async def test_a_page_is_not_served_under_names_that_others_own(host: str, status: int) -> None:
    async with Server("127.0.0.1:0", registry=CollectorRegistry(), hosts=["page.example.com"]).running() as address:
        assert await status_of(address, Host=host) == status


async def test_without_a_list_every_name_is_fine() -> None:
    async with Server("127.0.0.1:0", registry=CollectorRegistry()).running() as address:
        assert await status_of(address, Host="node-1.eu.compute.internal") == 200
