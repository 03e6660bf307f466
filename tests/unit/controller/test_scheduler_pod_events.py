"""Events about pods: long waits at their gates, and placements."""

from __future__ import annotations

import asyncio
import contextlib
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from controller.cluster.cluster_cache import ClusterCache
from controller.cluster.pod_info import PodReader
from controller.cluster.pods import Pod
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.gating.controller import GatingController
from controller.scheduler.gating.pod_events import (
    MAX_EVENTS,
    REPORT_AFTER_S,
    REPORT_PENDING_PLAN_AFTER_S,
    WaitingEvents,
)
from controller.scheduler.gating.release import ReleaseDecision
from kubekit.client import Client
from kubekit.config import ClusterConfig
from kubekit.wire import ObjectMeta, format_time
from lab.polling import poll_until
from tests.unit.controller import scheduler_objects
from tests.unit.controller.components import fill_store

NOW_S = 1_800_000_000.0
REASON = "workload cart comes first, and its pod cart-1 is not bound yet"
WAITS = ReleaseDecision(wait_reasons={"web/front": REASON})
WAITS_FOR_PLAN = ReleaseDecision(wait_reasons={"web/front": REASON}, awaiting_plan=frozenset({"web/front"}))
UNREACHABLE = ClusterConfig(server="http://127.0.0.1:1")


def create_and_bind(cache: ClusterCache, name: str) -> None:
    for node_name in ("", "n"):
        fill_store(cache.pods, [PodReader().read(scheduler_objects.make_pod("P1", node_name, name=name))])


def make_pod(name: str, *, age_s: float = REPORT_AFTER_S) -> Pod:
    created = format_time(NOW_S - age_s)
    return Pod(metadata=ObjectMeta(name=name, namespace="web", creation_timestamp=created))


@pytest.mark.parametrize(
    ("decision", "report_after_s"), [(WAITS, REPORT_AFTER_S), (WAITS_FOR_PLAN, REPORT_PENDING_PLAN_AFTER_S)]
)
def test_each_long_wait_is_reported_once(decision: ReleaseDecision, report_after_s: float) -> None:
    events, pods = WaitingEvents(), [make_pod("front", age_s=2)]
    assert events.pop_due(pods, decision, NOW_S) == ([], report_after_s - 2)
    due_at_s = NOW_S + report_after_s - 2
    assert events.pop_due(pods, decision, due_at_s) == ([(pods[0], f"it waits at its gate: {REASON}")], None)
    assert events.pop_due(pods, decision, due_at_s + 600) == ([], None)

    events.pop_due(pods, ReleaseDecision(), due_at_s + 601)
    due_again, _ = events.pop_due(pods, decision, due_at_s + 602)
    assert len(due_again) == 1, "a pod that waits again is reported again"


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


async def test_a_new_leader_reports_no_placement_of_pods_that_were_bound_before() -> None:
    async with Client(UNREACHABLE) as client:
        cache, recorder = ClusterCache(client, "netaware-system"), Mock()
        fill_store(cache.nodes, [scheduler_objects.make_node("n", "r", "z")])
        cache.pods.ready.set()
        controller = GatingController(client, cache, SchedulerConfig(), recorder, CollectorRegistry())
        create_and_bind(cache, "old")
        leader = asyncio.create_task(controller.run())

        def is_any_placement_reported() -> bool:
            create_and_bind(cache, "new")
            return bool(recorder.record.called)

        await poll_until(is_any_placement_reported, every_s=0.01)
        leader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leader
    assert [call.args[1].name for call in recorder.record.call_args_list] == ["new"]
