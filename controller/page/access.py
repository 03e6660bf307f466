"""Authentication and authorization of the page: TokenReview and SubjectAccessReview.

A page token is valid for the page's own audience only, so a stolen token is useless elsewhere. Its user needs the right to reach
the page through the API server's proxy: ``get services/proxy`` of the controller's Service.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from aiohttp import hdrs, web

from controller.page.document import make_headers
from kubekit import logs
from kubekit.client import Client
from kubekit.errors import KubekitError
from kubekit.wire import Resource, Wire
from netperf.contract import CONTROLLER, PAGE_AUDIENCE, PAGE_TOKEN_HEADER

log = logs.get("controller.page.access")

TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", is_namespaced=False)
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", is_namespaced=False
)
CACHE_TTL_S = 10.0
"""A revoked right works for at most this time."""
MAX_CACHED_DECISIONS = 256
MAX_CONCURRENT_REVIEWS = 4
MAX_TOKEN_LENGTH = 16 << 10

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Decision = Literal["allowed", "unauthenticated", "forbidden", "unavailable"]
"""``unauthenticated``: the token is absent, invalid or for another audience; ``forbidden``: its user lacks the right;
``unavailable``: the API server did not review the token."""
_REFUSALS: Mapping[Decision, tuple[int, str]] = {
    "unauthenticated": (401, f"run `kubectl netaware page`, or send a token for {PAGE_AUDIENCE}"),
    "forbidden": (403, f"the token's user needs the right to get services/proxy of {CONTROLLER}"),
    "unavailable": (503, "access cannot be checked; the controller's log has the reason"),
}


class _Review(Wire, frozen=True):
    status: dict[str, Any] = {}


class PageAuthorizer:
    """Authorizes requests by the API server, and caches its decisions for `CACHE_TTL_S`.

    Args:
        client: with the right to create TokenReviews and SubjectAccessReviews.
        namespace: namespace of the page's Service.
        clock: monotonic seconds.
    """

    def __init__(self, client: Client, namespace: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._namespace, self._clock = client, namespace, clock
        # SHA-256 of a token (tokens are not kept) -> time of the decision, and the decision.
        self._decisions: dict[bytes, tuple[float, Decision]] = {}
        self._limiter = asyncio.Semaphore(MAX_CONCURRENT_REVIEWS)

    def require_authorization(self, handler: Handler) -> Handler:
        """A handler that answers only authorized requests by ``handler``, and others with an error."""

        async def answer_if_authorized(request: web.Request) -> web.StreamResponse:
            decision = await self.decide_access(request)
            if decision == "allowed":
                return await handler(request)
            status, text = _REFUSALS[decision]
            headers = make_headers()
            if status == 401:
                headers[hdrs.WWW_AUTHENTICATE] = f'Netaware audience="{PAGE_AUDIENCE}"'
            return web.Response(status=status, text=f"{text}\n", headers=headers)

        return answer_if_authorized

    async def decide_access(self, request: web.Request) -> Decision:
        """The API server's decision about the token of a request; up to `CACHE_TTL_S` old, except ``unavailable``."""
        token = request.headers.get(PAGE_TOKEN_HEADER, "")
        if not token or len(token) > MAX_TOKEN_LENGTH:
            return "unauthenticated"
        key = hashlib.sha256(token.encode()).digest()
        decided_at, decision = self._decisions.get(key, (float("-inf"), "unavailable"))
        if self._clock() - decided_at < CACHE_TTL_S:
            return decision
        try:
            async with self._limiter:
                decision = await self._review_token(token)
        except KubekitError as error:
            log.log_change("reviews", error.kind, "access review failed", error=error)
            return "unavailable"
        log.log_change("reviews", "", "access reviews succeed again")
        self._decisions.pop(key, None)
        self._decisions[key] = (self._clock(), decision)
        while len(self._decisions) > MAX_CACHED_DECISIONS:
            del self._decisions[next(iter(self._decisions))]
        return decision

    async def _review_token(self, token: str) -> Decision:
        body = {**TOKEN_REVIEWS.type_meta, "spec": {"token": token, "audiences": [PAGE_AUDIENCE]}}
        token_status = (await self._client.create(TOKEN_REVIEWS, body, _Review)).status
        # An authenticator without support for audiences returns none; its tokens were not issued for the page.
        if not token_status.get("authenticated") or PAGE_AUDIENCE not in (token_status.get("audiences") or ()):
            return "unauthenticated"
        user = token_status.get("user") or {}
        attributes = {"verb": "get", "resource": "services", "subresource": "proxy", "name": CONTROLLER}
        spec = {name: user[name] for name in ("uid", "groups", "extra") if user.get(name)}
        spec |= {"user": user.get("username", ""), "resourceAttributes": {**attributes, "namespace": self._namespace}}
        access = await self._client.create(ACCESS_REVIEWS, {**ACCESS_REVIEWS.type_meta, "spec": spec}, _Review)
        return "allowed" if access.status.get("allowed") is True else "forbidden"
