"""Connection pools to the API server.

Each watch has its own connection. The Lease has one that nothing else may use. Reads and writes share five: at most 2 reads and 4
writes at a time. So a program opens at most one connection for each watched kind and six more; leader election never waits behind a
list, and writes alone cannot block a read.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol

import aiohttp
from aiohttp import BytesPayload
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict

from kubekit.config import ClusterConfig

READ_BUFFER = 2**21
"""A line of a watch may exceed 128 KB."""
CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT, TCP_USER_TIMEOUT_MS = 15, 10, 3, 30_000
"""A dead peer is noticed within 45 s: keepalive probes begin after 15 s without traffic, and the connection ends when nothing was
acknowledged for 30 s. The kernel's defaults take two hours, or a quarter of an hour if data waits to be sent."""


class WriteGuard(Protocol):
    """Asked before every write; raises NotLeaderError when this process must not write now."""

    def check(self) -> float:
        """Return the seconds for which writing is still allowed."""
        ...

    def writing(self) -> AbstractContextManager[None]:
        """Context of each write; left by an exception if its effect is unknown."""
        ...


class FencedBody(BytesPayload):
    """A write's body that checks permission again when it is sent, together with the headers.

    Before that a connection may be opened and other work may run, so a leader that was frozen meanwhile would still send it.
    """

    def __init__(self, body: bytes, guard: WriteGuard) -> None:
        super().__init__(body)
        self._guard = guard

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._guard.check()
        await super().write_with_length(writer, content_length)


class ConnectionPool(enum.Enum):
    """Pools by purpose; the value is the maximum number of concurrent requests, None for no limit."""

    WATCH = None
    READ = 2
    WRITE = 4
    LEASE = 1

    @property
    def max_requests(self) -> int | None:
        """The maximum number of concurrent requests, None for no limit."""
        limit: int | None = self.value
        return limit


MAX_SHARED_REQUESTS = 5
"""Limit of reads and writes together. At most 4 are writes and 2 reads, so writes always leave one for reads, and reads three."""


class ConnectionPools:
    """The sessions of all pools."""

    def __init__(self, config: ClusterConfig, user_agent: str) -> None:
        self._config, self._user_agent = config, user_agent
        self._sessions: dict[ConnectionPool, aiohttp.ClientSession] = {}
        self._semaphores: dict[ConnectionPool, tuple[asyncio.Semaphore, ...]] = {}

    def open(self) -> None:
        """Make the pools; needs a running event loop."""
        shared = self._session(MAX_SHARED_REQUESTS)
        self._sessions = {
            ConnectionPool.WATCH: self._session(0),
            ConnectionPool.READ: shared,
            ConnectionPool.WRITE: shared,
            ConnectionPool.LEASE: self._session(1),
        }
        # Requests wait at these semaphores, not in aiohttp's pool, so that the write fence is checked after the wait.
        shared_limit = asyncio.Semaphore(MAX_SHARED_REQUESTS)
        own_limits = {
            pool: asyncio.Semaphore(pool.max_requests) for pool in ConnectionPool if pool.max_requests is not None
        }
        self._semaphores = {
            pool: (own, shared_limit) if pool in {ConnectionPool.READ, ConnectionPool.WRITE} else (own,)
            for pool, own in own_limits.items()
        }

    async def close(self) -> None:
        """Close every connection."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    def _session(self, max_connections: int) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            ssl=self._config.tls or True, limit=max_connections, keepalive_timeout=60, socket_factory=_socket
        )
        return aiohttp.ClientSession(
            connector=connector,
            read_bufsize=READ_BUFFER,
            headers={"User-Agent": self._user_agent, "Accept": "application/json"},
            auto_decompress=True,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        )

    @asynccontextmanager
    async def request(
        self,
        pool: ConnectionPool,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None,
        headers: CIMultiDict[str],
        data: bytes | BytesPayload | None,
        tls: ssl.SSLContext | None,
        sending_context: Callable[[], AbstractContextManager[None]],
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request, within ``sending_context`` once a connection is free; deadlines are the caller's."""
        if not self._sessions:
            msg = "use the client as `async with Client(config) as client`"
            raise RuntimeError(msg)
        config = self._config
        async with AsyncExitStack() as stack:
            for semaphore in self._semaphores.get(pool, ()):
                await stack.enter_async_context(semaphore)
            with sending_context():
                async with self._sessions[pool].request(
                    method,
                    config.server + path,
                    params=params,
                    headers=headers,
                    data=data,
                    ssl=tls or config.tls or True,
                    proxy=config.proxy or None,
                    server_hostname=config.server_name or None,
                ) as answer:
                    yield answer


def _socket(address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    family, kind, protocol, _, _ = address
    created = socket.socket(family, kind, protocol)
    created.settimeout(0)
    created.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Not every system that kubectl runs on has all of them.
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_COUNT),
        ("TCP_USER_TIMEOUT", TCP_USER_TIMEOUT_MS),
    ):
        if hasattr(socket, name):
            created.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return created
