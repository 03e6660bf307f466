"""A thin Kubernetes client: one aiohttp session, a deadline on every request, msgspec structs in and out.

Twelve verbs and no generated models. Watches are lines of JSON and may exceed 128 KB each, hence the read buffer.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, Self, TypeVar

import aiohttp
import msgspec

from kubekit.config import ClusterConfig
from kubekit.errors import ApiError, MalformedObjectError, UnreachableError
from kubekit.wire import ListMeta, Resource, Wire

T = TypeVar("T")

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

DEFAULT_TIMEOUT_S = 15.0
LIST_TIMEOUT_S = 60.0
PAGE_SIZE = 500
WATCH_READ_BUFFER = 2**21


class WriteGuard(Protocol):
    """Asked before every write; raises NotLeaderError when this process must not write now."""

    def check(self) -> float:
        """Return for how many seconds writing is still allowed."""
        ...


class WatchEvent(msgspec.Struct, gc=False, frozen=True):
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, with the object undecoded."""

    type: str
    object: msgspec.Raw


class _Cause(Wire, frozen=True):
    reason: str = ""


class _Details(Wire, frozen=True):
    causes: list[_Cause] | None = None
    retry_after_seconds: int = 0


class Status(Wire, frozen=True):
    """metav1.Status, the API server's way to say what went wrong."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None

    def to_error(self, fallback_code: int, retry_after: str | None = None) -> ApiError:
        """The same as an exception; ``retry_after`` is the HTTP header, in seconds."""
        details = self.details or _Details()
        wait = float(retry_after) if retry_after and retry_after.isdigit() else details.retry_after_seconds
        return ApiError(
            self.code or fallback_code,
            self.reason,
            self.message,
            retry_after_s=float(wait) if wait else None,
            causes=tuple(c.reason for c in details.causes or ()),
        )


class RawPage(msgspec.Struct, gc=False, frozen=True):
    """One page of a list, items undecoded, so that one malformed object fails alone."""

    items: list[msgspec.Raw] = []
    metadata: ListMeta = ListMeta()


class Client:
    """Requests to one API server. Use as ``async with Client(config) as client``.

    Every method raises UnreachableError without an answer in time, ApiError for an error answer, MalformedObjectError when
    the answer does not have the asked type.
    """

    def __init__(self, config: ClusterConfig, *, user_agent: str = "netaware", timeout_s: float = DEFAULT_TIMEOUT_S):
        self.config = config
        self._user_agent, self._timeout_s = user_agent, timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._guard: WriteGuard | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self.config.tls or True, limit=64, keepalive_timeout=60)
        self._session = aiohttp.ClientSession(
            connector=connector,
            read_bufsize=WATCH_READ_BUFFER,
            headers={"User-Agent": self._user_agent, "Accept": "application/json"},
            auto_decompress=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def fenced(self, guard: WriteGuard) -> Client:
        """The same connection, but every write asks ``guard`` first and ends before its permission does."""
        twin = Client(self.config, user_agent=self._user_agent, timeout_s=self._timeout_s)
        twin._session, twin._guard = self._session, guard
        return twin

    async def get(self, resource: Resource, name: str, type_: type[T], *, namespace: str | None = None) -> T:
        """Read one object."""
        return _decode(await self.request("GET", resource.path(namespace, name)), type_)

    async def pages(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = PAGE_SIZE,
    ) -> AsyncIterator[RawPage]:
        """List in pages; the last page's resourceVersion is where a watch goes on."""
        params = {"limit": str(limit), **selector_params(label_selector, field_selector)}
        while True:
            body = await self.request("GET", resource.path(namespace), params=params, timeout_s=LIST_TIMEOUT_S)
            page = _decode(body, RawPage)
            yield page
            if not page.metadata.continue_:
                return
            params["continue"] = page.metadata.continue_

    async def list(
        self,
        resource: Resource,
        type_: type[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> list[T]:
        """Read all objects that match. For caches use a Reflector, which survives malformed objects."""
        found: list[T] = []
        async for page in self.pages(
            resource, namespace=namespace, label_selector=label_selector, field_selector=field_selector
        ):
            found += [_decode(item, type_) for item in page.items]
        return found

    async def create(self, resource: Resource, body: object, type_: type[T], *, namespace: str | None = None) -> T:
        """POST a new object."""
        return _decode(await self.request("POST", resource.path(namespace), body=body), type_)

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
        return _decode(await self.request("PUT", resource.path(namespace, name, subresource), body=body), type_)

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
        """PATCH an object; ``kind`` is one of the ``*_PATCH`` constants."""
        params = {"fieldManager": field_manager} if field_manager else None
        path = resource.path(namespace, name, subresource)
        return _decode(await self.request("PATCH", path, params=params, body=body, content_type=kind), type_)

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
        force: bool = True,
        dry_run: bool = False,
    ) -> T:
        """Server-side apply under ``field_manager``; ``force`` takes fields over from other managers."""
        params = {"fieldManager": field_manager, "force": str(force).lower()}
        if dry_run:
            params["dryRun"] = "All"
        path = resource.path(namespace, name, subresource)
        return _decode(await self.request("PATCH", path, params=params, body=body, content_type=APPLY_PATCH), type_)

    async def delete(
        self, resource: Resource, name: str, *, namespace: str | None = None, grace_period_s: int | None = None
    ) -> None:
        """Delete one object; one that is gone already counts as deleted."""
        body = None if grace_period_s is None else {"gracePeriodSeconds": grace_period_s}
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
        """Send one request and return the body of its successful answer."""
        limit_s = timeout_s or self._timeout_s
        if self._guard is not None and method != "GET":
            limit_s = min(limit_s, self._guard.check())
        with _translated(method, path):
            timeout = aiohttp.ClientTimeout(limit_s)
            async with self._send(method, path, timeout, params=params, body=body, content_type=content_type) as answer:
                data = await answer.read()
                if answer.status >= 400:
                    raise _error_of(answer, data)
                return data

    @asynccontextmanager
    async def watch(
        self,
        resource: Resource,
        resource_version: str,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        lifetime_s: float = 300.0,
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """One watch request, from ``resource_version`` until the server ends it after one to two ``lifetime_s``.

        Yields an iterator of events. Bookmarks arrive every minute or so; a connection silent for longer than the whole
        lifetime is taken for dead.
        """
        asked_s = int(lifetime_s * random.uniform(1, 2))
        params = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(asked_s),
            **selector_params(label_selector, field_selector),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=asked_s + 30)
        with _translated("WATCH", resource.path(namespace)):
            async with self._send("GET", resource.path(namespace), timeout, params=params) as answer:
                if answer.status >= 400:
                    raise _error_of(answer, await answer.read())
                yield _events(answer)

    def _send(
        self,
        method: str,
        path: str,
        timeout: aiohttp.ClientTimeout,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        if self._session is None:
            msg = "use the client as `async with Client(config) as client`"
            raise RuntimeError(msg)
        headers: dict[str, str] = {}
        if self.config.token is not None:
            headers["Authorization"] = f"Bearer {self.config.token()}"
        if body is not None:
            headers["Content-Type"] = content_type
        data = None if body is None else msgspec.json.encode(body)
        url = self.config.server + path
        return self._session.request(method, url, params=params, headers=headers, data=data, timeout=timeout)


def selector_params(label_selector: str, field_selector: str) -> dict[str, str]:
    """Query parameters of the selectors that are not empty."""
    return {k: v for k, v in (("labelSelector", label_selector), ("fieldSelector", field_selector)) if v}


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[WatchEvent]:
    decoder = msgspec.json.Decoder(WatchEvent)
    async for line in answer.content:
        if line.strip():
            yield decoder.decode(line)


def _decode(data: bytes | msgspec.Raw, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.MsgspecError as error:
        msg = f"cannot read {type_.__name__}: {error}"
        raise MalformedObjectError(msg) from error


def _error_of(answer: aiohttp.ClientResponse, data: bytes) -> ApiError:
    try:
        status = msgspec.json.decode(data, type=Status)
    except msgspec.MsgspecError:
        status = Status(answer.status, "", data[:200].decode("utf-8", "replace").strip() or str(answer.reason))
    return status.to_error(answer.status, answer.headers.get("Retry-After"))


class _translated:  # noqa: N801 - reads as a word in `with _translated(...)`
    """Turn what aiohttp and asyncio raise into UnreachableError, with the request's name."""

    def __init__(self, method: str, path: str) -> None:
        self._what = f"{method} {path}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if isinstance(error, TimeoutError):
            raise UnreachableError(f"{self._what}: no answer in time") from error
        if isinstance(error, aiohttp.ClientError | ssl.SSLError | OSError | asyncio.IncompleteReadError):
            raise UnreachableError(f"{self._what}: {str(error) or type(error).__name__}") from error
        if isinstance(error, msgspec.MsgspecError):
            raise MalformedObjectError(f"{self._what}: {error}") from error
        if isinstance(error, ValueError) and "chunk" in str(error).lower():
            raise UnreachableError(f"{self._what}: {error}") from error
