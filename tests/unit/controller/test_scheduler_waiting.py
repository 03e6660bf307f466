"""Pods that wait at their gates for long get one event."""

from __future__ import annotations

import pytest

from controller.cluster.pods import Pod
from controller.scheduler.gating import pod_events
from controller.scheduler.gating.pod_events import MAX_EVENTS, WaitingEvents
from controller.scheduler.gating.release import PLAN_PENDING_REASON
from kubekit.wire import ObjectMeta, format_time

NOW_S = 1_800_000_000.0
CART = "workload cart comes first, and its pod cart-1 is not bound yet"


def pod(name: str, *, age_s: float = 10.0) -> Pod:
    created = format_time(NOW_S - age_s)
    return Pod(metadata=ObjectMeta(name=name, namespace="web", creation_timestamp=created))


@pytest.mark.parametrize(
    ("reason", "report_after_s"),
    [(CART, pod_events.REPORT_AFTER_S), (PLAN_PENDING_REASON, pod_events.REPORT_PENDING_PLAN_AFTER_S)],
)
def test_a_long_wait_is_reported_once_and_a_second_wait_again(reason: str, report_after_s: float) -> None:
    events, wait_reasons = WaitingEvents(), {"web/front": reason}
    assert events.pop_due([pod("front", age_s=2)], wait_reasons, NOW_S) == ([], report_after_s - 2)
    due = NOW_S + report_after_s - 2
    due_events, next_check_s = events.pop_due([pod("front", age_s=2)], wait_reasons, due)
    assert [(p.metadata.name, note) for p, note in due_events] == [("front", f"it waits at its gate: {reason}")]
    assert next_check_s is None
    assert events.pop_due([pod("front", age_s=2)], wait_reasons, due + 600) == ([], None)
    events.pop_due([pod("front", age_s=2)], {}, due + 601)
    assert len(events.pop_due([pod("front", age_s=2)], wait_reasons, due + 602)[0]) == 1


def test_waits_in_a_large_group_are_reported_in_batches() -> None:
    events = WaitingEvents()
    pods = [pod(f"p{i}") for i in range(MAX_EVENTS + 5)]
    wait_reasons = {p.metadata.key: CART for p in pods}
    first, next_check_s = events.pop_due(pods, wait_reasons, NOW_S)
    assert (len(first), next_check_s) == (MAX_EVENTS, 1.0)
    second, next_check_s = events.pop_due(pods, wait_reasons, NOW_S + 1)
    assert (len(second), next_check_s) == (5, None)
