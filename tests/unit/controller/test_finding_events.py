"""Findings as events: one event while a finding lasts, on the objects that the finding is about."""

from __future__ import annotations

import re

import pytest

from controller.cluster.crds import APPGROUPS, NETWORK_TOPOLOGIES
from controller.diagnosis.diagnose import diagnose
from controller.diagnosis.events import MAX_EVENTS_AT_ONCE, FindingEvent, FindingEventFilter
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import Finding, PodFinding, ZoneFinding
from kubekit.events import MAX_NOTE_BYTES
from kubekit.wire import NODES, PODS
from tests.unit.controller.cluster_facts import make_facts, make_stuck_facts
from tests.unit.controller.situations import SITUATIONS, Situation

HEALTHY = make_facts()
STUCK = make_stuck_facts("0/4 nodes are available: 4 Insufficient cpu.")


def select_events(*facts_by_time: Facts) -> list[list[FindingEvent]]:
    """The events after a diagnosis of each of these facts, one after the other."""
    event_filter = FindingEventFilter()
    return [event_filter.select_events(diagnose(facts), facts) for facts in facts_by_time]


def test_a_finding_of_two_diagnoses_has_one_event_with_its_fix_until_it_returns() -> None:
    batches = select_events(STUCK, STUCK, STUCK, HEALTHY, STUCK, STUCK)
    assert list(map(len, batches)) == [0, 2, 0, 0, 0, 2], "the pod without a node, and the one that waits behind it"
    event = batches[1][0]
    assert (event.object_key, event.reason) == ((PODS, "web/front-1"), "NoNodeCapacity")
    assert "nodes are full" in event.note
    assert event.note.endswith("Fix: add nodes, or lower the requests in the pod template")


def test_each_of_many_findings_about_one_object_gets_an_event() -> None:
    """Unreachable zones are events of the NetworkTopology."""

    def make_findings(path_count: int) -> list[Finding]:
        zones = [f"z{i:02}" for i in range(path_count)]
        paths = [ZoneFinding("zones-unreachable", "warning", f"{zone} is cut", affects=("z0", zone)) for zone in zones]
        return [*paths, PodFinding("unknown-workload", "warning", "a pod is lost", affects=("web/front-1",))]

    facts, event_filter = make_facts(topology_conditions={"netaware-system/nt-default": ()}), FindingEventFilter()
    batches = [event_filter.select_events(make_findings(count), facts) for count in (30, 30, 30, 30, 31, 31)]
    assert [len(batch) for batch in batches] == [0, MAX_EVENTS_AT_ONCE, 11, 0, 0, 1]
    assert batches[2][-1].reason == "UnknownWorkload"


def test_a_command_in_an_event_is_never_cut() -> None:
    """The API server accepts 1,024 bytes, and half a command may do something else than the whole command."""
    command = "kubectl delete pods -l a=b --field-selector status.phase=Failed"
    for cause, fix in (("→" * 2000, command), ("short", f"{command} {'x' * 2000}")):
        finding = PodFinding("unknown-workload", "warning", "what", (cause,), affects=("web/front-1",), fix=(fix,))
        event_filter = FindingEventFilter()
        event_filter.select_events([finding], STUCK)
        (event,) = event_filter.select_events([finding], STUCK)
        assert len(event.note.encode()) <= MAX_NOTE_BYTES
        assert event.note.endswith(f"Fix: {fix}") == (len(fix) < 100)
        assert "Fix:" not in event.note or event.note.endswith(fix)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda s: s.code)
def test_each_event_is_about_an_existing_object_and_no_event_repeats_a_condition(situation: Situation) -> None:
    """A change of a condition has an event already."""
    facts = situation.facts
    first_events, events = select_events(facts, facts)
    assert first_events == []
    existing_objects = {(PODS, pod.metadata.key) for pod in facts.pods}
    existing_objects |= {(APPGROUPS, group.metadata.key) for group in facts.groups}
    existing_objects |= {(NODES, agent.node) for agent in facts.agents}
    existing_objects |= {(NETWORK_TOPOLOGIES, key) for key in facts.topology_conditions}
    assert {event.object_key for event in events} <= existing_objects
    assert [event.reason for event in events if not re.fullmatch(r"([A-Z][a-z]*)+", event.reason)] == []
    if situation.code.startswith(("dependency-cycle", "spec-", "topology-")):
        assert events == []
