"""The page's routes and the task that keeps it true while somebody looks.

Nothing is computed while nobody looks. The mirrors that only the page needs (results on a replica that does not lead, pods
that ask for bandwidth) run while there are viewers and a little longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import hdrs, web
from prometheus_client import CollectorRegistry, Counter, Gauge

from controller.caches import Caches
from controller.page.audience import Audience
from controller.page.config import PageConfig
from controller.page.document import document, security_policy
from controller.page.model import Page as PageData
from controller.page.model import difference, encode, plain, says_something
from controller.page.sources import Sources
from controller.prometheus import PrometheusClient
from controller.scheduler.config import NetworkOverheadArgs
from controller.views.overview import build
from kubekit import logs
from kubekit.client import Client
from netperf.policy import CostPolicy

log = logs.get("controller.page")

HEARTBEAT_S = 15.0
SEND_TIMEOUT_S = 10.0
FIRST_PAGE_TIMEOUT_S = 15.0


class Page:
    """``add_routes`` before the server runs; ``run`` beside it, on every replica, leader or not.

    Args:
        client: for the mirrors that only the page needs; nothing is ever written.
        caches: the manager's mirrors.
        config: settings.
        registry: for the page's own metrics.
        namespace: the one that netaware lives in.
        policy: the controller's default cost policy.
        rules: the scheduler's, for which costs to show.
        clock: wall clock, unix seconds.
    """

    def __init__(
        self,
        client: Client,
        caches: Caches,
        config: PageConfig,
        registry: CollectorRegistry,
        *,
        namespace: str,
        policy: CostPolicy,
        rules: NetworkOverheadArgs,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._clock = config, clock
        self._audience = Audience(config.max_viewers)
        self._changed = asyncio.Event()
        self._sources = Sources(client, caches, namespace, policy=policy, rules=rules, changed=self._changed.set)
        self._page: PageData | None = None
        self._there = asyncio.Event()
        self._viewers = Gauge("netaware_page_viewers", "Browsers with the page open.", registry=registry)
        self._viewers.set_function(lambda: float(len(self._audience)))
        self._slow = Counter("netaware_page_dropped_viewers", "Viewers that did not keep up.", registry=registry)

    def add_routes(self, app: web.Application) -> None:
        """``/`` the document, ``/api/v1/overview`` everything as JSON, ``/api/v1/events`` what changes."""
        if self._config.enabled:
            app.router.add_get("/", self._document)
            app.router.add_get("/api/v1/overview", self._overview)
            app.router.add_get("/api/v1/events", self._events)

    async def run(self) -> None:
        """Keep the page true while somebody looks; until cancelled."""
        async with contextlib.AsyncExitStack() as stack:
            prometheus: PrometheusClient | None = None
            if self._config.prometheus_url:
                prometheus = await stack.enter_async_context(PrometheusClient(self._config.prometheus_url))
            while True:
                await self._audience.arrived.wait()
                async with asyncio.TaskGroup() as group:
                    mirroring = group.create_task(self._sources.run(prometheus))
                    # A page of what has not been listed yet would be wrong for a moment.
                    await self._sources.settle()
                    await self._refresh_until_idle()
                    mirroring.cancel()
                self._page = None
                self._there.clear()

    async def _refresh_until_idle(self) -> None:
        alone_since: float | None = None
        while True:
            await self._compute()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.resync_s):
                    await self._changed.wait()
            await asyncio.sleep(self._config.refresh_s)
            now = time.monotonic()
            alone_since = None if len(self._audience) else alone_since or now
            if alone_since is not None and now - alone_since >= self._config.idle_s:
                return

    async def _compute(self) -> None:
        """Compute the page and tell the audience what changed."""
        self._changed.clear()
        snapshot = self._sources.snapshot(self._clock())
        before = self._page
        version = before.version + 1 if before is not None else int(self._clock() * 1000)
        # At 100 zones this takes a fifth of a second: in a thread the loop goes on answering health checks.
        page = await asyncio.to_thread(lambda: encode(build(snapshot), version))
        if before is not None:
            told = difference(before, page)
            if not says_something(told):
                return
            message = _event("change", told, version)
        else:
            # Somebody may have come in the moment in which the last page was forgotten.
            message = _event("page", plain(page), version)
        self._slow.inc(self._audience.tell(message))
        self._page = page
        self._there.set()

    async def _document(self, _: web.Request) -> web.Response:
        return web.Response(
            body=document(), content_type="text/html", charset="utf-8", headers=_guarded(security_policy())
        )

    async def _overview(self, request: web.Request) -> web.Response:
        with self._audience.seat():
            page = await self._newest()
        answer = web.Response(
            body=msgspec.json.encode(plain(page)), content_type="application/json", headers=_guarded()
        )
        if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
            answer.enable_compression(web.ContentCoding.gzip)
        return answer

    async def _newest(self) -> PageData:
        """The page as it is; the first viewer waits until there is one."""
        try:
            async with asyncio.timeout(FIRST_PAGE_TIMEOUT_S):
                while self._page is None:
                    await self._there.wait()
        except TimeoutError as error:
            raise web.HTTPServiceUnavailable(text="nothing to show yet\n", headers={"Retry-After": "5"}) from error
        return self._page

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._audience.full:
            return web.Response(status=503, text="too many viewers\n", headers={"Retry-After": "30"})
        with self._audience.seat() as viewer:
            await self._newest()
            stream = web.StreamResponse(
                headers={hdrs.CONTENT_TYPE: "text/event-stream", "X-Accel-Buffering": "no", **_guarded()}
            )
            await stream.prepare(request)
            page = await self._newest()
            seen = request.headers.get("Last-Event-ID") or request.query.get("since", "")
            known = seen == str(page.version)
            viewer.start_with(_comment("up to date") if known else _event("page", plain(page), page.version))
            with contextlib.suppress(ConnectionError, TimeoutError):
                while (message := await _next_or_heartbeat(viewer.next)) is not None:
                    async with asyncio.timeout(SEND_TIMEOUT_S):
                        await stream.write(message)
        return stream


async def _next_or_heartbeat(next_message: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
    """The next message; after a while without one a comment, by which dead connections are found."""
    try:
        async with asyncio.timeout(HEARTBEAT_S):
            return await next_message()
    except TimeoutError:
        return _comment("still here")


def _event(name: str, data: Any, version: int) -> bytes:
    """One server-sent event; JSON has no line breaks, so one ``data`` line will do."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (version, name.encode(), msgspec.json.encode(data))


def _comment(text: str) -> bytes:
    return f": {text}\n\n".encode()


def _guarded(policy: str = "default-src 'none'; frame-ancestors 'none'") -> dict[str, str]:
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
