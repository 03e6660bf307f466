"""Writes findings as events on the objects that they are about, so that ``kubectl describe`` shows them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from controller.cluster.crds import APPGROUPS, NETWORK_TOPOLOGIES
from controller.diagnosis.diagnose import diagnose
from controller.diagnosis.facts import Facts, build_facts
from controller.diagnosis.findings import EventScope, Finding
from controller.diagnosis.snapshot import ClusterSnapshot
from kubekit import logs
from kubekit.events import MAX_NOTE_BYTES, EventRecorder, make_reference
from kubekit.runtime import run_best_effort
from kubekit.text import cut_bytes
from kubekit.wire import NODES, PODS, Object, ObjectMeta, Resource

log = logs.get("controller.events")

INTERVAL_S = 10.0
"""Shortest pause between diagnoses."""
PAUSE_FACTOR = 20.0
"""Pause after a diagnosis, as a multiple of its duration, because it takes much CPU time in large clusters."""
MAX_EVENTS_AT_ONCE = 20
"""At most this many events are written after a diagnosis, worst findings first; the others follow after the next one."""
_MIN_NOTE_BYTES = 200
"""A fix that leaves fewer bytes for the summary is omitted from the event's note."""

ObjectKey = tuple[Resource, str]
"""A kind, and an object's ``namespace/name`` or a node's name."""
FindingKey = tuple[str, ObjectKey, tuple[str, ...]]
"""Code, object, and affected zones if the finding is about zones, because one object can have several such findings."""
_KIND_BY_SCOPE: dict[EventScope, Resource] = {"pod": PODS, "appgroup": APPGROUPS, "node": NODES}


class FindingEvent(NamedTuple):
    """An event to write about an object."""

    object_key: ObjectKey
    reason: str
    note: str


class FindingEventFilter:
    """Selects the findings that need an event: warnings and worse that are in two consecutive diagnoses and have no event yet.

    While netaware starts, many findings vanish before the second diagnosis. A finding that returns gets another event.
    """

    def __init__(self) -> None:
        # Warnings and worse of the previous diagnosis, and those of them that have an event.
        self._previous_keys: set[FindingKey] = set()
        self._reported_keys: set[FindingKey] = set()

    def select_events(self, findings: Iterable[Finding], facts: Facts) -> list[FindingEvent]:
        """The events that are due after a diagnosis, whose ``findings`` are sorted, worst first; counts them as written."""
        events: list[FindingEvent] = []
        current_keys: set[FindingKey] = set()
        reported_keys: set[FindingKey] = set()
        for finding in findings:
            if finding.severity == "info" or finding.event_scope == "condition":
                continue
            for object_key in find_event_objects(finding, facts):
                key = (finding.code, object_key, finding.affects if finding.event_scope == "zones" else ())
                current_keys.add(key)
                if key in self._reported_keys:
                    reported_keys.add(key)
                elif key in self._previous_keys and key not in reported_keys and len(events) < MAX_EVENTS_AT_ONCE:
                    reported_keys.add(key)
                    # Such as NoNodeCapacity for no-node-capacity; `str.capitalize` would change parts in CamelCase.
                    reason = "".join(part[:1].upper() + part[1:] for part in finding.code.split("-"))
                    events.append(FindingEvent(object_key, reason, _format_note(finding)))
        self._previous_keys, self._reported_keys = current_keys, reported_keys
        return events


class EventReporter:
    """Diagnoses a snapshot regularly, and writes events about new findings, while this replica leads."""

    def __init__(self, read_snapshot: Callable[[], Awaitable[ClusterSnapshot]], recorder: EventRecorder) -> None:
        self._read_snapshot, self._recorder = read_snapshot, recorder
        self._filter = FindingEventFilter()

    async def run(self) -> None:
        """Diagnose and write events until cancelled; a new leader begins without a previous diagnosis."""
        self._filter = FindingEventFilter()
        while True:
            started_s = time.monotonic()
            # An object that a diagnosis cannot handle must not stop the leader's other tasks.
            failure, recovery = "findings cannot be reported as events", "findings are reported as events again"
            await run_best_effort(self.report(), log, "report", failure_message=failure, recovery_message=recovery)
            await asyncio.sleep(max(INTERVAL_S, PAUSE_FACTOR * (time.monotonic() - started_s)))

    async def report(self) -> None:
        """Diagnose once, and write the events that are due."""
        snapshot = await self._read_snapshot()
        for event, metadata in await asyncio.to_thread(find_events, snapshot, self._filter):
            reference = make_reference(event.object_key[0], metadata)
            self._recorder.record("Warning", reference, event.reason, event.note, action="Diagnose")


def find_events(snapshot: ClusterSnapshot, event_filter: FindingEventFilter) -> list[tuple[FindingEvent, ObjectMeta]]:
    """The events that are due, each with the metadata of its object. Slow, so call it in a thread."""
    facts = build_facts(snapshot)
    events = event_filter.select_events(diagnose(facts), facts)
    objects_by_kind: dict[Resource, Iterable[Object]] = {
        PODS: snapshot.pods,
        APPGROUPS: snapshot.groups,
        NODES: snapshot.nodes,
        NETWORK_TOPOLOGIES: snapshot.topologies,
    }
    metadata = {(kind, item.metadata.key): item.metadata for kind, items in objects_by_kind.items() for item in items}
    return [(event, metadata[event.object_key]) for event in events if event.object_key in metadata]


def find_event_objects(finding: Finding, facts: Facts) -> list[ObjectKey]:
    """The objects that get an event about a finding, see `EventScope`; none if there is no NetworkTopology for it."""
    kind = _KIND_BY_SCOPE.get(finding.event_scope)
    if kind is not None:
        return [(kind, key) for key in finding.affects]
    # The finding is about zones or the cluster, so that one object suffices.
    return [(NETWORK_TOPOLOGIES, key) for key in sorted(facts.topology_conditions)[:1]]


def _format_note(finding: Finding) -> str:
    """The event's note, cut to its limit; a fix that does not fit is omitted, because half a command is dangerous."""
    cause = f". Cause: {'; '.join(finding.cause)}" if finding.cause else ""
    text = f"{finding.summary}{cause}"
    fix = f". Fix: {finding.fix[-1]}" if finding.fix else ""
    text_bytes = MAX_NOTE_BYTES - len(fix.encode())
    return cut_bytes(text, text_bytes) + fix if text_bytes >= _MIN_NOTE_BYTES else cut_bytes(text, MAX_NOTE_BYTES)
