"""The page's routes and the task that keeps it true while somebody looks.

Nothing is computed while nobody looks, and viewers, however many, open no watches: the page is made from the manager's mirrors.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import hdrs, web
from prometheus_client import CollectorRegistry, Counter, Gauge

from controller.cluster.caches import Caches
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.page.access import Access
from controller.page.audience import Audience
from controller.page.config import PageConfig
from controller.page.document import document, safe_headers, security_policy
from controller.page.model import PageData, difference, encode, plain, says_something
from controller.page.sources import Sources
from controller.prometheus import PrometheusClient
from controller.scheduler.config import SchedulerConfig
from controller.topology.results import ResultsMirror
from controller.traffic.prices import PriceTable
from controller.views.overview import build
from kubekit import logs
from kubekit.client import Client
from kubekit.runtime import run_best_effort
from kubekit.waiting import comes
from netperf.contract import PAGE_VIEWS
from netperf.policy import CostPolicy

log = logs.get("controller.page")

HEARTBEAT_S = 5.0
"""Browsers say that there are no data when they have heard nothing for three of these (assets/app.js)."""
SEND_TIMEOUT_S = 10.0
FIRST_PAGE_TIMEOUT_S = 15.0
REFRESH_S = 1.0
RESYNC_S = 15.0
"""Measurements age without any event."""
IDLE_S = 120.0
"""So long after the last viewer left, what only the page reads is forgotten."""
MAX_VIEWERS = 64
LEAST_REST = 4.0
"""Rest after a page, as a multiple of what it took: at 100 zones it takes seconds, which the leader has not to give all the time."""


class Page:
    """``add_routes`` before the server runs; ``run`` beside it, on every replica, leader or not.

    Args:
        caches: the manager's mirrors.
        results: the manager's mirror of results.
        config: settings.
        registry: for the page's own metrics.
        namespace: the one that netaware lives in.
        policy: the controller's default cost policy.
        scheduler: for which costs to show, how long gates stay shut, and who asks us.
        client: reads how our own programs fare, and asks who may see the page where the configuration says that somebody must.
        clock: wall clock, unix seconds.
        prices: of bytes between zones; None where nobody configured any.

    Attributes:
        sources: what the page is made from, for whoever else wants to know.
    """

    def __init__(
        self,
        caches: Caches,
        results: ResultsMirror,
        config: PageConfig,
        registry: CollectorRegistry,
        *,
        namespace: str,
        policy: CostPolicy,
        scheduler: SchedulerConfig,
        client: Client,
        clock: Callable[[], float] = time.time,
        prices: PriceTable | None = None,
    ) -> None:
        self._config, self._clock = config, clock
        self._access = Access(client, namespace) if config.auth == "token" else None
        self._audience = Audience(MAX_VIEWERS)
        self._changed = asyncio.Event()
        self.sources = Sources(
            caches,
            results,
            client,
            namespace,
            policy=policy,
            scheduler=scheduler,
            changed=self._changed.set,
            prices=prices,
        )
        self._page: PageData | None = None
        self._whole: tuple[int, bytes] | None = None
        self._there = asyncio.Event()
        self._viewers = Gauge("netaware_page_viewers", "Browsers with the page open.", registry=registry)
        self._viewers.set_function(lambda: float(len(self._audience)))
        self._slow = Counter("netaware_page_dropped_viewers", "Viewers that did not keep up.", registry=registry)

    def add_routes(self, app: web.Application) -> None:
        """The document, everything as JSON, and what changes."""
        if self._config.enabled:
            handlers = (self._document, self._overview, self._events)
            for path, handler in zip(("/", *PAGE_VIEWS), handlers, strict=True):
                app.router.add_get(path, handler if self._access is None else self._access.behind(handler))

    async def run(self) -> None:
        """Keep the page true while somebody looks; until cancelled."""
        async with contextlib.AsyncExitStack() as stack:
            prometheus: PrometheusClient | None = None
            if self._config.prometheus_url:
                prometheus = await stack.enter_async_context(PrometheusClient(self._config.prometheus_url))
            while True:
                await self._audience.arrived.wait()
                async with asyncio.TaskGroup() as group:
                    mirroring = group.create_task(self.sources.run(prometheus))
                    # A page of what has not been listed yet would be wrong for a moment.
                    await self.sources.settle()
                    await self._refresh_until_idle()
                    mirroring.cancel()
                self._forget()

    def _forget(self) -> None:
        self._page = self._whole = None
        self._there.clear()

    async def _refresh_until_idle(self) -> None:
        alone_since: float | None = None
        while True:
            began = time.monotonic()
            made = run_best_effort(
                self._compute(), log, "page", broken="the page cannot be made", mended="the page is made again"
            )
            if not await made:
                self._forget()
            took_s = time.monotonic() - began
            await comes(self._changed, RESYNC_S)
            await asyncio.sleep(max(REFRESH_S, LEAST_REST * took_s))
            now = time.monotonic()
            alone_since = None if len(self._audience) else alone_since or now
            if alone_since is not None and now - alone_since >= IDLE_S:
                return

    async def _compute(self) -> None:
        """Compute the page and tell the audience what changed."""
        self._changed.clear()
        snapshot = await self.sources.snapshot(self._clock())
        before = self._page
        version = before.version + 1 if before is not None else int(self._clock() * 1000)
        # At 100 zones this takes a fifth of a second: in a thread the loop goes on answering health checks.
        page, message = await asyncio.to_thread(_make, snapshot, before, version, self._config.runbook_url)
        if message is None:
            return
        self._slow.inc(self._audience.tell(message))
        self._page = page
        self._there.set()

    async def _document(self, _: web.Request) -> web.StreamResponse:
        return web.Response(
            body=document(), content_type="text/html", charset="utf-8", headers=safe_headers(security_policy())
        )

    async def _overview(self, request: web.Request) -> web.StreamResponse:
        if self._audience.full:
            return _no_seat()
        with self._audience.seat():
            _, text = await self._newest_text()
        answer = web.Response(body=text, content_type="application/json", headers=safe_headers())
        if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
            answer.enable_compression(web.ContentCoding.gzip)
        return answer

    async def _newest(self) -> PageData:
        """The page as it is; the first viewer waits until there is one."""
        while self._page is None:
            if not await comes(self._there, FIRST_PAGE_TIMEOUT_S):
                raise web.HTTPServiceUnavailable(text="nothing to show yet\n", headers={"Retry-After": "5"})
        return self._page

    async def _newest_text(self) -> tuple[PageData, bytes]:
        """The same with all of it as JSON, made once for everybody who comes while it is the newest."""
        while True:
            page = await self._newest()
            if self._whole is not None and self._whole[0] == page.version:
                return page, self._whole[1]
            # A page that is told meanwhile would be cleared away by this one, which is older: then once more.
            text = await asyncio.to_thread(_json, page)
            self._whole = page.version, text

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._audience.full:
            return _no_seat()
        with self._audience.seat() as viewer:
            await self._newest()
            stream = web.StreamResponse(
                headers={hdrs.CONTENT_TYPE: "text/event-stream", "X-Accel-Buffering": "no", **safe_headers()}
            )
            await stream.prepare(request)
            page, text = await self._newest_text()
            seen = request.headers.get("Last-Event-ID") or request.query.get("since", "")
            known = seen == str(page.version)
            viewer.start_with(_comment("up to date") if known else _event("page", text, page.version))
            with contextlib.suppress(ConnectionError, TimeoutError):
                while (message := await _next_or_heartbeat(viewer.next)) is not None:
                    # Browsers say that there are no data, where what they show cannot be made any more.
                    if self._page is None:
                        break
                    # A right ends while its owner looks, and so do tokens; the browser comes back with a newer one.
                    if self._access is not None and await self._access.judge(request) != "may":
                        break
                    async with asyncio.timeout(SEND_TIMEOUT_S):
                        await stream.write(message)
        return stream


def _no_seat() -> web.Response:
    return web.Response(status=503, text="too many viewers\n", headers={"Retry-After": "30"})


async def _next_or_heartbeat(next_message: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
    """The next message; after a while without one a beat, by which either side finds a dead connection."""
    try:
        async with asyncio.timeout(HEARTBEAT_S):
            return await next_message()
    except TimeoutError:
        return b"event: beat\ndata: {}\n\n"


def _make(
    snapshot: ClusterSnapshot, before: PageData | None, version: int, runbook: str
) -> tuple[PageData, bytes | None]:
    """The page, and what to tell those who have the one before; None when there is nothing to tell. Pure."""
    page = encode(build(snapshot), version, runbook)
    if before is None:
        # Somebody may have come in the moment in which the last page was forgotten.
        return page, _event("page", _json(page), version)
    told = difference(before, page)
    return page, _event("change", msgspec.json.encode(told), version) if says_something(told) else None


def _json(page: PageData) -> bytes:
    return msgspec.json.encode(plain(page))


def _event(name: str, data: bytes, version: int) -> bytes:
    """One server-sent event; JSON has no line breaks, so one ``data`` line will do."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (version, name.encode(), data)


def _comment(text: str) -> bytes:
    return f": {text}\n\n".encode()
