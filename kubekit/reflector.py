"""A local copy of one kind of objects, kept true by list and watch.

Level-based: handlers learn which key changed and read the store. Failures back off with jitter; an expired version lists
again and reports deletions by comparing; one malformed object is skipped, counted and logged, and its list goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

import msgspec

from kubekit import logs
from kubekit.backoff import Backoff
from kubekit.client import Client, Status, WatchEvent
from kubekit.errors import ApiError, KubekitError
from kubekit.wire import Object, ObjectMeta, Resource

log = logs.get("kubekit.reflector")

SHORT_WATCH_S = 1.0


class HasMetadata(Protocol):
    """What every cached object must have."""

    @property
    def metadata(self) -> ObjectMeta:
        """Name, namespace, version and labels."""
        ...


T = TypeVar("T", bound=HasMetadata)
Handler = Callable[[str, T | None, T | None], None]


class Reflector(Generic[T]):
    """Mirror the objects of one resource, optionally of one namespace and selector.

    Attributes:
        synced: set after the first complete list.
        settled: set when synced, or when the API server does not know the resource (its definition is not installed): who
            can do without these objects need not wait for them.
        malformed: how many objects could not be read and are therefore missing from the store, by key.
        failure: why the objects cannot be listed or watched now: an HTTP status as text, or the name of an error; empty when
            they can.
        contact_at: monotonic time of the last sign of life from the server.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        type_: type[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> None:
        self.resource, self.synced, self.settled = resource, asyncio.Event(), asyncio.Event()
        self.malformed: dict[str, str] = {}
        self.failure = ""
        self.contact_at = 0.0
        self._client, self._namespace = client, namespace
        self._label_selector, self._field_selector = label_selector, field_selector
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(type_)
        self._items: dict[str, T] = {}
        self._handlers: list[Handler[T]] = []

    def subscribe(self, handler: Handler[T]) -> None:
        """Call ``handler(key, old, new)`` after each change; ``new`` is None for a deletion, ``old`` for an addition.

        A handler must be quick and must not raise: it only notes the key, typically in a work queue.
        """
        self._handlers.append(handler)

    @property
    def items(self) -> Mapping[str, T]:
        """The mirrored objects by key (``namespace/name`` or ``name``). Changes under the caller's feet at every await."""
        return self._items

    def get(self, key: str) -> T | None:
        """Return one object, or None."""
        return self._items.get(key)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items.values())

    def __len__(self) -> int:
        return len(self._items)

    async def run(self) -> None:
        """Mirror until cancelled."""
        backoff, version = Backoff(), ""
        while True:
            started = time.monotonic()
            try:
                if not version:
                    version = await self._list()
                    self.synced.set()
                    self.settled.set()
                version = await self._watch(version, backoff)
                if time.monotonic() - started >= SHORT_WATCH_S:
                    backoff.reset()
                    continue
                wait_s = backoff.next()
            except _WatchEndedError as ended:
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
    def _topic(self) -> str:
        return f"{self.resource.plural}/{self._namespace or '*'}"

    def _wait_after(self, error: KubekitError, backoff: Backoff) -> float:
        asked_s = error.retry_after_s or 0.0 if isinstance(error, ApiError) else 0.0
        expired = isinstance(error, ApiError) and error.expired
        if isinstance(error, ApiError) and error.not_found:
            self.settled.set()
        if not expired:
            self.failure = str(error.status) if isinstance(error, ApiError) else type(error).__name__
            log.change(self._topic, self.failure, "cannot watch", resource=self.resource.plural, error=str(error))
        return max(asked_s, backoff.next())

    async def _list(self) -> str:
        fresh: dict[str, T] = {}
        malformed: dict[str, str] = {}
        version = ""
        async for page in self._client.pages(
            self.resource,
            namespace=self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
        ):
            for raw in page.items:
                try:
                    item = self._decoder.decode(raw)
                except msgspec.MsgspecError as error:
                    key = self._key_of(raw)
                    malformed[key] = str(error)
                    self._report_malformed(key, str(error))
                    if key in self._items:  # its last good state stays, as it does when a watch brings such an object
                        fresh[key] = self._items[key]
                    continue
                fresh[item.metadata.key] = item
            version = page.metadata.resource_version
        self.contact_at = time.monotonic()
        self.malformed = malformed
        before, self._items = self._items, fresh
        for key in before.keys() - fresh.keys():
            self._notify(key, before[key], None)
        for key, item in fresh.items():
            old = before.get(key)
            if old is None or old.metadata.resource_version != item.metadata.resource_version:
                self._notify(key, old, item)
        return version

    async def _watch(self, version: str, backoff: Backoff) -> str:
        try:
            async with self._client.watch(
                self.resource,
                version,
                namespace=self._namespace,
                label_selector=self._label_selector,
                field_selector=self._field_selector,
            ) as events:
                self.contact_at = time.monotonic()
                self.failure = ""
                log.change(self._topic, "", "watching again", resource=self.resource.plural)
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
            raise msgspec.json.decode(event.object, type=Status).to_error(500)
        if event.type == "BOOKMARK":
            return msgspec.json.decode(event.object, type=Object).metadata.resource_version
        try:
            item = self._decoder.decode(event.object)
        except msgspec.MsgspecError as error:
            return self._take_malformed(event, str(error))
        key = item.metadata.key
        self.malformed.pop(key, None)
        if event.type == "DELETED":
            old = self._items.pop(key, None)
            if old is not None:
                self._notify(key, old, None)
        else:
            old = self._items.get(key)
            self._items[key] = item
            self._notify(key, old, item)
        return item.metadata.resource_version

    def _take_malformed(self, event: WatchEvent, error: str) -> str:
        """An object that we can read no more: its last good state stays in the store, unless it was deleted."""
        key = self._key_of(event.object)
        if event.type == "DELETED":
            self.malformed.pop(key, None)
            old = self._items.pop(key, None)
            if old is not None:
                self._notify(key, old, None)
        else:
            self.malformed[key] = error
            self._report_malformed(key, error)
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(event.object, type=Object).metadata.resource_version
        return ""

    @staticmethod
    def _key_of(raw: msgspec.Raw) -> str:
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(raw, type=Object).metadata.key
        return "?"

    def _report_malformed(self, key: str, error: str) -> None:
        log.change(f"{self.resource.plural}/{key}", error, "object ignored: malformed", key=key, error=error)

    def _notify(self, key: str, old: T | None, new: T | None) -> None:
        for handler in self._handlers:
            handler(key, old, new)


class _WatchEndedError(Exception):
    """A watch broke off at ``version``; the cause tells why."""

    def __init__(self, version: str, cause: KubekitError) -> None:
        super().__init__(str(cause))
        self.version, self.cause = version, cause


async def wait_synced(*reflectors: Reflector[T], timeout_s: float | None = None) -> None:
    """Wait until all have listed once.

    Raises:
        TimeoutError: not all did in time.
    """
    async with asyncio.timeout(timeout_s):
        for reflector in reflectors:
            await reflector.synced.wait()
