"""Writes findings as events on the objects that they are about, so that ``kubectl describe`` shows them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from controller.cluster.crds import APPGROUPS, NETWORK_TOPOLOGIES
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import EventScope, Finding
from controller.diagnosis.reading import read_facts
from controller.diagnosis.rules import diagnose
from controller.diagnosis.snapshot import ClusterSnapshot
from kubekit import logs
from kubekit.events import MAX_NOTE_BYTES, EventRecorder, reference_to
from kubekit.runtime import run_best_effort
from kubekit.text import cut_bytes
from kubekit.wire import NODES, PODS, Object, ObjectMeta, Resource

log = logs.get("controller.events")

INTERVAL_S = 10.0
PAUSE_RATIO = 20.0
"""Pause after a diagnosis, as a multiple of its time, because it takes much processor time in large clusters."""
MAX_EVENTS_AT_ONCE = 20
"""At most this many events are written after one diagnosis, worst findings first; the others follow after the next."""
_MIN_NOTE_BYTES = 200
"""A command that leaves fewer bytes for the summary is omitted from the event's note."""

ObjectKey = tuple[Resource, str]
"""A kind, and an object's ``namespace/name`` or a node's name."""
FindingKey = tuple[str, ObjectKey, tuple[str, ...]]
"""Code, object, and for findings about zones the affected ones, because one object can have several such findings."""
_KINDS: dict[EventScope, Resource] = {"pod": PODS, "appgroup": APPGROUPS, "node": NODES}


class FindingEvent(NamedTuple):
    """An event to write about an object."""

    about: ObjectKey
    reason: str
    note: str


class FindingEventFilter:
    """Selects the findings that need an event: those in two consecutive diagnoses that have no event yet.

    During a start many findings vanish before the second diagnosis. A finding that vanishes and returns gets another event.
    """

    def __init__(self) -> None:
        self._has_event: dict[FindingKey, bool] = {}

    def update(self, findings: Iterable[Finding], facts: Facts) -> list[FindingEvent]:
        """The events that are due now.

        Args:
            findings: of one diagnosis, worst first.
            facts: of the same diagnosis.
        """
        events: list[FindingEvent] = []
        has_event: dict[FindingKey, bool] = {}
        for finding in findings:
            if finding.severity == "info" or finding.event_scope == "condition":
                continue
            for about in objects_of(finding, facts):
                key = (finding.code, about, finding.affects if finding.event_scope == "zones" else ())
                before = self._has_event.get(key)
                is_due = before is False and not has_event.get(key) and len(events) < MAX_EVENTS_AT_ONCE
                if is_due:
                    # NoNodeCapacity for no-node-capacity.
                    reason = "".join(part[:1].upper() + part[1:] for part in finding.code.split("-"))
                    events.append(FindingEvent(about, reason, _note(finding)))
                has_event[key] = is_due or before is True or has_event.get(key, False)
        self._has_event = has_event
        return events


class EventReporter:
    """Writes an event for each new finding, on the objects that it is about, while this replica leads.

    Args:
        read_snapshot: returns the current snapshot.
        recorder: of the leader.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        read_snapshot: Callable[[], Awaitable[ClusterSnapshot]],
        recorder: EventRecorder,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_snapshot, self._recorder, self._clock = read_snapshot, recorder, clock
        self._filter = FindingEventFilter()

    async def run(self) -> None:
        """Diagnose and write events until cancelled."""
        self._filter = FindingEventFilter()
        while True:
            started = self._clock()
            # An object that a diagnosis cannot handle must not stop the leader's other tasks.
            failing, working = "findings cannot be reported as events", "findings are reported as events again"
            await run_best_effort(self.report(), log, "report", failure_message=failing, recovery_message=working)
            await asyncio.sleep(max(INTERVAL_S, PAUSE_RATIO * (self._clock() - started)))

    async def report(self) -> None:
        """Diagnose once, and write the events that are due."""
        snapshot = await self._read_snapshot()
        for event, metadata in await asyncio.to_thread(events_of, snapshot, self._filter):
            self._recorder.record_warning(
                reference_to(event.about[0], metadata), event.reason, event.note, action="Diagnose"
            )


def events_of(snapshot: ClusterSnapshot, event_filter: FindingEventFilter) -> list[tuple[FindingEvent, ObjectMeta]]:
    """Events that are due, each with the metadata of its object. Slow; for a thread."""
    facts = read_facts(snapshot)
    events = event_filter.update(diagnose(facts), facts)
    objects: dict[Resource, Iterable[Object]] = {
        PODS: snapshot.pods,
        APPGROUPS: snapshot.groups,
        NODES: snapshot.nodes,
        NETWORK_TOPOLOGIES: snapshot.topologies,
    }
    metadata = {(kind, item.metadata.key): item.metadata for kind, items in objects.items() for item in items}
    return [(event, metadata[event.about]) for event in events if event.about in metadata]


def objects_of(finding: Finding, facts: Facts) -> list[ObjectKey]:
    """The objects that a finding is about: the affected ones, or for zones and the cluster a NetworkTopology, if there is one."""
    kind = _KINDS.get(finding.event_scope)
    if kind is not None:
        return [(kind, key) for key in finding.affects]
    return [(NETWORK_TOPOLOGIES, key) for key in sorted(facts.topologies)[:1]]


def _note(finding: Finding) -> str:
    """The event's note, cut to its limit; a command that does not fit is omitted."""
    cause = f". Cause: {'; '.join(finding.cause)}" if finding.cause else ""
    text, fix = f"{finding.summary}{cause}", f". Fix: {finding.fix[-1]}" if finding.fix else ""
    text_bytes = MAX_NOTE_BYTES - len(fix.encode())
    return cut_bytes(text, text_bytes) + fix if text_bytes >= _MIN_NOTE_BYTES else cut_bytes(text, MAX_NOTE_BYTES)
