"""Who may see the page where it asks for a log-in: the API server says whose a token is, and whether he may.

A token is good for one audience, ours, so that one which is stolen from a browser opens nothing but the page. The right that it
needs is the one to reach the page through the API server's proxy: ``get services/proxy`` of our Service.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

from aiohttp import hdrs, web

from controller.page.document import safe_headers
from kubekit import logs
from kubekit.client import Client
from kubekit.errors import KubekitError
from kubekit.wire import Resource, Wire
from netperf.contract import CONTROLLER, PAGE_AUDIENCE, PAGE_TOKEN_HEADER

log = logs.get("controller.page.access")

TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
FRESH_S = 10.0
"""So long an answer of the API server is used again."""
STALE_S = 300.0
"""So long a good answer is used while the API server gives none: a page that shows what is wrong must not go with it."""
MOST_KEPT, MOST_AT_ONCE, LONGEST_TOKEN = 256, 4, 16 << 10

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Answer = Literal["may", "unknown", "may-not", "nobody-knows"]
"""He may; the token is nobody's, or not for us; it is somebody's who may not; the API server does not answer."""
_REFUSALS: Mapping[Answer, tuple[int, str]] = {
    "unknown": (401, f"log in: open the page by `kubectl netaware page`, or send a token for {PAGE_AUDIENCE}"),
    "may-not": (403, f"this needs the right to get services/proxy of {CONTROLLER}"),
    "nobody-knows": (503, "the API server does not say who may see this"),
}


class _User(Wire, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(Wire, frozen=True):
    authenticated: bool = False
    user: _User = _User()
    audiences: list[str] | None = None


class _TokenReview(Wire, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(Wire, frozen=True):
    allowed: bool = False


class _AccessReview(Wire, frozen=True):
    status: _AccessStatus = _AccessStatus()


class Access:
    """Asks the API server, and remembers its answers for seconds.

    Args:
        client: with the right to create TokenReviews and SubjectAccessReviews.
        namespace: of the page's Service.
        clock: monotonic seconds.
    """

    def __init__(self, client: Client, namespace: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._namespace, self._clock = client, namespace, clock
        # Of tokens only their hashes are kept.
        self._answers: dict[bytes, tuple[float, Answer]] = {}
        self._asking: dict[bytes, asyncio.Task[Answer]] = {}
        self._places = asyncio.Semaphore(MOST_AT_ONCE)

    def behind(self, handler: Handler) -> Handler:
        """The same door for those who may pass."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            answer = await self.judge(request)
            if answer == "may":
                return await handler(request)
            status, text = _REFUSALS[answer]
            headers = safe_headers()
            if status == 401:
                headers[hdrs.WWW_AUTHENTICATE] = f'Netaware audience="{PAGE_AUDIENCE}"'
            return web.Response(status=status, text=f"{text}\n", headers=headers)

        return guarded

    async def judge(self, request: web.Request) -> Answer:
        """The API server's answer about the token of a request."""
        token = request.headers.get(PAGE_TOKEN_HEADER, "")
        if not token or len(token) > LONGEST_TOKEN:
            return "unknown"
        key = hashlib.sha256(token.encode()).digest()
        at, answer = self._answers.get(key, (float("-inf"), "nobody-knows"))
        if self._clock() - at < FRESH_S:
            return answer
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.ensure_future(self._ask(key, token))
            asking.add_done_callback(lambda _: self._asking.pop(key, None))
        # Several doors wait for one answer; that one of them goes must not take it from the others.
        return await asyncio.shield(asking)

    async def _ask(self, key: bytes, token: str) -> Answer:
        try:
            async with self._places:
                answer = await self._review(token)
        except KubekitError as error:
            log.change("reviews", type(error).__name__, "cannot ask who may see the page", error=error)
            at, before = self._answers.get(key, (float("-inf"), "nobody-knows"))
            return before if before == "may" and self._clock() - at < STALE_S else "nobody-knows"
        log.change("reviews", "answered", "asks the API server who may see the page")
        self._answers.pop(key, None)
        self._answers[key] = (self._clock(), answer)
        while len(self._answers) > MOST_KEPT:
            del self._answers[next(iter(self._answers))]
        return answer

    async def _review(self, token: str) -> Answer:
        body = {**TOKEN_REVIEWS.type_meta, "spec": {"token": token, "audiences": [PAGE_AUDIENCE]}}
        review = (await self._client.create(TOKEN_REVIEWS, body, _TokenReview)).status
        # An authenticator that knows no audiences leaves them out: what it accepts was not issued for us.
        if not review.authenticated or PAGE_AUDIENCE not in (review.audiences or ()):
            return "unknown"
        user = review.user
        what = {
            "namespace": self._namespace,
            "verb": "get",
            "resource": "services",
            "subresource": "proxy",
            "name": CONTROLLER,
        }
        asked = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups or [],
            "extra": user.extra or {},
            "resourceAttributes": what,
        }
        access = await self._client.create(ACCESS_REVIEWS, {**ACCESS_REVIEWS.type_meta, "spec": asked}, _AccessReview)
        return "may" if access.status.allowed else "may-not"
