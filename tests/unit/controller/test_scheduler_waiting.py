"""Pods that wait at their gates for long get one event."""

from __future__ import annotations

import pytest

from controller.cluster.pods import Pod
from controller.scheduler.gating import pod_events
from controller.scheduler.gating.pod_events import MAX_EVENTS, WaitingEvents
from controller.scheduler.gating.release import ReleaseDecision
from kubekit.wire import ObjectMeta, format_time

NOW_S = 1_800_000_000.0
CART = "workload cart comes first, and its pod cart-1 is not bound yet"


def pod(name: str, *, age_s: float = 10.0) -> Pod:
    created = format_time(NOW_S - age_s)
    return Pod(metadata=ObjectMeta(name=name, namespace="web", creation_timestamp=created))


@pytest.mark.parametrize(
    ("awaiting_plan", "report_after_s"),
    [((), pod_events.REPORT_AFTER_S), (("web/front",), pod_events.REPORT_PENDING_PLAN_AFTER_S)],
)
def test_a_long_wait_is_reported_once_and_a_second_wait_again(
    awaiting_plan: tuple[str, ...], report_after_s: float
) -> None:
    events = WaitingEvents()
    decision = ReleaseDecision(wait_reasons={"web/front": CART}, awaiting_plan=frozenset(awaiting_plan))
    assert events.pop_due([pod("front", age_s=2)], decision, NOW_S) == ([], report_after_s - 2)
    due = NOW_S + report_after_s - 2
    due_events, next_check_s = events.pop_due([pod("front", age_s=2)], decision, due)
    assert [(p.metadata.name, note) for p, note in due_events] == [("front", f"it waits at its gate: {CART}")]
    assert next_check_s is None
    assert events.pop_due([pod("front", age_s=2)], decision, due + 600) == ([], None)
    events.pop_due([pod("front", age_s=2)], ReleaseDecision(), due + 601)
    assert len(events.pop_due([pod("front", age_s=2)], decision, due + 602)[0]) == 1


def test_waits_in_a_large_group_are_reported_in_batches() -> None:
    events = WaitingEvents()
    pods = [pod(f"p{i}") for i in range(MAX_EVENTS + 5)]
    decision = ReleaseDecision(wait_reasons={p.metadata.key: CART for p in pods})
    first, next_check_s = events.pop_due(pods, decision, NOW_S)
    assert (len(first), next_check_s) == (MAX_EVENTS, 1.0)
    second, next_check_s = events.pop_due(pods, decision, NOW_S + 1)
    assert (len(second), next_check_s) == (5, None)
