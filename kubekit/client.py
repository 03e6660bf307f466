"""A thin asyncio Kubernetes client: msgspec structs in and out, a deadline on every request. Its connections are in `kubekit.transport`."""

from __future__ import annotations

import asyncio
import copy
import math
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Any, Self, TypedDict, TypeVar, Unpack

import aiohttp
import msgspec
from aiohttp import BytesPayload
from multidict import CIMultiDict

from kubekit.config import ClusterConfig
from kubekit.credentials import Credential
from kubekit.errors import ApiError
from kubekit.fence import WriteFence
from kubekit.responses import RawPage, WatchEvent, decode_error, decode_response, read_events, translate_errors
from kubekit.transport import ConnectionPool, ConnectionPools, FencedBody
from kubekit.waiting import CooperativeYield
from kubekit.wire import EVICTIONS, PODS, ObjectMeta, Resource

T = TypeVar("T")

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"

DEFAULT_TIMEOUT_S = 15.0
LIST_TIMEOUT_S = 60.0  # for each page
PAGE_SIZE = 500  # as kubectl
WATCH_LIFETIME_S = 300.0
"""Shortest lifetime of a watch; the longest is twice this time, so that watches do not end together."""
MAX_WATCH_SILENCE_S = 85.0
"""Bookmarks arrive once a minute. A watch that is silent for longer is broken, or no object of its kind changed since the server started
(1.36.3 then sends no bookmarks). A new watch costs one request."""
MAX_THROTTLED_ATTEMPTS = 5
"""Maximum number of attempts for a request that the server throttles."""


class Scope(TypedDict, total=False):
    """Limits a list or watch to a namespace and to selected objects; by default it is of all objects of a resource."""

    namespace: str | None
    label_selector: str
    field_selector: str


class Client:
    """Sends requests to one API server. Use as ``async with Client(config) as client``.

    Every method raises UnreachableError if it gets no response in time, ApiError for an error response, MalformedObjectError if the
    response does not have the requested type, and NotLeaderError if the fence does not permit a write.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        user_agent: str = "netaware",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        list_timeout_s: float = LIST_TIMEOUT_S,
    ):
        self.config, self._timeout_s, self._list_timeout_s = config, timeout_s, list_timeout_s
        self._pools = ConnectionPools(config, user_agent)
        self._pool: ConnectionPool | None = None
        self._fence: WriteFence | None = None

    async def __aenter__(self) -> Self:
        self._pools.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pools.close()

    def with_fence(self, fence: WriteFence) -> Self:
        """A copy of this client whose writes need the permission of ``fence``, and time out before that permission ends."""
        return self._copy(_fence=fence)

    def with_dedicated_connection(self) -> Self:
        """A copy of this client with a connection of its own, for requests that must never wait, such as those for a Lease."""
        return self._copy(_pool=ConnectionPool.LEASE)

    def _copy(self, **changes: WriteFence | ConnectionPool) -> Self:
        client = copy.copy(self)
        vars(client).update(changes)
        return client

    async def get(self, resource: Resource, name: str, type_: type[T], *, namespace: str | None = None) -> T:
        """Read one object."""
        return decode_response(await self.request("GET", resource.path(namespace, name)), type_)

    async def list_pages(
        self, resource: Resource, *, limit: int = PAGE_SIZE, from_cache: bool = False, **scope: Unpack[Scope]
    ) -> AsyncIterator[RawPage]:
        """Yield the pages of a list, of ``limit`` objects each. A watch that follows starts from the last page's resourceVersion.

        With ``from_cache`` all objects come from the API server's watch cache, which may be slightly old, in one page.
        """
        params = {"limit": str(limit), **_selector_params(scope)}
        if from_cache:
            params["resourceVersion"] = "0"
        while True:
            path = resource.path(scope.get("namespace"))
            body = await self.request("GET", path, params=params, timeout_s=self._list_timeout_s)
            page = decode_response(body, RawPage)
            yield page
            if not page.metadata.continue_:
                return
            params["continue"] = page.metadata.continue_
            params.pop("resourceVersion", None)

    async def list(self, resource: Resource, type_: type[T], **scope: Unpack[Scope]) -> list[T]:
        """Read all objects in the scope. One malformed object makes the call fail, but not a `kubekit.reflector.Reflector`."""
        objects: list[T] = []
        maybe_yield = CooperativeYield()
        async for page in self.list_pages(resource, **scope):
            for item in page.items:
                objects.append(decode_response(item, type_))
                await maybe_yield()
        return objects

    async def create(self, resource: Resource, body: object, type_: type[T], *, namespace: str | None = None) -> T:
        """POST a new object."""
        return decode_response(await self.request("POST", resource.path(namespace), body=body), type_)

    async def replace(
        self, resource: Resource, name: str, body: object, type_: type[T], *, namespace: str | None = None
    ) -> T:
        """PUT an object, which must have the current resourceVersion."""
        return decode_response(await self.request("PUT", resource.path(namespace, name), body=body), type_)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: object,
        type_: type[T],
        *,
        patch_type: str = MERGE_PATCH,
        namespace: str | None = None,
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> T:
        """PATCH an object; ``patch_type`` is `JSON_PATCH`, `MERGE_PATCH` or `STRATEGIC_PATCH`."""
        params = {"fieldManager": field_manager} if field_manager else {}
        path = resource.path(namespace, name, subresource)
        content = await self.request("PATCH", path, params=params, body=body, content_type=patch_type)
        return decode_response(content, type_)

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
        """Server-side apply as ``field_manager``, which takes over fields of other managers."""
        path = resource.path(namespace, name, subresource)
        params = {"fieldManager": field_manager, "force": "true"}
        content = await self.request("PATCH", path, params=params, body=body, content_type=_APPLY_PATCH)
        return decode_response(content, type_)

    async def evict(self, namespace: str, name: str, uid: str, *, dry_run: bool = False) -> None:
        """Evict the pod with this UID.

        Raises:
            ApiError: not evicted, with status 429 if a PodDisruptionBudget does not allow it.
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
        preconditions: ObjectMeta | None = None,
    ) -> None:
        """Delete one object; does nothing if it does not exist.

        ``grace_period_s`` overrides the object's own grace period. ``preconditions`` are metadata as they were read: if UID or
        resourceVersion have changed since, the call raises ApiError with a conflict.
        """
        # Always send a body, because the fence is checked while a body is sent.
        body: dict[str, Any] = {} if grace_period_s is None else {"gracePeriodSeconds": grace_period_s}
        if preconditions is not None:
            body["preconditions"] = {"uid": preconditions.uid, "resourceVersion": preconditions.resource_version}
        try:
            await self.request("DELETE", resource.path(namespace, name), body=body)
        except ApiError as error:
            if not error.is_not_found:
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
        """Send one request; returns the body of its successful response.

        A request that the server throttles (429 by API priority and fairness) is sent again after its Retry-After, lengthened by up to a
        quarter at random, within the same deadline and `MAX_THROTTLED_ATTEMPTS`. An eviction that a PodDisruptionBudget refuses is not sent again.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout_s or self._timeout_s)
        attempts = 0
        pool = self._pool or (ConnectionPool.READ if method == "GET" else ConnectionPool.WRITE)
        send = partial(self._send, pool, method, path, params=params, body=body, content_type=content_type)
        while True:
            if self._fence is not None and method != "GET":
                self._fence.check_permission()  # before the request waits for a connection
            with translate_errors(method, path):
                async with (
                    asyncio.timeout_at(deadline) as timeout,
                    send(sending_context=partial(self._sending_context, method, timeout)) as response,
                ):
                    data = await response.read()
                    if response.status >= 500:
                        # The response may be of a proxy, which does not know the outcome of a write.
                        raise decode_error(response, data)
            if response.status < 400:
                return data
            error = decode_error(response, data)
            attempts += 1
            wait_s = (error.retry_after_s or 0.0) * random.uniform(1.0, 1.25)
            if not error.is_throttled or not 0 < wait_s < deadline - loop.time() or attempts >= MAX_THROTTLED_ATTEMPTS:
                raise error
            await asyncio.sleep(wait_s)

    @contextmanager
    def _sending_context(self, method: str, timeout: asyncio.Timeout) -> Iterator[None]:
        """Context in which a request is sent. For a write it checks the fence, and ends ``timeout`` with the permission."""
        if self._fence is None or method == "GET":
            yield
            return
        permitted_until = asyncio.get_running_loop().time() + self._fence.check_permission()
        timeout.reschedule(min(timeout.when() or math.inf, permitted_until))
        with self._fence.track_write():
            yield

    @asynccontextmanager
    async def watch(
        self,
        resource: Resource,
        resource_version: str,
        *,
        max_silence_s: float = MAX_WATCH_SILENCE_S,
        send_initial_events: bool = False,
        **scope: Unpack[Scope],
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Watch from ``resource_version`` until the server ends the request, after one to two `WATCH_LIFETIME_S`.

        Yields an iterator of events, which raises SilentWatchError after ``max_silence_s`` without an event or bookmark. With
        ``send_initial_events`` (WatchList) the first events are all existing objects, and then a bookmark with the annotation
        ``k8s.io/initial-events-end``; the timeout is that of a list. A server without WatchList responds with 400 or 422.
        """
        lifetime_s = int(WATCH_LIFETIME_S * random.uniform(1, 2))
        params = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(lifetime_s),
            **_selector_params(scope),
        }
        if send_initial_events:
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        path = resource.path(scope.get("namespace"))
        with translate_errors("WATCH", path):
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._list_timeout_s if send_initial_events else self._timeout_s):
                    response = await stack.enter_async_context(
                        self._send(ConnectionPool.WATCH, "GET", path, params=params)
                    )
                    if response.status >= 400:
                        raise decode_error(response, await response.read())
                yield read_events(response, max_silence_s)

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
        """Send a request; if the server refuses a provider's credential (401), send the request again with a new one.

        ``sending_context`` is entered for each sending, after the wait for a credential and a free connection.
        """
        config, provider = self.config, self.config.credential_provider
        headers: CIMultiDict[str] = CIMultiDict()
        data: bytes | BytesPayload | None = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = msgspec.json.encode(body)
            if self._fence is not None:
                data = FencedBody(data, self._fence)
        for is_last_attempt in (provider is None, True):
            credential = await provider.get_credential() if provider is not None else Credential()
            token = credential.token or (config.token() if config.token is not None else "")
            if token:
                headers["Authorization"] = f"Bearer {token}"
            async with self._pools.request(
                pool,
                method,
                path,
                params=params,
                headers=headers,
                data=data,
                ssl_context=credential.ssl_context,
                sending_context=sending_context,
            ) as response:
                if provider is not None and response.status == 401 and not is_last_attempt:
                    provider.discard(credential)
                    continue
                yield response
                return


def _selector_params(scope: Scope) -> dict[str, str]:
    """Query parameters of the selectors that are not empty."""
    selectors = {"labelSelector": scope.get("label_selector"), "fieldSelector": scope.get("field_selector")}
    return {name: selector for name, selector in selectors.items() if selector}
