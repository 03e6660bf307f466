"""Lists and watches one kind of objects into a store.

Level-based: handlers get the key of an object and both versions. Failures back off with jitter; an expired version lists
again and reports deletions by comparing; one malformed object is skipped, counted and logged, and its list goes on.

Servers that stream lists (WatchList) send objects and changes over one request, from their watch cache. Others are asked for a
list first: small stores from the watch cache, so that ten thousand agents that start at once ask no etcd; large ones in pages, which
older servers read from etcd, because the watch cache ignores ``limit`` there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar, Unpack, overload

import msgspec

from kubekit import logs
from kubekit.answers import WatchEvent
from kubekit.client import Client, Scope
from kubekit.errors import ApiError, KubekitError, SilentWatchError, UnreachableError
from kubekit.stores import KeyedObjects, T
from kubekit.waiting import Backoff, CooperativeYield
from kubekit.wire import DECODE_ERRORS, Object, ObjectMeta, Resource

log = logs.get("kubekit.reflector")

_decode_object = msgspec.json.Decoder(Object).decode

SHORT_WATCH_S = 1.0
NOT_STREAMED = (400, 422)
"""Answers of servers that do not know streamed lists, or have them switched off."""
INITIAL_END = "k8s.io/initial-events-end"
FAILING_S, SILENT_S = 45.0, 120.0
"""A store is stale after this long without a successful watch, and after this long without a message."""


class HasMetadata(Protocol):
    """An object with metadata."""

    @property
    def metadata(self) -> ObjectMeta:
        """Name, namespace, version and labels."""
        ...


Read = TypeVar("Read", bound=HasMetadata)


class Reflector(KeyedObjects[T]):
    """Hold the objects of one resource, optionally of one namespace and selector.

    With a ``transform`` only what it returns is held, so that an object is kept in the form in which it is read, once; objects
    for which it returns None are not held. A change that leaves the result equal calls no handler.

    Attributes:
        synced: set after the first complete list.
        ready: set when synced, or when the API server does not serve the resource, so that a missing CRD delays nothing.
        malformed: objects that could not be decoded, key -> reason.
        failure: why the objects cannot be listed or watched now: an HTTP status as text, or the name of an error; empty when
            they can.
        contact_at: monotonic time of the last message from the server, or of the start.
    """

    @overload
    def __init__(
        self: Reflector[Read],
        client: Client,
        resource: Resource,
        type_: type[Read],
        **scope: Unpack[Scope],
    ) -> None: ...

    @overload
    def __init__(
        self,
        client: Client,
        resource: Resource,
        type_: type[Read],
        *,
        transform: Callable[[Read], T | None],
        **scope: Unpack[Scope],
    ) -> None: ...

    def __init__(
        self,
        client: Client,
        resource: Resource,
        type_: type[Any],
        *,
        transform: Callable[[Any], T | None] | None = None,
        **scope: Unpack[Scope],
    ) -> None:
        super().__init__()
        self.resource, self.synced, self.ready = resource, asyncio.Event(), asyncio.Event()
        self.malformed: dict[str, str] = {}
        self.failure = ""
        self.contact_at = time.monotonic()
        self._client = client
        self._scope = scope
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(type_)
        self._transform = transform
        self._streams = True

    async def run(self) -> None:
        """List and watch until cancelled."""
        backoff, version = Backoff(), ""
        while True:
            started = time.monotonic()
            try:
                if not version:
                    version = await self._first(backoff)
                version = await self._watch(version, backoff)
                if time.monotonic() - started >= SHORT_WATCH_S:
                    backoff.reset()
                    continue
                wait_s = backoff.next()
            except _WatchEndedError as ended:
                if isinstance(ended.cause, SilentWatchError):
                    # The server may have nothing to send; if it is gone, the next request fails.
                    log.debug("watch was silent", resource=self.resource.plural)
                    version = ended.version
                    continue
                # Progress up to the error counts: the next watch starts from there. But a definition that was taken away
                # took its objects along, without an event for each.
                gone = isinstance(ended.cause, ApiError) and ended.cause.not_found
                version, wait_s = "" if gone else ended.version, self._wait_after(ended.cause, backoff)
            except KubekitError as error:
                wait_s = self._wait_after(error, backoff)
                if isinstance(error, ApiError) and error.expired:
                    version = ""
            await asyncio.sleep(wait_s)

    @property
    def staleness(self) -> str:
        """How stale the store is and why; empty if it is not."""
        age_s = time.monotonic() - self.contact_at
        if age_s < (FAILING_S if self.failure else SILENT_S):
            return ""
        why = f" ({self.failure})" if self.failure else ""
        return f"store of {self.resource.plural} is {age_s:.0f} s old{why}"

    @property
    def _topic(self) -> str:
        return f"{self.resource.plural}/{self._scope.get('namespace') or '*'}"

    def _wait_after(self, error: KubekitError, backoff: Backoff) -> float:
        expired = isinstance(error, ApiError) and error.expired
        if isinstance(error, ApiError) and error.not_found:
            self.ready.set()
        if not expired:
            self.failure = str(error.status) if isinstance(error, ApiError) else type(error).__name__
            log.change(self._topic, self.failure, "cannot watch", resource=self.resource.plural, error=str(error))
        return max(error.retry_after_s or 0.0, backoff.next())

    async def _first(self, backoff: Backoff) -> str:
        """Lists; where lists are streamed, also watches until the stream ends. Returns the last version."""
        if self._streams:
            try:
                return await self._stream(backoff)
            except ApiError as error:
                if error.status not in NOT_STREAMED:
                    raise
                self._streams = False
        return await self._list()

    async def _list(self) -> str:
        fresh: dict[str, T] = {}
        malformed: dict[str, str] = {}
        version = ""
        few = _selects_few(self._scope.get("field_selector", ""))
        async for page in self._client.pages(self.resource, **self._scope, from_cache=few):
            for raw in page.items:
                self._take_listed(raw, fresh, malformed)
            version = page.metadata.resource_version
        await self._exchange(fresh, malformed)
        return version

    def _take_listed(self, raw: msgspec.Raw, fresh: dict[str, T], malformed: dict[str, str]) -> None:
        try:
            read = self._decoder.decode(raw)
        except DECODE_ERRORS as error:
            key = self._key_of(raw)
            malformed[key] = str(error)
            self._report_malformed(key, str(error))
            if key in self._items:  # its last good state stays, as it does when a watch brings such an object
                fresh[key] = self._items[key]
            return
        self._forget_malformed(read.metadata.key, malformed)
        item = self._kept(read)
        if item is not None:
            fresh[read.metadata.key] = item
        else:
            fresh.pop(read.metadata.key, None)

    def _kept(self, read: Any) -> T | None:
        item: T | None = read if self._transform is None else self._transform(read)
        return item

    def _differs(self, old: Any, new: Any) -> bool:
        """Whether a repeated list changed an object."""
        if self._transform is not None:
            return bool(old != new)
        return bool(old.metadata.resource_version != new.metadata.resource_version)

    async def _exchange(self, fresh: dict[str, T], malformed: dict[str, str]) -> None:
        """Replace the store's objects by the listed ones, and call handlers for differences.

        Handlers run after each object, with pauses for other tasks; if cancelled in between, handlers have seen all stored objects.
        """
        self.contact_at = time.monotonic()
        self.malformed = malformed
        maybe_yield = CooperativeYield()
        for key in self._items.keys() - fresh.keys():
            self._notify(key, self._items.pop(key), None)
            await maybe_yield()
        for key, item in fresh.items():
            old = self._items.get(key)
            self._items[key] = item
            if old is None or self._differs(old, item):
                self._notify(key, old, item)
            await maybe_yield()
        self.synced.set()
        self.ready.set()

    async def _stream(self, backoff: Backoff) -> str:
        """List and watch in one request, until the watch ends.

        Raises:
            ApiError: among others 422, when the server does not stream lists.
        """
        fresh: dict[str, T] = {}
        malformed: dict[str, str] = {}
        async with self._client.watch(self.resource, "0", **self._scope, initial=True) as events:
            self.contact_at = time.monotonic()
            async for event in events:
                self.contact_at = time.monotonic()
                if event.type in {"ADDED", "MODIFIED"}:
                    self._take_listed(event.object, fresh, malformed)
                elif event.type == "DELETED":
                    fresh.pop(key := self._key_of(event.object), None)
                    self._forget_malformed(key, malformed)
                elif event.type == "ERROR":
                    raise event.to_error()
                else:
                    mark = _decode_object(event.object).metadata
                    if mark.annotation(INITIAL_END) == "true":
                        await self._exchange(fresh, malformed)
                        return await self._follow(events, mark.resource_version, backoff)
        raise UnreachableError(f"WATCH {self.resource.plural}: ended before the list was complete")

    async def _watch(self, version: str, backoff: Backoff) -> str:
        try:
            async with self._client.watch(self.resource, version, **self._scope) as events:
                return await self._follow(events, version, backoff)
        except ApiError as error:
            if error.expired:
                raise
            raise _WatchEndedError(version, error) from error
        except KubekitError as error:
            raise _WatchEndedError(version, error) from error

    async def _follow(self, events: AsyncIterator[WatchEvent], version: str, backoff: Backoff) -> str:
        """Apply events until the watch ends; return the last version.

        Raises:
            _WatchEndedError: it broke off; with the last version.
            ApiError: the version is too old.
        """
        self.contact_at = time.monotonic()
        self.failure = ""
        log.change(self._topic, "", "watching again", resource=self.resource.plural)
        try:
            async for event in events:
                self.contact_at = time.monotonic()
                version = self._take(event) or version
                backoff.reset()
        except KubekitError as error:
            if isinstance(error, ApiError) and error.expired:
                raise
            raise _WatchEndedError(version, error) from error
        return version

    def _take(self, event: WatchEvent) -> str:
        """Apply one event; return its resourceVersion."""
        if event.type == "ERROR":
            raise event.to_error()
        if event.type == "BOOKMARK":
            return _decode_object(event.object).metadata.resource_version
        try:
            read = self._decoder.decode(event.object)
        except DECODE_ERRORS as error:
            return self._take_malformed(event, str(error))
        key = read.metadata.key
        self._forget_malformed(key, self.malformed)
        item = None if event.type == "DELETED" else self._kept(read)
        if item is None:
            old = self._items.pop(key, None)
            if old is not None:
                self._notify(key, old, None)
        else:
            old = self._items.get(key)
            self._items[key] = item
            if self._transform is None or old != item:
                self._notify(key, old, item)
        version: str = read.metadata.resource_version
        return version

    def _take_malformed(self, event: WatchEvent, error: str) -> str:
        """Keep the last good state of an object that can no longer be decoded, unless it was deleted."""
        key = self._key_of(event.object)
        if event.type == "DELETED":
            self._forget_malformed(key, self.malformed)
            old = self._items.pop(key, None)
            if old is not None:
                self._notify(key, old, None)
        else:
            self.malformed[key] = error
            self._report_malformed(key, error)
        with suppress(*DECODE_ERRORS):
            return _decode_object(event.object).metadata.resource_version
        return ""

    @staticmethod
    def _key_of(raw: msgspec.Raw) -> str:
        with suppress(*DECODE_ERRORS):
            return _decode_object(raw).metadata.key
        return "?"

    def _report_malformed(self, key: str, error: str) -> None:
        log.change(f"{self.resource.plural}/{key}", error, "object ignored: malformed", key=key, error=error)

    def _forget_malformed(self, key: str, malformed: dict[str, str]) -> None:
        if malformed.pop(key, None) is not None or key in self.malformed:
            log.change(f"{self.resource.plural}/{key}", "", "object is malformed no longer", key=key)


def _selects_few(field_selector: str) -> bool:
    """Whether only objects of one name or one node are watched."""
    return "=" in field_selector and "!=" not in field_selector


class _WatchEndedError(Exception):
    """A watch ended at ``version``; the cause says why."""

    def __init__(self, version: str, cause: KubekitError) -> None:
        super().__init__(str(cause))
        self.version, self.cause = version, cause
