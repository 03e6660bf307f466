"""Lists and watches one kind of objects into a store.

Requests are repeated after failures, with back-off and jitter. An expired resourceVersion causes a relist, which finds deleted objects by
comparison. A malformed object keeps its last good state, and is counted and logged.

Servers that stream lists (WatchList) send objects and changes in response to one request, from their watch cache. From other servers the
reflector requests a list first. A list that is limited to one name or node comes from the watch cache, so that ten thousand agents that
start at once cause no reads in etcd. Other lists come in pages, which older servers read from etcd.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, TypeVar, Unpack, overload

import msgspec

from kubekit import logs
from kubekit.client import Client, Scope
from kubekit.errors import ApiError, KubekitError, SilentWatchError, UnreachableError
from kubekit.responses import WatchEvent
from kubekit.stores import Store, T
from kubekit.waiting import Backoff, CooperativeYield
from kubekit.wire import DECODE_ERRORS, Object, ObjectMeta, Resource

log = logs.get("kubekit.reflector")

_decode_object = msgspec.json.Decoder(Object).decode

SHORT_WATCH_S = 1.0
"""If a watch, with its list, ends sooner, the next one waits as after a failure."""
STREAMING_UNSUPPORTED_STATUSES = (400, 422)
"""Responses of servers without streamed lists."""
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
UNKNOWN_KEY = "?"
"""Key, in `Store.decode_error_by_key`, of objects whose metadata cannot be decoded either."""
STALE_IF_FAILING_S = 45.0
"""A store is stale after this time without a message from the server, if the last request failed."""
STALE_IF_SILENT_S = 120.0
"""A store is stale after this time without a message from the server, if no request failed."""


ObjectT = TypeVar("ObjectT", bound=Object)


class Reflector(Store[T]):
    """A store of the objects of one resource, optionally of one namespace and selector.

    A ``transform`` converts each object; None leaves the object out. Handlers are called only if the converted object changed, or without
    ``transform`` the resourceVersion.

    Attributes:
        resource: the kind of the objects.
        failure: why no watch runs: HTTP status, as text, or name of the error; empty after the start of a watch. Expiry is not a failure.
        last_contact_at_s: monotonic time of the last message from the server, or of the start.
    """

    @overload
    def __init__(
        self: Reflector[ObjectT], client: Client, resource: Resource, type_: type[ObjectT], **scope: Unpack[Scope]
    ) -> None: ...

    @overload
    def __init__(
        self,
        client: Client,
        resource: Resource,
        type_: type[ObjectT],
        *,
        transform: Callable[[ObjectT], T | None],
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
        super().__init__(synced=asyncio.Event(), ready=asyncio.Event())
        self.resource, self.failure, self.last_contact_at_s = resource, "", time.monotonic()
        self._client, self._scope, self._transform = client, scope, transform
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(type_)
        self._supports_streaming = True
        self._resource_version = ""  # of the last list or event; empty before a list

    async def run(self) -> None:
        """List and watch until cancelled."""
        backoff, self._resource_version = Backoff(), ""
        while True:
            started_at = time.monotonic()
            try:
                if not self._resource_version:
                    await self._list_or_stream(backoff)
                await self._watch(backoff)
                if time.monotonic() - started_at >= SHORT_WATCH_S:
                    backoff.reset()
                    continue
                wait_s = backoff.next_delay_s()
            except KubekitError as error:
                has_listed = bool(self._resource_version)
                if isinstance(error, SilentWatchError) and has_listed:
                    # The server may have nothing to send. If it is down, the next request fails.
                    log.debug("watch was silent", resource=self.resource.plural)
                    continue
                self._record_failure(error)
                wait_s = max(error.retry_after_s or 0.0, backoff.next_delay_s())
                if error.is_not_found and not has_listed and self.synced.is_set():
                    await self._replace({}, {}, "")
                if error.is_expired or error.is_not_found:
                    # After a 404 (the CRD was deleted) objects may be gone without DELETED events.
                    self._resource_version = ""
            await asyncio.sleep(wait_s)

    @property
    def staleness(self) -> str:
        """Text with the age of the store and `failure`; empty if the store is not stale."""
        age_s = time.monotonic() - self.last_contact_at_s
        if age_s < (STALE_IF_FAILING_S if self.failure else STALE_IF_SILENT_S):
            return ""
        reason = f" ({self.failure})" if self.failure else ""
        return f"store of {self.resource.plural} is {age_s:.0f} s old{reason}"

    @property
    def _log_topic(self) -> str:
        return f"{self.resource.plural}/{self._scope.get('namespace') or '*'}"

    def _record_failure(self, error: KubekitError) -> None:
        """Set and log `failure`, unless the resourceVersion expired.

        After a 404 the store is `ready` and not stale, because a resource that is not served has no objects.
        """
        if error.is_not_found:
            self.ready.set()
            self.last_contact_at_s = time.monotonic()
        if not error.is_expired:
            self.failure = error.kind
            log.log_change(
                self._log_topic, self.failure, "cannot watch", resource=self.resource.plural, error=str(error)
            )

    async def _list_or_stream(self, backoff: Backoff) -> None:
        """List the objects. If the server streams lists, also watch until the watch ends."""
        if self._supports_streaming:
            try:
                return await self._stream_list_and_watch(backoff)
            except ApiError as error:
                if error.status not in STREAMING_UNSUPPORTED_STATUSES or self._resource_version:
                    raise
                self._supports_streaming = False
        return await self._list()

    async def _list(self) -> None:
        listed_by_key: dict[str, T] = {}
        error_by_key: dict[str, str] = {}
        resource_version = ""
        field_selector = self._scope.get("field_selector", "")
        from_cache = "=" in field_selector and "!=" not in field_selector  # It requires one name or node.
        async for page in self._client.list_pages(self.resource, **self._scope, from_cache=from_cache):
            for raw in page.items:
                self._add_listed(raw, listed_by_key, error_by_key)
            resource_version = page.metadata.resource_version
        await self._replace(listed_by_key, error_by_key, resource_version)

    def _add_listed(self, raw: msgspec.Raw, listed_by_key: dict[str, T], error_by_key: dict[str, str]) -> None:
        try:
            decoded = self._decoder.decode(raw)
        except DECODE_ERRORS as error:
            key = self._report_malformed(raw, error, error_by_key)
            if key in self._items:  # keep its last good state
                listed_by_key[key] = self._items[key]
            return
        self._forget_malformed(decoded.metadata.key, error_by_key)
        item = self._apply_transform(decoded)
        if item is not None:
            listed_by_key[decoded.metadata.key] = item
        else:
            listed_by_key.pop(decoded.metadata.key, None)

    def _apply_transform(self, decoded: Any) -> T | None:
        item: T | None = decoded if self._transform is None else self._transform(decoded)
        return item

    def _should_notify(self, old: Any, new: Any) -> bool:
        if old is None or new is None or self._transform is not None:
            return bool(old != new)
        return bool(old.metadata.resource_version != new.metadata.resource_version)

    async def _replace(self, listed_by_key: dict[str, T], error_by_key: dict[str, str], resource_version: str) -> None:
        """Replace the store's objects by ``listed_by_key``, and call handlers for the differences.

        Yields to the event loop between objects. If it is cancelled then, handlers have been called for every change of the store.
        """
        self.last_contact_at_s = time.monotonic()
        self.decode_error_by_key = error_by_key
        maybe_yield = CooperativeYield()
        for key in [*(self._items.keys() - listed_by_key.keys()), *listed_by_key]:
            self._set(key, listed_by_key.get(key))
            await maybe_yield()
        self._resource_version = resource_version
        self.synced.set()
        self.ready.set()

    async def _stream_list_and_watch(self, backoff: Backoff) -> None:
        """List and watch in one request, until the watch ends. Raises ApiError if that is unsupported."""
        listed_by_key: dict[str, T] = {}
        error_by_key: dict[str, str] = {}
        async with self._client.watch(self.resource, "0", **self._scope, send_initial_events=True) as events:
            self.last_contact_at_s = time.monotonic()
            async for event in events:
                self.last_contact_at_s = time.monotonic()
                if event.type in {"ADDED", "MODIFIED"}:
                    self._add_listed(event.object, listed_by_key, error_by_key)
                elif event.type == "DELETED":
                    key = self._metadata_of(event.object).key
                    listed_by_key.pop(key, None)
                    self._forget_malformed(key, error_by_key)
                elif event.type == "ERROR":
                    raise event.to_error()
                elif event.type == "BOOKMARK":
                    bookmark = self._metadata_of(event.object)
                    if bookmark.annotation(INITIAL_EVENTS_END) == "true":
                        await self._replace(listed_by_key, error_by_key, bookmark.resource_version)
                        return await self._apply_events(events, backoff)
        raise UnreachableError(f"WATCH {self.resource.plural}: ended before the list was complete")

    async def _watch(self, backoff: Backoff) -> None:
        async with self._client.watch(self.resource, self._resource_version, **self._scope) as events:
            await self._apply_events(events, backoff)

    async def _apply_events(self, events: AsyncIterator[WatchEvent], backoff: Backoff) -> None:
        """Apply events until the watch ends."""
        self.last_contact_at_s = time.monotonic()
        self.failure = ""
        log.log_change(self._log_topic, "", "watching again", resource=self.resource.plural)
        async for event in events:
            self.last_contact_at_s = time.monotonic()
            self._resource_version = self._apply_event(event) or self._resource_version
            backoff.reset()

    def _apply_event(self, event: WatchEvent) -> str:
        """Apply one event; returns its resourceVersion, empty if that cannot be decoded.

        An object that cannot be decoded keeps its last good state until it is deleted.
        """
        if event.type == "ERROR":
            raise event.to_error()
        metadata, item = ObjectMeta(), None
        try:
            if event.type in {"ADDED", "MODIFIED"}:
                decoded = self._decoder.decode(event.object)
                metadata, item = decoded.metadata, self._apply_transform(decoded)
            else:
                metadata = _decode_object(event.object).metadata
        except DECODE_ERRORS as error:
            self._report_malformed(event.object, error, self.decode_error_by_key)
            return self._metadata_of(event.object).resource_version
        if event.type != "BOOKMARK":
            self._forget_malformed(metadata.key, self.decode_error_by_key)
            self._set(metadata.key, item)
        return metadata.resource_version

    @staticmethod
    def _metadata_of(raw: msgspec.Raw) -> ObjectMeta:
        """The metadata of an object; empty if it cannot be decoded."""
        with suppress(*DECODE_ERRORS):
            return _decode_object(raw).metadata
        return ObjectMeta()

    def _report_malformed(self, raw: msgspec.Raw, error: Exception, error_by_key: dict[str, str]) -> str:
        """Add to ``error_by_key``, and log, an object that cannot be decoded; returns its key, or `UNKNOWN_KEY`."""
        key, text = self._metadata_of(raw).key or UNKNOWN_KEY, str(error)
        error_by_key[key] = text
        log.log_change(f"{self.resource.plural}/{key}", text, "object ignored: malformed", key=key, error=text)
        return key

    def _forget_malformed(self, key: str, error_by_key: dict[str, str]) -> None:
        if error_by_key.pop(key, None) is not None or key in self.decode_error_by_key:
            log.log_change(f"{self.resource.plural}/{key}", "", "object is not malformed any more", key=key)
