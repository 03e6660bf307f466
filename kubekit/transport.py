"""Connection pools to the API server.

Each watch has one. Everything else shares six: 1 that only the Lease uses, and 5 of which reads take 2 at most and writes 4. So what a
program holds open is the kinds that it watches and six, whatever else happens; a leadership never waits behind a list, nor a read
behind writes alone.
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
IDLE_S, PROBE_S, PROBES, UNACKNOWLEDGED_MS = 15, 10, 3, 30_000
"""Keepalive probes begin after 15 s without traffic; a peer that acknowledges nothing for 30 s is dead: known within 45 s. The
kernel's own defaults notice after two hours, and after a quarter of an hour where data waits."""


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
    """Pools by purpose; the value is the number of connections, None for one per request."""

    WATCH = (None, "watch")
    READ = (2, "read")
    WRITE = (4, "write")
    URGENT = (1, "urgent")

    @property
    def most(self) -> int | None:
        """See the class."""
        found: int | None = self.value[0]
        return found


SHARED = 5
"""Limit of reads and writes together; each has one connection that the other cannot use."""


class ConnectionPools:
    """The sessions of all pools."""

    def __init__(self, config: ClusterConfig, user_agent: str) -> None:
        self._config, self._user_agent = config, user_agent
        self._sessions: dict[ConnectionPool, aiohttp.ClientSession] = {}
        self._turns: dict[ConnectionPool, tuple[asyncio.Semaphore, ...]] = {}

    def open(self) -> None:
        """Make the pools; needs a running event loop."""
        shared = self._session(SHARED)
        self._sessions = {
            ConnectionPool.WATCH: self._session(0),
            ConnectionPool.READ: shared,
            ConnectionPool.WRITE: shared,
            ConnectionPool.URGENT: self._session(1),
        }
        # Acquire the limiter before a connection, so that the write fence is checked after waiting.
        both = asyncio.Semaphore(SHARED)
        own = {pool: asyncio.Semaphore(pool.most) for pool in ConnectionPool if pool.most is not None}
        self._turns = {
            pool: (turn, both) if pool in {ConnectionPool.READ, ConnectionPool.WRITE} else (turn,)
            for pool, turn in own.items()
        }

    async def close(self) -> None:
        """Close every connection."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    def _session(self, most: int) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            ssl=self._config.tls or True, limit=most, keepalive_timeout=60, socket_factory=_socket
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
        begin: Callable[[], AbstractContextManager[None]],
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request, within ``begin`` once it is its turn; deadlines are the caller's."""
        if not self._sessions:
            msg = "use the client as `async with Client(config) as client`"
            raise RuntimeError(msg)
        config = self._config
        async with AsyncExitStack() as stack:
            for turn in self._turns.get(pool, ()):
                await stack.enter_async_context(turn)
            with begin():
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
    made = socket.socket(family, kind, protocol)
    made.settimeout(0)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Not every system that kubectl runs on has all of them.
    for name, value in (
        ("TCP_KEEPIDLE", IDLE_S),
        ("TCP_KEEPINTVL", PROBE_S),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS),
    ):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
