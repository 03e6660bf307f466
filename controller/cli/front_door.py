"""A door on this machine to the page of a controller, for whoever has its key.

The key is in the address once; then a cookie has it. So neither another user of this machine nor a web site that knows the
port reads the page.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
from aiohttp import hdrs, web

from controller.cli.connecting import WayToConnect
from kubekit.errors import ConfigError, KubekitError
from netperf.contract import PAGE_TOKEN_HEADER, PAGE_VIEWS

ANSWER_TIMEOUT_S, SEND_TIMEOUT_S = 30.0, 10.0
_ASKED = (hdrs.ACCEPT, "Last-Event-ID")
_TOLD = (
    hdrs.CONTENT_TYPE,
    hdrs.CACHE_CONTROL,
    hdrs.RETRY_AFTER,
    "Content-Security-Policy",
    "X-Content-Type-Options",
    "Referrer-Policy",
)
_FAILURES = (KubekitError, aiohttp.ClientError, TimeoutError, OSError)


class FrontDoor:
    """Passes requests on.

    Args:
        find: opens a way to a controller and closes the one before; called again when a request finds nobody there, as after
            a rollout.
        token: gives what the page wants to see of who asks; empty for nothing. It never reaches the browser.
    """

    def __init__(self, find: Callable[[], Awaitable[WayToConnect]], token: Callable[[], Awaitable[str]]) -> None:
        self._find, self._finding, self._token = find, asyncio.Lock(), token
        self._way: WayToConnect | None = None
        self._key, self._port = secrets.token_urlsafe(24), 0

    @asynccontextmanager
    async def running(self, port: int) -> AsyncIterator[str]:
        """Serve on loopback while the block runs, at any free port for 0; yields the address to open, with its key.

        Raises:
            ConfigError: the port is taken.
        """
        app = web.Application()
        for path in ("/", *PAGE_VIEWS):
            app.router.add_get(path, self._answer, allow_head=False)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, "127.0.0.1", port).start()
            except OSError as error:
                raise ConfigError("--port", f"cannot bind {port}: {error.strerror}", "leave it out") from error
            self._port = runner.addresses[0][1]
            yield f"http://127.0.0.1:{self._port}/?key={self._key}"
        finally:
            await runner.cleanup()

    async def find(self) -> str:
        """Find a controller before anybody asks, so that what is wrong is known at once; why it lets nobody in, if so."""
        way = await self._way_other_than(None)
        async with way("/", params={}, headers=await self._named({})) as answer:
            return (await answer.text(errors="replace")).strip() if answer.status in {401, 403} else ""

    async def _named(self, headers: dict[str, str]) -> dict[str, str]:
        token = await self._token()
        return {**headers, PAGE_TOKEN_HEADER: token} if token else headers

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        # Cookies know no ports: two doors on one machine must not overwrite each other's.
        cookie = f"netaware-{self._port}"
        if self._is_key(request.query.get("key", "")):
            answer = web.Response(status=303, headers={hdrs.LOCATION: "/"})
            answer.set_cookie(cookie, self._key, httponly=True, samesite="Strict")
            return answer
        if not self._is_key(request.cookies.get(cookie, "")):
            return web.Response(status=403, text="open the address that `kubectl netaware page` printed\n")
        async with AsyncExitStack() as stack:
            try:
                answer_of_pod = await self._ask(request, stack)
            except _FAILURES as error:
                return web.Response(status=502, text=f"no controller answers: {error}\n")
            return await _copy(request, answer_of_pod)

    def _is_key(self, text: str) -> bool:
        return secrets.compare_digest(text.encode(), self._key.encode())

    async def _ask(self, request: web.Request, stack: AsyncExitStack) -> aiohttp.ClientResponse:
        """The pod's answer; a second pod is asked when the first is gone."""
        used = await self._way_other_than(None)
        try:
            return await self._ask_by(used, request, stack)
        except _FAILURES:
            return await self._ask_by(await self._way_other_than(used), request, stack)

    async def _ask_by(self, way: WayToConnect, request: web.Request, stack: AsyncExitStack) -> aiohttp.ClientResponse:
        headers = {name: request.headers[name] for name in _ASKED if name in request.headers}
        asked = way(request.path, params=dict(request.query), headers=await self._named(headers))
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            answer = await stack.enter_async_context(asked)
        if answer.status >= 400 and not {"Referrer-Policy", hdrs.RETRY_AFTER} & set(answer.headers):
            # Not the page's own words: what stands between says that the pod is gone, or that it may not be asked.
            said = await answer.text(errors="replace")
            msg = f"HTTP {answer.status}: {said[:200]}"
            raise aiohttp.ClientError(msg)
        return answer

    async def _way_other_than(self, failed: WayToConnect | None) -> WayToConnect:
        async with self._finding:
            if self._way is None or self._way is failed:
                self._way = None
                self._way = await self._find()
            return self._way


async def _copy(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """The same answer for the browser, as it comes."""
    headers = {name: answer.headers[name] for name in _TOLD if name in answer.headers}
    told = web.StreamResponse(status=answer.status, headers=headers)
    # Either side may go at any time; the browser asks again by itself.
    with contextlib.suppress(*_FAILURES):
        await told.prepare(request)
        async for chunk in answer.content.iter_any():
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await told.write(chunk)
        await told.write_eof()
    return told
