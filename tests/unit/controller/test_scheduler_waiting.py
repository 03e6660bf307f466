"""Pods that wait at their gates for long get one event."""

from __future__ import annotations

import pytest

from controller.cluster.pods import Pod
from controller.scheduler.gating.pod_events import (
    MAX_EVENTS,
    REPORT_AFTER_S,
    REPORT_PENDING_PLAN_AFTER_S,
    WaitingEvents,
)
from controller.scheduler.gating.release import ReleaseDecision
from kubekit.wire import ObjectMeta, format_time

NOW_S = 1_800_000_000.0
REASON = "workload cart comes first, and its pod cart-1 is not bound yet"
WAITS = ReleaseDecision(wait_reasons={"web/front": REASON})
WAITS_FOR_PLAN = ReleaseDecision(wait_reasons={"web/front": REASON}, awaiting_plan=frozenset({"web/front"}))


def make_pod(name: str, *, age_s: float = REPORT_AFTER_S) -> Pod:
    created = format_time(NOW_S - age_s)
    return Pod(metadata=ObjectMeta(name=name, namespace="web", creation_timestamp=created))


@pytest.mark.parametrize(
    ("decision", "report_after_s"), [(WAITS, REPORT_AFTER_S), (WAITS_FOR_PLAN, REPORT_PENDING_PLAN_AFTER_S)]
)
def test_a_long_wait_is_reported_once(decision: ReleaseDecision, report_after_s: float) -> None:
    events, pods = WaitingEvents(), [make_pod("front", age_s=2)]
    assert events.pop_due(pods, decision, NOW_S) == ([], report_after_s - 2)
    due_at_s = NOW_S + report_after_s - 2
    assert events.pop_due(pods, decision, due_at_s) == ([(pods[0], f"it waits at its gate: {REASON}")], None)
    assert events.pop_due(pods, decision, due_at_s + 600) == ([], None)


def test_a_pod_that_waits_again_is_reported_again() -> None:
    events, pods = WaitingEvents(), [make_pod("front")]
    assert len(events.pop_due(pods, WAITS, NOW_S)[0]) == 1
    events.pop_due(pods, ReleaseDecision(), NOW_S + 1)
    assert len(events.pop_due(pods, WAITS, NOW_S + 2)[0]) == 1


def test_waits_in_a_large_group_are_reported_in_batches() -> None:
    events = WaitingEvents()
    pods = [make_pod(f"p{i}") for i in range(MAX_EVENTS + 5)]
    decision = ReleaseDecision(wait_reasons={pod.metadata.key: REASON for pod in pods})
    due_events, next_check_s = events.pop_due(pods, decision, NOW_S)
    assert len(due_events) == MAX_EVENTS
    assert next_check_s == 1.0

    due_events, next_check_s = events.pop_due(pods, decision, NOW_S + 1)
    assert len(due_events) == 5
    assert next_check_s is None
