"""Writes Kubernetes events, deduplicated, from a bounded queue.

Repeated events increase the count of the first event (events.k8s.io series). A count is written at most once a minute, by a repetition,
so repetitions within a minute of the last write may be missing. A full queue drops and counts its oldest event.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

import msgspec
from prometheus_client import CollectorRegistry, Counter

from kubekit import logs
from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import ApiError, KubekitError, UnreachableError
from kubekit.text import cut_bytes, make_printable
from kubekit.wire import EVENTS, ObjectMeta, Resource, format_time

log = logs.get("kubekit.events")

EventType = Literal["Normal", "Warning"]
MAX_NOTE_BYTES = 1024
"""Longest note in bytes, by the API server's validation."""
_MAX_FIELD_LENGTH = 128
"""Longest action, reason and reporting instance in bytes, by the same validation; ours are ASCII."""
LOSS_CAUSES = ("queue-full", "refused", "unreachable")
"""Values of the metric's label ``cause``; ``refused`` is any error but UnreachableError."""
_SERIES_INTERVAL_S = 60.0
"""Shortest time between two writes of a series' count."""
_MAX_REMEMBERED_EVENTS = 2000
"""Limits memory. A repetition of a forgotten event becomes a new event."""
_MAX_NAME_PREFIX_LENGTH = 200
"""Longest part of the object's name in an event's name, which the API server limits to 253 characters."""


class ObjectReference(msgspec.Struct, frozen=True, rename="camel"):
    """The object that an event is about."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


def make_reference(resource: Resource, metadata: ObjectMeta) -> ObjectReference:
    """The reference to an object with this metadata."""
    return ObjectReference(resource.api_version, resource.kind, metadata.name, metadata.namespace, metadata.uid)


class _PendingEvent(msgspec.Struct, frozen=True):
    regarding: ObjectReference
    type: EventType
    reason: str
    action: str
    note: str
    occurred_at_s: float


class _WrittenEvent(msgspec.Struct):
    name: str
    namespace: str
    count: int
    written_at_s: float


class EventRecorder:
    """Sends events in the background, while `run` is running.

    Args:
        client: sends the events.
        component: the reporting controller of the events.
        instance: the reporting instance, such as the node.
        registry: for the metric of lost events; None for no export.
        clock: unix seconds.
        max_pending: length of the queue.
    """

    def __init__(
        self,
        client: Client,
        *,
        component: str,
        instance: str,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], float] = time.time,
        max_pending: int = 500,
    ) -> None:
        self._client, self._component, self._instance, self._clock = client, component, instance, clock
        self._queue: asyncio.Queue[_PendingEvent] = asyncio.Queue(max_pending)
        self._written_by_content: OrderedDict[tuple[ObjectReference, str, str], _WrittenEvent] = OrderedDict()
        self._lost_counter = Counter(
            "netaware_events_lost",
            f"Events that were not written: {', '.join(LOSS_CAUSES)}.",
            ["cause"],
            registry=registry,
        )
        # Export the counter from 0, because rate() misses a first increment.
        for cause in LOSS_CAUSES:
            self._lost_counter.labels(cause)

    def record(self, type_: EventType, regarding: ObjectReference, reason: str, note: str, *, action: str = "") -> None:
        """Queue an event; ``action`` is by default the reason."""
        note = cut_bytes(make_printable(note), MAX_NOTE_BYTES)
        event = _PendingEvent(regarding, type_, reason, action or reason, note, self._clock())
        if self._queue.full():
            self._queue.get_nowait()
            self._lost_counter.labels("queue-full").inc()
        self._queue.put_nowait(event)

    async def run(self) -> None:
        """Send until cancelled. An event that cannot be sent is counted, not retried."""
        while True:
            event = await self._queue.get()
            try:
                await self._send(event)
            except KubekitError as error:
                self._lost_counter.labels("unreachable" if isinstance(error, UnreachableError) else "refused").inc()
                log.log_change("send", error.kind, "event not sent", reason=event.reason, error=str(error))
            else:
                log.log_change("send", "", "events are sent again")

    async def _send(self, event: _PendingEvent) -> None:
        key = event.regarding, event.reason, event.note
        written = self._written_by_content.get(key)
        if written is not None:
            written.count += 1
            self._written_by_content.move_to_end(key)
            if event.occurred_at_s - written.written_at_s < _SERIES_INTERVAL_S:
                return
            if await self._update_series(written, event):
                written.written_at_s = event.occurred_at_s
                return
        # Not by `self._clock`, because names must differ even if a test's clock stands still.
        name = f"{event.regarding.name[:_MAX_NAME_PREFIX_LENGTH].rstrip('.-')}.{time.time_ns():x}"
        namespace = event.regarding.namespace or "default"
        # Responses are not decoded, because a malformed one does not mean that the event is lost.
        await self._client.request("POST", EVENTS.path(namespace), body=self._build_body(event, name, namespace))
        self._written_by_content[key] = _WrittenEvent(name, namespace, 1, event.occurred_at_s)
        if len(self._written_by_content) > _MAX_REMEMBERED_EVENTS:
            self._written_by_content.popitem(last=False)

    async def _update_series(self, written: _WrittenEvent, event: _PendingEvent) -> bool:
        """Write the count of a repeated event; returns False if the API server no longer has it."""
        observed_at = format_time(event.occurred_at_s, with_microseconds=True)
        series = {"count": written.count, "lastObservedTime": observed_at}
        path = EVENTS.path(written.namespace, written.name)
        try:
            await self._client.request("PATCH", path, body={"series": series}, content_type=MERGE_PATCH)
        except ApiError as error:
            if error.is_not_found:  # the server keeps events for an hour
                return False
            raise
        return True

    def _build_body(self, event: _PendingEvent, name: str, namespace: str) -> dict[str, object]:
        return {
            **EVENTS.type_meta,
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": format_time(event.occurred_at_s, with_microseconds=True),
            "reportingController": self._component,
            "reportingInstance": self._instance[:_MAX_FIELD_LENGTH],
            "action": event.action[:_MAX_FIELD_LENGTH],
            "reason": event.reason[:_MAX_FIELD_LENGTH],
            "regarding": event.regarding,
            "note": event.note,
            "type": event.type,
        }
