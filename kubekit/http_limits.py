"""Limits connections of an HTTP server, in total and per peer, and sets deadlines of requests and answers.

A connection costs ten kilobytes and a file, whether or not a request ever comes; one whose TLS handshake is not over costs more, so
there are lower bounds for those. At a bound another connection makes room for the new one, first one without a request under way of
the peer with the most: the kubelet's probes are answered, however many connections some peers hold.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Awaitable, Callable, Collection

from aiohttp import web
from aiohttp.typedefs import Middleware
from aiohttp.web_protocol import RequestHandler

from kubekit.addresses import read_address

HANDSHAKE_TIMEOUT_S, HEAD_TIMEOUT_S, BODY_TIMEOUT_S, IDLE_TIMEOUT_S = 5, 10.0, 20.0, 75.0
UNREAD_TIMEOUT_S = 20.0
"""The connection is closed if the peer does not read an answer for this long."""
MAX_CONNECTIONS, MAX_PER_PEER = 512, 256
MAX_HANDSHAKES, MAX_HANDSHAKES_PER_PEER = 128, 64
"""An API server that sends a burst of requests opens a connection for each."""
_SUFFIXES_OF_CLUSTERS = (".svc", ".cluster.local", ".localhost")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


SILENT = logging.getLogger("kubekit.http.access")
SILENT.disabled = True


class ConnectionLimiter:
    """The connections of one server.

    Attributes:
        refused: how many were ended to keep the bounds.
    """

    def __init__(self, max_connections: int = MAX_CONNECTIONS, max_per_peer: int = MAX_PER_PEER) -> None:
        self._max_connections, self._max_per_peer = max_connections, max_per_peer
        self._open: dict[Connection, None] = {}
        self.refused = 0

    def __len__(self) -> int:
        return len(self._open)

    def end_all(self) -> None:
        """End all of them."""
        for connection in tuple(self._open):
            connection.end()

    def acquire(self, connection: Connection) -> None:
        """Let one in. At a bound another ends: of those that are not busy one of the peer with the most connections, silent ones
        before idle ones, else a busy one of that peer; the new one itself, where it is of that peer.
        """
        self._open[connection] = None
        counts = Counter(c.peer for c in self._open)
        if counts[connection.peer] > self._max_per_peer:
            self._make_room([c for c in self._open if c.peer == connection.peer], counts, connection)
        elif len(self._open) > self._max_connections:
            self._make_room(list(self._open), counts, connection)

    def _make_room(self, candidates: list[Connection], counts: Counter[str], newest: Connection) -> None:
        self.refused += 1
        # Of equals the oldest goes, since min takes the first.
        loser = min(
            (c for c in candidates if c is not newest), key=lambda c: (c.is_answering, -counts[c.peer], c.has_request)
        )
        if loser.is_answering and counts[loser.peer] <= counts[newest.peer]:
            loser = newest
        self.release(loser)
        loser.end()

    def release(self, connection: Connection) -> None:
        """The connection is gone."""
        self._open.pop(connection, None)


class _TlsProtocol(SSLProtocol):
    """asyncio's, with a buffer of two TLS records: its own of 256 KiB let 150 idle connections take 128 MiB."""

    max_size = 32 << 10


class Connection(RequestHandler):
    """One connection, which counts from the moment it is accepted and has deadlines for its handshake and its first request;
    aiohttp's own keeps the later ones.
    """

    __slots__ = ("_counted_by", "_deadline", "_site", "_socket_transport", "peer")

    def __init__(self, server: web.Server, site: BoundSite) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=SILENT,
            keepalive_timeout=IDLE_TIMEOUT_S,
            lingering_time=1.0,
        )
        self._site, self.peer = site, ""
        self._counted_by: ConnectionLimiter | None = None
        self._socket_transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def has_request(self) -> bool:
        """Whether the head of a request has arrived."""
        return self._request_count > 0

    @property
    def is_answering(self) -> bool:
        """Whether a request is being answered."""
        return self._current_request is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection. Where the site has TLS the handshake comes first, and its protocol calls this a second time."""
        assert isinstance(transport, asyncio.Transport)
        if self._socket_transport is None:
            address = transport.get_extra_info("peername")
            self.peer = str(address[0]) if isinstance(address, tuple) else ""
            self._socket_transport = transport
            if self._site.tls is not None:
                self._shake_hands(transport, self._site.tls)
                return
        self._count_by(self._site.connections)
        super().connection_made(transport)
        self._deadline = asyncio.get_running_loop().call_later(HEAD_TIMEOUT_S, self._end_if_silent)

    def _shake_hands(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        done.add_done_callback(self._stop_counting_failed_handshake)
        protocol = _TlsProtocol(loop, self, tls, done, server_side=True, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        self._count_by(self._site.handshakes)

    def _stop_counting_failed_handshake(self, done: asyncio.Future[None]) -> None:
        if done.exception() is not None or self._counted_by is self._site.handshakes:
            self._count_by(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count it no longer."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._count_by(None)
        super().connection_lost(exc)

    def _count_by(self, limiter: ConnectionLimiter | None) -> None:
        if self._counted_by is not None:
            self._counted_by.release(self)
        self._counted_by = limiter
        if limiter is not None:
            limiter.acquire(self)

    def _end_if_silent(self) -> None:
        if not self.has_request:
            self.end()

    def end(self) -> None:
        """End it now, without an answer."""
        if self._socket_transport is not None:
            self._socket_transport.abort()


class BoundSite(web.SockSite):
    """A bound socket whose connections, and TLS handshakes under way, are bounded."""

    def __init__(
        self,
        runner: web.AppRunner,
        sock: socket.socket,
        connections: ConnectionLimiter,
        handshakes: ConnectionLimiter,
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__(runner, sock, ssl_context=tls)
        self.connections, self.handshakes, self.tls, self._bound = connections, handshakes, tls, sock

    async def start(self) -> None:
        """Listen."""
        await web.BaseSite.start(self)
        server = self._runner.server
        assert server is not None
        # Accepted sockets inherit it. Also what waits in the buffers of a closed connection, and for a window of 0, counts.
        self._bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_TIMEOUT_S * 1000))
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(server, self), sock=self._bound
        )

    async def stop(self) -> None:
        """Stop listening; connections without a request are not awaited."""
        await super().stop()
        self.handshakes.end_all()


class BodyTooLargeError(Exception):
    """A request is larger than its reader takes."""


async def read_body(request: web.Request, most_bytes: int, within_s: float) -> bytes:
    """The body of a POST, with a bound of its own.

    Raises:
        BodyTooLargeError: it is larger; what exceeds the bound is not kept.
        TimeoutError: it did not come in time. A sender that is slow would otherwise keep its place for ever.
    """
    size, parts = request.content_length or 0, []
    async with asyncio.timeout(within_s):
        if size <= most_bytes:
            size = 0
            async for part in request.content.iter_any():
                parts.append(part)
                size += len(part)
                if size > most_bytes:
                    break
    if size > most_bytes:
        raise BodyTooLargeError
    return b"".join(parts)


@web.middleware
async def read_body_in_time(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Read the body, if there is one, before the handler runs, or answer 408; what takes a POST uses `read_body`."""
    if request.body_exists and request.method != "POST":
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                await request.read()
        except TimeoutError:
            answer = web.Response(status=408, text="the body did not come in time\n")
            answer.force_close()
            return answer
    return await handler(request)


def only_for(hosts: Collection[str]) -> Middleware:
    """Refuse requests whose Host a foreign web site could have made a browser send (DNS rebinding).

    Addresses, names without a dot, names inside a cluster and ``hosts`` are allowed, because none is a public DNS name that an
    attacker could point here.
    """
    known = {host.lower() for host in hosts}

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = _host_name(request.host)
        if name in known or "." not in name or name.endswith(_SUFFIXES_OF_CLUSTERS) or read_address(name) is not None:
            return await handler(request)
        return web.Response(status=421, text=f"not served under the name {name!r}: see page.allowedHosts\n")

    return check


def _host_name(host: str) -> str:
    """``Host`` without its port, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower().rstrip(".")
