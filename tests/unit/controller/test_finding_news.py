"""Findings as events: once for as long as they are there, on the objects where somebody would look."""

from __future__ import annotations

import re

import msgspec
import pytest

from controller.diagnosis.facts import Facts
from controller.diagnosis.news import MOST_AT_ONCE, About, FindingNews, News
from controller.diagnosis.rules import diagnose
from tests.unit.controller.situations import SITUATIONS, Situation, facts, no_node, pod

HEALTHY = facts()
STUCK = no_node("0/4 nodes are available: 4 Insufficient cpu.")


def told(*moments: Facts) -> list[list[News]]:
    news = FindingNews()
    return [news.of(diagnose(moment), moment) for moment in moments]


def test_what_is_found_twice_is_told_once_and_again_when_it_comes_back() -> None:
    counts = [len(found) for found in told(STUCK, STUCK, STUCK, HEALTHY, STUCK, STUCK)]
    assert counts == [0, 2, 0, 0, 0, 2], "the pod without a node, and the one that waits behind it"


def test_the_event_is_on_the_pod_and_names_what_ends_it() -> None:
    first = told(STUCK, STUCK)[1][0]
    assert (first.about, first.reason) == (About("Pod", "web", "front-1"), "NoNodeRoom")
    assert "nodes are full" in first.note
    assert first.note.endswith("Do: add nodes, or lower the requests in its template")


def test_no_look_tells_of_more_than_a_few_objects_and_none_is_left_out() -> None:
    many = facts(
        groups=(),
        pods=tuple(
            msgspec.structs.replace(pod(f"{i}-{k}", group=f"g{i}", node="n1"), created=1.0)
            for i in range(6)
            for k in range(9)
        ),
    )
    looks = told(*[many] * 5)
    assert [len(found) for found in looks] == [0, MOST_AT_ONCE, MOST_AT_ONCE, 14, 0]
    assert len({news.about for found in looks for news in found}) == 54


def test_remarks_and_what_a_condition_has_said_already_are_no_events() -> None:
    """The event of a condition is written when it changes; a second one about the same would only be noise."""
    for situation in SITUATIONS:
        codes = {finding.code for finding in diagnose(situation.facts)}
        if codes <= {"members-exceeded", "versions-mixed", "cycle"} or situation.code.startswith(
            ("spec-", "topology-")
        ):
            assert told(situation.facts, situation.facts) == [[], []], situation.name


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda s: s.name)
def test_each_finding_is_about_objects_that_there_are(situation: Situation) -> None:
    now = situation.facts
    there = {("Pod", pod.key) for pod in now.pods} | {("AppGroup", group.metadata.key) for group in now.groups}
    there |= {("Node", f"/{agent.node}") for agent in now.agents}
    there |= {("NetworkTopology", key) for key in now.topologies}
    names = ("Deployment", "netaware-controller"), ("Deployment", "netaware-scheduler"), ("DaemonSet", "netaware-agent")
    there |= {(kind, f"{now.home}/{name}") for kind, name in names}
    for news in told(now, now)[1]:
        assert (news.about.kind, f"{news.about.namespace}/{news.about.name}") in there
        assert re.fullmatch(r"([A-Z][a-z]*)+", news.reason), news.reason
