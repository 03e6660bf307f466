"""A thin asyncio Kubernetes client: msgspec structs in and out, a deadline on every request.

Twelve verbs and no generated models. Each watch has a connection of its own; reads, writes and the Lease have theirs, so that
nothing waits behind a watch, and no lease behind a list. See `kubekit.transport`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import partial
from typing import Any, Self, TypedDict, TypeVar, Unpack

import aiohttp
import msgspec
from aiohttp import BytesPayload
from multidict import CIMultiDict

from kubekit.answers import RawPage, WatchEvent, decode_answer, error_of, read_events, translated
from kubekit.config import ClusterConfig
from kubekit.credentials import Credential
from kubekit.errors import ApiError
from kubekit.transport import ConnectionPool, ConnectionPools, FencedBody, WriteGuard
from kubekit.waiting import CooperativeYield
from kubekit.wire import EVICTIONS, PODS, ObjectMeta, Resource

T = TypeVar("T")

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

DEFAULT_TIMEOUT_S = 15.0
LIST_TIMEOUT_S = 60.0
PAGE_SIZE = 500
WATCH_LIFETIME_S = 300.0
WATCH_SILENCE_S = 85.0
"""Bookmarks come once a minute: a watch that is silent for longer hangs at something between the server and us, or watches a kind
of which nothing changed since the server started (seen on 1.36.3). Opening it again costs one request."""
MAX_THROTTLED_TRIES = 5
"""How often a request that the server throttled (429) is sent again, while its deadline allows."""


class Scope(TypedDict, total=False):
    """The objects of a resource to list or watch; all by default."""

    namespace: str | None
    label_selector: str
    field_selector: str


class Client:
    """Requests to one API server. Use as ``async with Client(config) as client``. ``has_answer`` is set after the first answer.

    Every method raises UnreachableError without an answer in time, ApiError for an error answer, MalformedObjectError when
    the answer does not have the asked type.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        user_agent: str = "netaware",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        list_timeout_s: float = LIST_TIMEOUT_S,
    ):
        self.config, self.has_answer = config, False
        self._user_agent, self._timeout_s, self._list_timeout_s = user_agent, timeout_s, list_timeout_s
        self._pools = ConnectionPools(config, user_agent)
        self._pool: ConnectionPool | None = None
        self._guard: WriteGuard | None = None

    async def __aenter__(self) -> Self:
        self._pools.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pools.close()

    def fenced(self, guard: WriteGuard) -> Client:
        """The same client with writes that ask ``guard`` first, and end before its permission does."""
        return self._twin(guard, self._pool)

    def with_dedicated_connection(self) -> Client:
        """The same client on a connection of its own, for requests that must never wait, such as a Lease's."""
        return self._twin(self._guard, ConnectionPool.LEASE)

    def _twin(self, guard: WriteGuard | None, pool: ConnectionPool | None) -> Client:
        patience = {"timeout_s": self._timeout_s, "list_timeout_s": self._list_timeout_s}
        twin = Client(self.config, user_agent=self._user_agent, **patience)
        twin._pools, twin._guard, twin._pool = self._pools, guard, pool
        return twin

    async def get(self, resource: Resource, name: str, type_: type[T], *, namespace: str | None = None) -> T:
        """Read one object."""
        return decode_answer(await self.request("GET", resource.path(namespace, name)), type_)

    async def pages(
        self,
        resource: Resource,
        *,
        limit: int = PAGE_SIZE,
        from_cache: bool = False,
        **scope: Unpack[Scope],
    ) -> AsyncIterator[RawPage]:
        """List in pages; a watch continues from the last page's resourceVersion.

        ``from_cache`` takes what the API server has in memory, which may be a moment old, and comes in one page.
        """
        params = {"limit": str(limit), **_selector_params(scope)}
        if from_cache:
            params["resourceVersion"] = "0"
        while True:
            body = await self.request(
                "GET", resource.path(scope.get("namespace")), params=params, timeout_s=self._list_timeout_s
            )
            page = decode_answer(body, RawPage)
            yield page
            if not page.metadata.continue_:
                return
            params["continue"] = page.metadata.continue_
            params.pop("resourceVersion", None)

    async def list(self, resource: Resource, type_: type[T], **scope: Unpack[Scope]) -> list[T]:
        """Read all objects that match. For caches use a Reflector, which survives malformed objects."""
        objects: list[T] = []
        maybe_yield = CooperativeYield()
        async for page in self.pages(resource, **scope):
            for item in page.items:
                objects.append(decode_answer(item, type_))
                await maybe_yield()
        return objects

    async def create(self, resource: Resource, body: object, type_: type[T], *, namespace: str | None = None) -> T:
        """POST a new object."""
        return decode_answer(await self.request("POST", resource.path(namespace), body=body), type_)

    async def replace(
        self,
        resource: Resource,
        name: str,
        body: object,
        type_: type[T],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> T:
        """PUT an object whose resourceVersion guards against lost updates."""
        return decode_answer(await self.request("PUT", resource.path(namespace, name, subresource), body=body), type_)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: object,
        type_: type[T],
        *,
        kind: str = MERGE_PATCH,
        namespace: str | None = None,
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> T:
        """PATCH an object; ``kind`` is one of the ``*_PATCH`` constants, and `APPLY_PATCH` takes fields over from others."""
        params = {"fieldManager": field_manager} if field_manager else {}
        if kind == APPLY_PATCH:
            params["force"] = "true"
        path = resource.path(namespace, name, subresource)
        return decode_answer(await self.request("PATCH", path, params=params, body=body, content_type=kind), type_)

    async def apply(
        self,
        resource: Resource,
        name: str,
        body: object,
        type_: type[T],
        *,
        field_manager: str,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> T:
        """Server-side apply under ``field_manager``."""
        place = {"namespace": namespace, "subresource": subresource, "field_manager": field_manager}
        return await self.patch(resource, name, body, type_, kind=APPLY_PATCH, **place)

    async def evict(self, namespace: str, name: str, uid: str, *, dry_run: bool = False) -> None:
        """Evict a pod, as PodDisruptionBudgets allow; another pod that has its name by now is left alone.

        Raises:
            KubekitError: it was refused, with 429 among others, or no answer came.
        """
        body = {
            **EVICTIONS.type_meta,
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        params = {"dryRun": "All"} if dry_run else {}
        await self.request("POST", PODS.path(namespace, name, "eviction"), params=params, body=body)

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        grace_period_s: int | None = None,
        seen: ObjectMeta | None = None,
    ) -> None:
        """Delete one object; one that is gone already counts as deleted.

        Args:
            resource: its kind.
            name: its name.
            namespace: of a namespaced kind.
            grace_period_s: that it is given to end; its own by default.
            seen: delete it only as it was then; a conflict where it has changed since.
        """
        # Even where there is nothing to say: what is sent without a body asks for no permission when it is sent.
        body: dict[str, Any] = {} if grace_period_s is None else {"gracePeriodSeconds": grace_period_s}
        if seen is not None:
            body["preconditions"] = {"uid": seen.uid, "resourceVersion": seen.resource_version}
        try:
            await self.request("DELETE", resource.path(namespace, name), body=body)
        except ApiError as error:
            if not error.not_found:
                raise

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
    ) -> bytes:
        """Send one request and return the body of its successful answer.

        What the server had no room for (429, priority and fairness) is sent again after the time that it asks for, within the
        same deadline; a refused eviction is an answer and not lack of room.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout_s or self._timeout_s)
        attempts = 0
        pool = self._pool or (ConnectionPool.READ if method == "GET" else ConnectionPool.WRITE)
        send = partial(self._send, pool, method, path, params=params, body=body, content_type=content_type)
        while True:
            if self._guard is not None and method != "GET":
                self._guard.check()  # who may not write does not wait for a turn either
            answer, data = await self._answer_by(deadline, method, path, send)
            if answer.status < 400:
                return data
            error, attempts = error_of(answer, data), attempts + 1
            wait_s = (error.retry_after_s or 0.0) * random.uniform(1.0, 1.25)
            if not error.throttled or not 0 < wait_s < deadline - loop.time() or attempts >= MAX_THROTTLED_TRIES:
                raise error
            await asyncio.sleep(wait_s)

    async def _answer_by(
        self,
        deadline: float,
        method: str,
        path: str,
        send: Callable[..., AbstractAsyncContextManager[aiohttp.ClientResponse]],
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """Send once by a time of the loop's clock, and read the answer."""
        with translated(method, path):
            async with (
                asyncio.timeout_at(deadline) as timeout,
                send(sending_context=partial(self._writing, method, timeout)) as answer,
            ):
                data = await answer.read()
                self.has_answer = True
                if answer.status >= 500:
                    # A proxy may have answered, which does not know the outcome.
                    raise error_of(answer, data)
        return answer, data

    @contextmanager
    def _writing(self, method: str, timeout: asyncio.Timeout) -> Iterator[None]:
        """Around what is sent: asks for permission, and ends it with that."""
        if self._guard is None or method == "GET":
            yield
            return
        ends_at, limit_at = timeout.when(), asyncio.get_running_loop().time() + self._guard.check()
        timeout.reschedule(limit_at if ends_at is None else min(ends_at, limit_at))
        with self._guard.writing():
            yield

    @asynccontextmanager
    async def watch(
        self,
        resource: Resource,
        resource_version: str,
        *,
        silence_s: float = WATCH_SILENCE_S,
        initial: bool = False,
        **scope: Unpack[Scope],
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """One watch request, from ``resource_version`` until the server ends it after one to two `WATCH_LIFETIME_S`.

        Yields an iterator of events; it raises SilentWatchError when nothing came for ``silence_s``, since bookmarks arrive
        every minute or so. With ``initial`` the events begin with all objects there are, ended by a bookmark with the
        annotation ``k8s.io/initial-events-end`` (WatchList); a server that does not serve this answers 422. It may take as long to
        answer as a list: with a short timeout, a client of a busy server would lose its place in the queue and start again.
        """
        asked_s = int(WATCH_LIFETIME_S * random.uniform(1, 2))
        params = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(asked_s),
            **_selector_params(scope),
        }
        if initial:
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        path = resource.path(scope.get("namespace"))
        with translated("WATCH", path):
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(LIST_TIMEOUT_S if initial else self._timeout_s):
                    answer = await stack.enter_async_context(
                        self._send(ConnectionPool.WATCH, "GET", path, params=params)
                    )
                    if answer.status >= 400:
                        raise error_of(answer, await answer.read())
                yield read_events(answer, silence_s)

    @asynccontextmanager
    async def _send(
        self,
        pool: ConnectionPool,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        sending_context: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send once; twice when a log-in gave the credential and the server refused it, which may have been revoked.

        ``begin`` is around each time, once a connection may be taken and the credential is known.
        """
        config = self.config
        sent: CIMultiDict[str] = CIMultiDict()
        data: bytes | BytesPayload | None = None
        if body is not None:
            sent["Content-Type"] = content_type
            data = msgspec.json.encode(body)
            if self._guard is not None:
                data = FencedBody(data, self._guard)
        for last in (config.login is None, True):
            credential = await config.login.current() if config.login is not None else Credential()
            token = credential.token or (config.token() if config.token is not None else "")
            if token:
                sent["Authorization"] = f"Bearer {token}"
            async with self._pools.request(
                pool,
                method,
                path,
                params=params,
                headers=sent,
                data=data,
                tls=credential.tls,
                sending_context=sending_context,
            ) as answer:
                if answer.status == 401 and config.login is not None and not last:
                    config.login.refuse(credential)
                    continue
                yield answer
                return


def _selector_params(scope: Scope) -> dict[str, str]:
    """Query parameters of the selectors that are not empty."""
    wanted = {"labelSelector": scope.get("label_selector"), "fieldSelector": scope.get("field_selector")}
    return {name: selector for name, selector in wanted.items() if selector}
