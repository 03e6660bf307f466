"""Who may hold a server's connections: a few for each peer, and none that says nothing.

A connection costs ten kilobytes and a file, whether or not a request ever comes. So there is a bound for the server and one for
each peer. At a bound another connection makes room for the new one, idle ones first and those of the greediest peer: the kubelet's
probes are answered, however many connections some peers hold. The head of a request has a deadline, and so has its body.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Collection

from aiohttp import web
from aiohttp.typedefs import Middleware
from aiohttp.web_protocol import RequestHandler

from kubekit.addresses import read_address

HEAD_TIMEOUT_S, BODY_TIMEOUT_S, HANDSHAKE_TIMEOUT_S, IDLE_TIMEOUT_S = 10.0, 20.0, 10.0, 75.0
MOST_CONNECTIONS, MOST_PER_PEER = 512, 256
_SUFFIXES_OF_CLUSTERS = (".svc", ".cluster.local", ".localhost")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


SILENT = logging.getLogger("kubekit.http.access")
SILENT.disabled = True


class ConnectionLimiter:
    """The connections of one server.

    Attributes:
        refused: how many were ended to keep the bounds.
    """

    def __init__(self, most: int = MOST_CONNECTIONS, most_per_peer: int = MOST_PER_PEER) -> None:
        self._most, self._most_per_peer = most, most_per_peer
        self._taken: dict[Connection, None] = {}
        self.refused = 0

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, connection: Connection) -> None:
        """Let one in. At a bound another goes: one that has asked nothing yet, else an idle one, else a busy one of the peer with
        the most connections; that peer's own newest one, where it is the peer that asks.
        """
        self._taken[connection] = None
        counts = Counter(c.peer for c in self._taken)
        if counts[connection.peer] > self._most_per_peer:
            self._make_room([c for c in self._taken if c.peer == connection.peer], counts, connection)
        elif len(self._taken) > self._most:
            self._make_room(list(self._taken), counts, connection)

    def _make_room(self, among: list[Connection], counts: Counter[str], newest: Connection) -> None:
        self.refused += 1
        # The sort is stable: of equals the oldest goes.
        ranked = sorted((c for c in among if c is not newest), key=lambda c: (c.asked + c.busy, -counts[c.peer]))
        loser = ranked[0]
        if loser.busy and counts[loser.peer] <= counts[newest.peer]:
            loser = newest
        self.give_back(loser)
        loser.end()

    def give_back(self, connection: Connection) -> None:
        """It is gone."""
        self._taken.pop(connection, None)


class Connection(RequestHandler):
    """One connection, which has a place and a deadline for its first request; aiohttp's own keeps the later ones."""

    __slots__ = ("_deadline", "_limiter", "peer")

    def __init__(self, server: web.Server, limiter: ConnectionLimiter) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(server, loop=loop, access_log=SILENT, keepalive_timeout=IDLE_TIMEOUT_S)
        self._limiter, self._deadline, self.peer = limiter, loop.call_later(HEAD_TIMEOUT_S, self._end_if_silent), ""

    @property
    def asked(self) -> bool:
        """The head of a request has come."""
        return self._request_count > 0

    @property
    def busy(self) -> bool:
        """A request is being answered."""
        return self._current_request is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place."""
        super().connection_made(transport)
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if isinstance(address, tuple) else ""
        self._limiter.take(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give the place back."""
        self._deadline.cancel()
        self._limiter.give_back(self)
        super().connection_lost(exc)

    def _end_if_silent(self) -> None:
        if not self.asked:
            self.end()

    def end(self) -> None:
        """End it now, without an answer."""
        if isinstance(self.transport, asyncio.Transport):
            self.transport.abort()


class BoundSite(web.SockSite):
    """A bound socket whose connections have places, and whose TLS handshakes have a deadline."""

    def __init__(
        self, runner: web.AppRunner, sock: socket.socket, limiter: ConnectionLimiter, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(runner, sock, ssl_context=tls)
        self._limiter, self._tls, self._bound = limiter, tls, sock

    async def start(self) -> None:
        """Listen."""
        await web.BaseSite.start(self)
        server = self._runner.server
        assert server is not None
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(server, self._limiter),
            sock=self._bound,
            ssl=self._tls,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if self._tls is not None else None,
        )


class BodyTooLargeError(Exception):
    """A request is larger than its reader takes."""


async def read_body(request: web.Request, most_bytes: int, within_s: float) -> bytes:
    """The body of a POST, whatever the server's bound for other requests.

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

    Addresses, names without a dot, names inside a cluster and ``hosts`` are fine: none of these is a name in public DNS that
    somebody else may point here.
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
