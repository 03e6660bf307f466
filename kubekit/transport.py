"""Connection pools to the API server.

Each watch has its own connection, and so has the Lease. Reads and writes share five connections: at most 2 reads and 4 writes at a time.
So a program has at most one connection per watch, and six more. Leader election never waits for a list, and writes never block reads.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager

import aiohttp
from aiohttp import BytesPayload
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict

from kubekit.config import ClusterConfig
from kubekit.fence import WriteFence

READ_BUFFER_BYTES = 2**21
"""With aiohttp's default, lines of a watch over 128 KB are errors."""
CONNECT_TIMEOUT_S, IDLE_TIMEOUT_S = 10.0, 60.0
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT, TCP_USER_TIMEOUT_MS = 15, 10, 3, 30_000
"""A dead peer is detected within 45 s: keepalive probes start after 15 s without traffic, and the connection ends if nothing is
acknowledged for 30 s. With the kernel's defaults this takes two hours, or 15 minutes if data waits to be sent."""


class FencedBody(BytesPayload):
    """The body of a write, which checks the permission when headers and body are sent.

    Since the check in `kubekit.client.Client`, other tasks ran. A leader that was suspended meanwhile must not send the write.
    """

    def __init__(self, body: bytes, fence: WriteFence) -> None:
        super().__init__(body)
        self._fence = fence

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._fence.check_permission()
        await super().write_with_length(writer, content_length)


class ConnectionPool(enum.Enum):
    """Pools by purpose. Each value is the maximum number of concurrent requests; None means no limit."""

    WATCH = None
    READ = 2
    WRITE = 4
    LEASE = 1


MAX_SHARED_REQUESTS = 5
"""Maximum number of concurrent reads and writes together, so that at least one is for reads and three are for writes."""


class ConnectionPools:
    """Opens, uses and closes the connections of all pools."""

    def __init__(self, config: ClusterConfig, user_agent: str) -> None:
        self._config, self._user_agent = config, user_agent
        self._session_by_pool: dict[ConnectionPool, aiohttp.ClientSession] = {}
        self._semaphores_by_pool: dict[ConnectionPool, tuple[asyncio.Semaphore, ...]] = {}

    def open(self) -> None:
        """Open the pools; needs a running event loop."""
        shared = self._create_session(MAX_SHARED_REQUESTS)
        self._session_by_pool = {
            ConnectionPool.WATCH: self._create_session(0),
            ConnectionPool.READ: shared,
            ConnectionPool.WRITE: shared,
            ConnectionPool.LEASE: self._create_session(1),
        }
        # Requests wait at these semaphores instead of in aiohttp's pool, so that the write fence is checked after the wait.
        shared_limit = asyncio.Semaphore(MAX_SHARED_REQUESTS)
        self._semaphores_by_pool = {
            ConnectionPool.READ: (asyncio.Semaphore(ConnectionPool.READ.value), shared_limit),
            ConnectionPool.WRITE: (asyncio.Semaphore(ConnectionPool.WRITE.value), shared_limit),
            ConnectionPool.LEASE: (asyncio.Semaphore(ConnectionPool.LEASE.value),),
        }

    async def close(self) -> None:
        """Close every connection."""
        session_by_pool, self._session_by_pool = self._session_by_pool, {}
        for session in session_by_pool.values():
            await session.close()

    def _create_session(self, max_connections: int) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            ssl=self._config.ssl_context or True,
            limit=max_connections,
            keepalive_timeout=IDLE_TIMEOUT_S,
            socket_factory=_create_socket,
        )
        return aiohttp.ClientSession(
            connector=connector,
            read_bufsize=READ_BUFFER_BYTES,
            headers={"User-Agent": self._user_agent, "Accept": "application/json"},
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
        ssl_context: ssl.SSLContext | None,
        sending_context: Callable[[], AbstractContextManager[None]],
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Wait for a free connection, enter ``sending_context``, and send one request. Sets no deadline."""
        if not self._session_by_pool:
            raise RuntimeError("use the client as `async with Client(config) as client`")
        config = self._config
        async with AsyncExitStack() as stack:
            for semaphore in self._semaphores_by_pool.get(pool, ()):
                await stack.enter_async_context(semaphore)
            with sending_context():
                async with self._session_by_pool[pool].request(
                    method,
                    config.server + path,
                    params=params,
                    headers=headers,
                    data=data,
                    ssl=ssl_context or config.ssl_context or True,
                    proxy=config.proxy_url or None,
                    server_hostname=config.tls_server_name or None,
                ) as response:
                    yield response


def _create_socket(address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    """Create a socket with keepalive for an entry of ``getaddrinfo``."""
    family, kind, protocol, _, _ = address
    tcp_socket = socket.socket(family, kind, protocol)
    tcp_socket.settimeout(0)
    tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Some operating systems that the CLI supports lack some options.
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_COUNT),
        ("TCP_USER_TIMEOUT", TCP_USER_TIMEOUT_MS),
    ):
        if hasattr(socket, name):
            tcp_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return tcp_socket
