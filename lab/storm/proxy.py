"""A proxy of the lab before the API server, for our programs alone: it answers in its stead, late, or with half an answer.

A stand-in for the load balancers and overloaded API servers of real clusters. Whoever connects proves himself by a token, which is
passed on; so the API server sees each program as before. While no fault is on it, it passes everything on as it comes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random

import aiohttp
from aiohttp import web

from lab.certificates import KeyPair
from lab.controlplane import ControlPlane

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "host", "content-length", "upgrade"})
_LARGEST_BODY = 16 << 20
_SAID = {
    401: ("Unauthorized", "the token has expired (a storm)"),
    410: ("Expired", "too old resource version (a storm)"),
    429: ("TooManyRequests", "too many requests (a storm)"),
    500: ("InternalError", "internal error (a storm)"),
}


class Proxy:
    """Passes requests on, unless a fault is on it.

    Args:
        session: goes to the API server.
        context: of its own server.
        pair, expired: a certificate for it, and one whose time is over.
    """

    def __init__(
        self, session: aiohttp.ClientSession, context: ssl.SSLContext, pair: KeyPair, expired: KeyPair
    ) -> None:
        self._session, self._context, self._pair, self._expired = session, context, pair, expired
        self._faults: dict[object, tuple[str, float]] = {}
        self._refused: set[str] = set()
        self._telling = asyncio.Event()
        self._telling.set()
        self._chance = Random(0)
        self._open: dict[int, web.Request] = {}
        self._runner: web.AppRunner | None = None
        self.url = ""
        self._show(pair)

    @classmethod
    @asynccontextmanager
    async def serve(cls, plane: ControlPlane) -> AsyncIterator[Proxy]:
        """Serve at the API server's address, where nodes reach it too."""
        pair, expired = (
            plane.authority.issue(name, "proxy", hosts=(plane.address,), lifetime=timedelta(days=days))
            for name, days in (("proxy", 365), ("proxy-expired", 0))
        )
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
        connector = aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context(cafile=str(plane.ca_file)))
        async with aiohttp.ClientSession(
            plane.server, timeout=timeout, connector=connector, auto_decompress=False
        ) as session:
            proxy = cls(session, context, pair, expired)
            app = web.Application(client_max_size=_LARGEST_BODY)
            app.router.add_route("*", "/{path:.*}", proxy.answer)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
            await runner.setup()
            proxy._runner = runner
            try:
                site = web.TCPSite(runner, plane.address, 0, ssl_context=context)
                await site.start()
                proxy.url = f"https://{plane.address}:{runner.addresses[0][1]}"
                yield proxy
            finally:
                await runner.cleanup()

    def begin(self, key: object, kind: str, share: float) -> None:
        """Put a fault on a share of the requests: a status, ``cut``, or ``late``. Watches that are open are cut as well.

        ``stale`` is for all watches, those that are open and those to come, and for nothing else. ``expired`` ends every
        connection, and shows a certificate whose time is over to whoever comes.
        """
        self._faults[key] = (kind, 0.0 if kind in {"stale", "expired"} else share)
        self._tell()
        if kind == "expired":
            self._show(self._expired)
            self._disconnect()
        if kind == "cut":
            for request in tuple(self._open.values()):
                _abort(request)

    def end(self, key: object) -> None:
        """Take it away."""
        self._faults.pop(key, None)
        self._tell()
        if all(kind != "expired" for kind, _ in self._faults.values()):
            self._show(self._pair)

    def _tell(self) -> None:
        if any(kind == "stale" for kind, _ in self._faults.values()):
            self._telling.clear()
        else:
            self._telling.set()

    def _show(self, pair: KeyPair) -> None:
        self._context.load_cert_chain(str(pair.certificate), str(pair.key))

    def _disconnect(self) -> None:
        """End every connection, those on which nothing is asked just now as well."""
        server = self._runner.server if self._runner is not None else None
        for connection in tuple(server.connections) if server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()

    def refuse(self, token: str) -> None:
        """Answer as the API server answers an expired token, and end what it has open."""
        self._refused.add(token)
        for request in tuple(self._open.values()):
            if _token(request) == token:
                _abort(request)

    def accept(self, token: str) -> None:
        """Take that back."""
        self._refused.discard(token)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One request."""
        if _token(request) in self._refused:
            return _status(401)
        cut = False
        for kind, share in tuple(self._faults.values()):
            if self._chance.random() >= share:
                continue
            if kind == "late":
                await asyncio.sleep(self._chance.uniform(0.5, 4.0))
            elif kind == "cut":
                cut = True
            # Only what reads from a version can be too old.
            elif kind != "410" or (request.method == "GET" and "resourceVersion" in request.query):
                return _status(int(kind))
        self._open[id(request)] = request
        try:
            return await self._pass_on(request, cut=cut)
        finally:
            self._open.pop(id(request), None)

    async def _told(self, request: web.Request) -> None:
        """Wait while watches tell nothing; what happened meanwhile is told afterwards."""
        if "watch" in request.query:
            await self._telling.wait()

    async def _pass_on(self, request: web.Request, *, cut: bool) -> web.StreamResponse:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        body = await request.read() if request.can_read_body else None
        try:
            async with self._session.request(
                request.method, request.rel_url, headers=headers, data=body, allow_redirects=False
            ) as found:
                passed = {k: v for k, v in found.headers.items() if k.lower() not in _HOP_BY_HOP}
                response = web.StreamResponse(status=found.status, reason=found.reason, headers=passed)
                if found.content_length is not None:
                    response.content_length = found.content_length
                await response.prepare(request)
                async for chunk in found.content.iter_any():
                    if cut:
                        await response.write(chunk[: max(1, len(chunk) // 2)])
                        break
                    await self._told(request)
                    await response.write(chunk)
                if cut:
                    _abort(request)
                else:
                    await response.write_eof()
                return response
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            # As if the program had talked to the API server itself: the connection ends, so this is written to nobody.
            _abort(request)
            return web.Response(status=502)


def _status(code: int) -> web.Response:
    reason, message = _SAID[code]
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }
    return web.json_response(body, status=code, headers={"Retry-After": "1"} if code == 429 else None)


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _token(request: web.Request) -> str:
    return request.headers.get("Authorization", "").removeprefix("Bearer ")
