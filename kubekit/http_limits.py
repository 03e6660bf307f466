"""Limits the connections of an HTTP server, in total and per peer, the time of requests and responses, and the size of bodies.

A connection takes ten kilobytes and a file descriptor. A TLS handshake takes more, so the limits for handshakes are lower. At a limit a
new connection replaces an idle one, first of the peer with the most connections. So other peers cannot keep out the kubelet's probes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

HANDSHAKE_TIMEOUT_S = 5  # An int, because typeshed's SSLProtocol takes no float.
HEAD_TIMEOUT_S, BODY_TIMEOUT_S, IDLE_TIMEOUT_S = 10.0, 20.0, 75.0
UNREAD_TIMEOUT_S = 20.0
"""A connection is closed if the peer does not read a response for this long."""
LINGERING_TIME_S = 1.0
"""Time in which the rest of a request is read after an early response."""
MAX_CONNECTIONS, MAX_CONNECTIONS_PER_PEER = 512, 256
MAX_HANDSHAKES, MAX_HANDSHAKES_PER_PEER = 128, 64
"""High enough for an API server, which opens a connection for each request of a burst."""

_TLS_RECORD_BYTES = 16 << 10  # the largest record (RFC 8446)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ConnectionLimiter:
    """Limits the number of connections of one server.

    Attributes:
        closed_count: number of connections that were closed because of the limits.
    """

    def __init__(self, max_connections: int = MAX_CONNECTIONS, max_per_peer: int = MAX_CONNECTIONS_PER_PEER) -> None:
        self._max_connections, self._max_per_peer = max_connections, max_per_peer
        self._connections: dict[Connection, None] = {}
        self.closed_count = 0

    def __len__(self) -> int:
        return len(self._connections)

    def close_all(self) -> None:
        """Close all connections."""
        for connection in tuple(self._connections):
            connection.abort()

    def admit(self, connection: Connection) -> None:
        """Count a new connection; above a limit, close one.

        Connections are closed in this order: idle before responding ones; of the peer with the most connections first; without any
        request yet before others; older before newer ones. If all others are responding, the new one is closed, unless another peer has
        more connections.
        """
        self._connections[connection] = None
        counts = Counter(c.peer for c in self._connections)
        if counts[connection.peer] > self._max_per_peer:
            self._close_connection([c for c in self._connections if c.peer == connection.peer], counts, connection)
        elif len(self._connections) > self._max_connections:
            self._close_connection(list(self._connections), counts, connection)

    def _close_connection(self, candidates: list[Connection], counts: Counter[str], newest: Connection) -> None:
        """Close one candidate, the first by the order in `admit`; ``counts`` has the number of connections by peer."""
        self.closed_count += 1
        older = [c for c in candidates if c is not newest]
        # Among equals min returns the first, which is the oldest.
        victim = min(older, key=lambda c: (c.is_responding, -counts[c.peer], c.has_request))
        if victim.is_responding and counts[victim.peer] <= counts[newest.peer]:
            victim = newest
        self.release(victim)
        victim.abort()

    def release(self, connection: Connection) -> None:
        """Stop counting a connection."""
        self._connections.pop(connection, None)


class _TlsProtocol(SSLProtocol):
    """asyncio's protocol with a smaller buffer. With the default of 256 KiB, 150 idle connections take 128 MiB."""

    max_size = 2 * _TLS_RECORD_BYTES


class Connection(RequestHandler):
    """A connection, which counts against a limit from its start. TLS handshake and head of the first request must end in time.

    ``peer`` is the IP address of the client; empty if unknown.
    """

    __slots__ = ("_first_request_timer", "_limiter", "_site", "_socket_transport", "peer")

    def __init__(self, server: web.Server, site: BoundSite) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # aiohttp's server passes None too
            keepalive_timeout=IDLE_TIMEOUT_S,
            lingering_time=LINGERING_TIME_S,
        )
        self._site, self.peer = site, ""
        self._limiter: ConnectionLimiter | None = None
        self._socket_transport: asyncio.Transport | None = None
        self._first_request_timer: asyncio.TimerHandle | None = None

    @property
    def has_request(self) -> bool:
        """Whether the head of a request has arrived."""
        return self._request_count > 0

    @property
    def is_responding(self) -> bool:
        """Whether a request is being handled."""
        return self._current_request is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection. With TLS, the handshake calls this method a second time after its end."""
        assert isinstance(transport, asyncio.Transport)
        if self._socket_transport is None:
            address = transport.get_extra_info("peername")
            self.peer = str(address[0]) if isinstance(address, tuple) else ""
            self._socket_transport = transport
            if self._site.ssl_context is not None:
                self._start_handshake(transport, self._site.ssl_context)
                return
        self._set_limiter(self._site.connection_limiter)
        super().connection_made(transport)
        self._first_request_timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT_S, self._abort_without_request)

    def _start_handshake(self, transport: asyncio.Transport, ssl_context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        handshake: asyncio.Future[None] = loop.create_future()
        handshake.add_done_callback(self._stop_counting_failed_handshake)
        protocol = _TlsProtocol(
            loop, self, ssl_context, handshake, server_side=True, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
        )
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        self._set_limiter(self._site.handshake_limiter)

    def _stop_counting_failed_handshake(self, handshake: asyncio.Future[None]) -> None:
        # A connection that is lost during the handshake ends it without an exception.
        if handshake.exception() is not None or self._limiter is self._site.handshake_limiter:
            self._set_limiter(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop counting the connection."""
        if self._first_request_timer is not None:
            self._first_request_timer.cancel()
        self._set_limiter(None)
        super().connection_lost(exc)

    def _set_limiter(self, limiter: ConnectionLimiter | None) -> None:
        """Let this limiter count the connection instead of the previous one; None for no limiter."""
        if self._limiter is not None:
            self._limiter.release(self)
        self._limiter = limiter
        if limiter is not None:
            limiter.admit(self)

    def _abort_without_request(self) -> None:
        if not self.has_request:
            self.abort()

    def abort(self) -> None:
        """Close the connection now, without a response."""
        if self._socket_transport is not None:
            self._socket_transport.abort()


class BoundSite(web.SockSite):
    """A bound socket with limits of connections and of TLS handshakes."""

    def __init__(
        self,
        runner: web.AppRunner,
        sock: socket.socket,
        connection_limiter: ConnectionLimiter,
        handshake_limiter: ConnectionLimiter,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        super().__init__(runner, sock, ssl_context=ssl_context)
        self.connection_limiter, self.handshake_limiter = connection_limiter, handshake_limiter
        self.ssl_context, self._listener = ssl_context, sock

    async def start(self) -> None:
        """Listen."""
        await web.BaseSite.start(self)
        server = self._runner.server
        assert server is not None
        # Accepted sockets inherit this option. It also ends closed connections with unsent data, and peers with a window of 0.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_TIMEOUT_S * 1000))
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(server, self), sock=self._listener
        )

    async def stop(self) -> None:
        """Stop listening, and close TLS handshakes."""
        await super().stop()
        self.handshake_limiter.close_all()


class BodyTooLargeError(Exception):
    """The body of a request is too large."""


async def read_body(request: web.Request, max_bytes: int, timeout_s: float) -> bytes:
    """Read the body of a POST, within a size limit and a timeout.

    Raises:
        BodyTooLargeError: the body is larger; the rest of it is not read.
        TimeoutError: the body did not arrive in time.
    """
    if (request.content_length or 0) > max_bytes:
        raise BodyTooLargeError
    parts: list[bytes] = []
    size_bytes = 0
    async with asyncio.timeout(timeout_s):
        async for part in request.content.iter_any():
            size_bytes += len(part)
            if size_bytes > max_bytes:
                raise BodyTooLargeError
            parts.append(part)
    return b"".join(parts)


@web.middleware
async def enforce_body_timeout(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware that reads the body before the handler runs, or responds with 408. Handlers of POST call `read_body` instead."""
    if request.body_exists and request.method != "POST":
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                await request.read()
        except TimeoutError:
            response = web.Response(status=408, text="the body did not arrive in time\n")
            response.force_close()
            return response
    return await handler(request)
