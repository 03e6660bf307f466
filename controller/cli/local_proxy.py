"""Serves the controller's page on loopback: adds the token, and admits only the browser that has the one-time key.

A cookie replaces the key at the first request, so that other users of this machine, and web sites that guess the port, cannot read the page.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import hdrs, web

from netperf.contract import PAGE_DATA_PATH, PAGE_TOKEN_HEADER

RESPONSE_TIMEOUT_S = 30.0
"""Time for the controller to answer a request."""
_FORWARDED_REQUEST_HEADERS = (hdrs.ACCEPT, hdrs.IF_NONE_MATCH)
_FORWARDED_RESPONSE_HEADERS = (
    hdrs.CONTENT_TYPE,
    hdrs.CACHE_CONTROL,
    hdrs.ETAG,
    "Content-Security-Policy",
    "X-Content-Type-Options",
    "Referrer-Policy",
)


class LocalProxy:
    """Forwards requests of one browser to the controller, with ``token`` (empty for none), which the browser never gets."""

    def __init__(self, session: aiohttp.ClientSession, token: str) -> None:
        self._session, self._token_headers = session, {PAGE_TOKEN_HEADER: token} if token else {}
        self._key, self._cookie, self._port = secrets.token_urlsafe(24), secrets.token_urlsafe(24), 0

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serves on a free loopback port within the block; yields the address to open, with the key."""
        app = web.Application()
        for path in ("/", PAGE_DATA_PATH):
            app.router.add_get(path, self._forward, allow_head=False)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self._port = runner.addresses[0][1]
            yield f"http://127.0.0.1:{self._port}/?key={self._key}"
        finally:
            await runner.cleanup()

    async def fetch_token_error(self) -> str:
        """The page's message if the page refuses the token, else an empty text."""
        async with self._session.get("/", headers=self._token_headers) as response:
            return (await response.text(errors="replace")).strip() if response.status in {401, 403} else ""

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        """Forward a request that has the cookie; a request with the key gets the cookie."""
        # The port is in the cookie's name, because all ports of a host share cookies and several proxies may run.
        cookie_name = f"netaware-{self._port}"
        if self._key and _is_equal(request.query.get("key", ""), self._key):
            self._key = ""
            redirect = web.Response(status=303, headers={hdrs.LOCATION: "/"})
            redirect.set_cookie(cookie_name, self._cookie, httponly=True, samesite="Strict")
            return redirect
        if not _is_equal(request.cookies.get(cookie_name, ""), self._cookie):
            text = "run `kubectl netaware page` again, and open the address that it prints; the address is valid once\n"
            return web.Response(status=403, text=text)
        headers = _select_headers(request.headers, _FORWARDED_REQUEST_HEADERS) | self._token_headers
        try:
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                async with self._session.get(request.path, headers=headers) as response:
                    headers = _select_headers(response.headers, _FORWARDED_RESPONSE_HEADERS)
                    return web.Response(status=response.status, headers=headers, body=await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return web.Response(status=502, text=f"no controller answers: {error}\n")


def _select_headers(headers: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    return {str(name): headers[name] for name in names if name in headers}


def _is_equal(text: str, secret: str) -> bool:
    """Whether the texts are equal; takes the same time for all texts of one length."""
    return secrets.compare_digest(text.encode(), secret.encode())
