"""Events for findings, by the leader: each finding once on the objects that it is about, so that ``kubectl describe`` shows it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from controller.cluster.resources import APPGROUPS, NETWORK_TOPOLOGIES
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import Finding
from controller.diagnosis.reading import read_facts
from controller.diagnosis.rules import diagnose
from controller.diagnosis.snapshot import ClusterSnapshot
from kubekit import logs
from kubekit.events import NOTE_LIMIT, EventRecorder, reference
from kubekit.runtime import run_best_effort
from kubekit.text import cut
from kubekit.wire import NODES, PODS, Object, ObjectMeta, Resource

log = logs.get("controller.events")

INTERVAL_S = 10.0
REST = 20.0
"""Rest after a diagnosis, as a multiple of its time: half a second of a processor at 10,000 nodes and 30,000 pods."""
MAX_AT_ONCE = 20
"""At most this many events are written after one diagnosis, the worst first; the others follow after the next."""
_SAID_BY_CONDITIONS = ("topology-", "spec-", "pairs-stale", "dependency-cycle", "namespace-not-", "costs-violated")
"""A condition of the object says the same and has an event of its own when it changes (controller.cluster.status_writing)."""
_OF_PODS = (
    "unknown-workload",
    "other-scheduler",
    "no-scheduler",
    "gated-too-long",
    "no-node-",
    "limits-not-enforced",
)
_SEVERAL_PER_OBJECT = ("zones-unreachable", "pairs-unmeasured", "zone-without-agent")
"""Several such findings are about one object; each has its own event."""
_SHORTEST_NOTE = 200

ObjectReference = tuple[Resource, str]
"""A kind, and the key of an object: ``namespace/name``, or a node's name."""


class FindingEvent(NamedTuple):
    """An event to write: ``reason`` in one word, ``note`` in a sentence with what fixes it."""

    about: ObjectReference
    reason: str
    note: str


class ReportedFindings:
    """Remembers the findings of the last diagnosis, and which of them have had their event.

    A finding may be over by the next diagnosis, as for everything that is starting; it gets its event when it is found twice. One
    that is over is forgotten, and gets another event when it comes back.
    """

    def __init__(self) -> None:
        self._reported: dict[tuple[str, ObjectReference, tuple[str, ...]], bool] = {}

    def update(self, findings: Iterable[Finding], facts: Facts) -> list[FindingEvent]:
        """The events that are due now.

        Args:
            findings: of one moment, the worst first.
            facts: of the same moment.
        """
        events: list[FindingEvent] = []
        reported: dict[tuple[str, ObjectReference, tuple[str, ...]], bool] = {}
        for finding in filter(has_event, findings):
            for about in objects_of(finding, facts):
                key = (finding.code, about, finding.affects if finding.code in _SEVERAL_PER_OBJECT else ())
                known = self._reported.get(key)
                due = known is False and not reported.get(key) and len(events) < MAX_AT_ONCE
                if due:
                    events.append(FindingEvent(about, event_reason(finding.code), _note(finding)))
                reported[key] = due or known is True or reported.get(key, False)
        self._reported = reported
        return events


class EventReporter:
    """``run`` while leading.

    Args:
        look: reads a snapshot of now.
        recorder: of the leader.
        clock: a clock that does not jump, seconds.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[ClusterSnapshot]],
        recorder: EventRecorder,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look, self._recorder, self._clock = look, recorder, clock
        self._reported = ReportedFindings()

    async def run(self) -> None:
        """Diagnose and write events until cancelled."""
        self._reported = ReportedFindings()
        while True:
            began = self._clock()
            # An object that a diagnosis cannot handle must not end the leader.
            broken, recovered = "findings cannot be reported as events", "findings are reported as events again"
            await run_best_effort(self.report(), log, "report", broken=broken, recovered=recovered)
            await asyncio.sleep(max(INTERVAL_S, REST * (self._clock() - began)))

    async def report(self) -> None:
        """Diagnose once, and write the events that are due."""
        snapshot = await self._look()
        for event, known in await asyncio.to_thread(events_of, snapshot, self._reported):
            self._recorder.warning(reference(event.about[0], known), event.reason, event.note, action="Diagnosing")


def events_of(snapshot: ClusterSnapshot, reported: ReportedFindings) -> list[tuple[FindingEvent, ObjectMeta]]:
    """Events that are due, each with the metadata of its object. Takes long: run it in a thread."""
    facts = read_facts(snapshot)
    events = reported.update(diagnose(facts), facts)
    objects: dict[Resource, Iterable[Object]] = {
        PODS: snapshot.pods,
        APPGROUPS: snapshot.groups,
        NODES: snapshot.nodes,
        NETWORK_TOPOLOGIES: snapshot.topologies,
    }
    known = {(kind, each.metadata.key): each.metadata for kind, found in objects.items() for each in found}
    return [(event, known[event.about]) for event in events if event.about in known]


def has_event(finding: Finding) -> bool:
    """Whether it gets an event of its own."""
    return finding.severity != "info" and not finding.code.startswith(_SAID_BY_CONDITIONS)


def objects_of(finding: Finding, facts: Facts) -> list[ObjectReference]:
    """The objects that a finding is about; the NetworkTopology if it is about the whole cluster."""
    code = finding.code
    if code.startswith(_OF_PODS):
        return [(PODS, key) for key in finding.affects]
    if code == "members-missing":
        return [(APPGROUPS, key) for key in finding.affects]
    if code in {"agents-down", "agents-impaired"}:
        return [(NODES, name) for name in finding.affects]
    return [(NETWORK_TOPOLOGIES, key) for key in sorted(facts.topologies)[:1]]


def event_reason(code: str) -> str:
    """A finding's code as the reason of an event: ``no-node-capacity`` is ``NoNodeCapacity``."""
    return "".join(part[:1].upper() + part[1:] for part in code.split("-"))


def _note(finding: Finding) -> str:
    """The event's note, cut to its limit; a command is whole or omitted."""
    cause = f". Cause: {'; '.join(finding.cause)}" if finding.cause else ""
    text, fix = f"{finding.summary}{cause}", f". Fix: {finding.fix[-1]}" if finding.fix else ""
    room = NOTE_LIMIT - len(fix.encode())
    return cut(text, room) + fix if room >= _SHORTEST_NOTE else cut(text, NOTE_LIMIT)
