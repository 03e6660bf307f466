"""The page's HTTP routes: the document, and its data.

Data is computed on request, at most once a second, from the manager's stores; viewers open no watches.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec
from aiohttp import hdrs, web

from controller.diagnosis.snapshot import ClusterSnapshot
from controller.page.access import PageAuthorizer
from controller.page.config import PageConfig
from controller.page.document import build_csp, build_document, make_headers
from controller.page.encoding import encode_overview
from controller.page.snapshots import SnapshotReader
from controller.views.overview import build_overview
from kubekit import logs
from kubekit.runtime import run_best_effort
from kubekit.text import escape_control_characters
from netperf.contract import PAGE_DATA_PATH

log = logs.get("controller.page")

MIN_REFRESH_INTERVAL_S = 1.0
PAUSE_FACTOR = 4.0
"""Pause after a computation, as a multiple of its duration, so that the page takes at most a fifth of the replica's time."""


class PageData(NamedTuple):
    """The answer to a request for data: the header ETag, a hash of the data without ``readAt``, and JSON, compressed by gzip."""

    etag: str
    body: bytes


class Page:
    """Serves the page and its data, on every replica, leader or not.

    Args:
        config: the section ``page``.
        snapshots: reads snapshots of the cluster.
        authorizer: checks requests with ``page.auth: token``.
        clock: unix seconds.
    """

    def __init__(
        self,
        config: PageConfig,
        snapshots: SnapshotReader,
        authorizer: PageAuthorizer,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._snapshots, self._authorizer, self._clock = config, snapshots, authorizer, clock
        self._data: PageData | None = None
        self._next_refresh_at = float("-inf")
        self._refresh_lock = asyncio.Lock()

    def add_routes(self, app: web.Application) -> None:
        """Add the routes of the document and its data, if the page is enabled."""
        if self._config.enabled:
            for path, handler in (("/", self._serve_document), (PAGE_DATA_PATH, self._serve_overview)):
                needs_token = self._config.auth == "token"
                app.router.add_get(path, self._authorizer.require_authorization(handler) if needs_token else handler)

    async def _serve_document(self, _: web.Request) -> web.StreamResponse:
        headers = make_headers(build_csp())
        return web.Response(body=build_document(), content_type="text/html", charset="utf-8", headers=headers)

    async def _serve_overview(self, request: web.Request) -> web.StreamResponse:
        data = await self._current_data()
        headers = {**make_headers(), hdrs.ETAG: data.etag}
        if request.headers.get(hdrs.IF_NONE_MATCH) == data.etag:
            return web.Response(status=304, headers=headers)
        if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
            headers[hdrs.CONTENT_ENCODING] = "gzip"
            return web.Response(body=data.body, content_type="application/json", headers=headers)
        return web.Response(body=gzip.decompress(data.body), content_type="application/json", headers=headers)

    async def _current_data(self) -> PageData:
        """The newest data, computed anew when due, once for concurrent requests; HTTPServiceUnavailable if the last computation failed."""
        async with self._refresh_lock:
            if time.monotonic() >= self._next_refresh_at:
                # A failure must end neither the page nor the manager.
                failure, recovery = "the page cannot be computed", "the page is computed again"
                if not await run_best_effort(
                    self._refresh(), log, "page", failure_message=failure, recovery_message=recovery
                ):
                    self._data = None
            if self._data is None:
                text = "the page cannot be computed; the controller's log has the reason\n"
                raise web.HTTPServiceUnavailable(text=text, headers=make_headers())
            return self._data

    async def _refresh(self) -> None:
        started_at = time.monotonic()
        try:
            snapshot = await self._snapshots.read(self._clock())
            # The wait for the API server does not count, because it takes no CPU time.
            started_at = time.monotonic()
            # In a thread, so that the event loop can answer health checks.
            self._data = await asyncio.to_thread(_compute_page_data, snapshot)
        finally:
            ended_at = time.monotonic()
            self._next_refresh_at = ended_at + max(MIN_REFRESH_INTERVAL_S, PAUSE_FACTOR * (ended_at - started_at))


def _compute_page_data(snapshot: ClusterSnapshot) -> PageData:
    """The data of a snapshot. Its time ``readAt``, from which the page computes ages, is in the body but not in the ETag."""
    text = escape_control_characters(msgspec.json.encode(encode_overview(build_overview(snapshot))).decode())
    content = text.encode()
    body = b'{"readAt":%s,%s' % (msgspec.json.encode(snapshot.now_s), content.removeprefix(b"{"))
    return PageData(f'"{hashlib.sha256(content).hexdigest()[:16]}"', gzip.compress(body, compresslevel=6))
