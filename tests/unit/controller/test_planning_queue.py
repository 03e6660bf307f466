"""When the planner makes the plans of several groups: their order, pauses, failures and limits."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from controller.scheduler.gating.group_plans import MAX_BACKOFF_S, MIN_BACKOFF_S
from controller.scheduler.metrics import GateMetrics
from controller.scheduler.placement.planner import PlanningError
from controller.scheduler.placement.worker import PLAN_TIME_LIMIT_S
from tests.unit.controller.planning_cluster import PlanningCluster, make_cluster_with_one_pod

MAX_WAIT_S = 3600.0
"""The longest time for which a gate may stay closed."""


def read_planned_condition(cluster: PlanningCluster, group: str) -> tuple[str, str]:
    """Status and reason of the condition Planned."""
    condition = cluster.plans.planned_condition(group)
    assert condition is not None
    return condition.status, condition.reason


async def make_plan_with_declared_replicas(replicas: int, members: int) -> PlanningCluster:
    """A cluster with a plan of d/g1, whose two workloads declare these replicas; only one of its pods exists."""
    cluster = make_cluster_with_one_pod()
    cluster.declared.by_workload = {"P1": replicas, "P2": replicas}
    cluster.add_group("d/g1", members)
    await cluster.plans.make_plan("d/g1")
    return cluster


@pytest.mark.parametrize(
    ("namespace_count", "group_count", "members", "mutual_callers", "plan_duration_s", "max_plans_before"),
    [
        pytest.param(1, 12, 1200, 0, 3.0, 1, id="large groups of one namespace"),
        pytest.param(30, 1, 1200, 0, 3.0, 1, id="large groups of thirty namespaces"),
        pytest.param(30, 1, 1, 30, 3.0, 1, id="few pods with many dependencies"),
        pytest.param(10, 6, 1, 0, 0.2, 10, id="many small groups"),
    ],
)
async def test_slow_plans_of_others_do_not_delay_a_small_group(
    namespace_count: int,
    group_count: int,
    members: int,
    mutual_callers: int,
    plan_duration_s: float,
    max_plans_before: int,
) -> None:
    cluster = PlanningCluster(3, 4)
    cluster.plan_duration_s = plan_duration_s
    hostile_groups = [f"hostile{n}/g{i}" for n in range(namespace_count) for i in range(group_count)]
    for group in hostile_groups:
        cluster.add_group(group, members, mutual_callers)
        cluster.add_pod(group, group.replace("/", "-"), "P1", 400)
    cluster.add_group("tenant/small", 2)
    cluster.add_pod("tenant/small", "web", "P1", 1)

    await cluster.plan_all(*hostile_groups, "tenant/small")
    assert [namespace for namespace, _ in cluster.searches].index("tenant") <= max_plans_before
    hostile_searches_s = [search_s for namespace, search_s in cluster.searches if namespace != "tenant"]
    assert max(hostile_searches_s[:-1]) <= 1, "while others wait"
    if namespace_count == 1:
        assert hostile_searches_s[-1] < 1, "a namespace that has used much planner time gets short searches"


async def test_a_large_group_is_planned_before_newer_small_ones_of_its_namespace() -> None:
    cluster = PlanningCluster(3, 4)
    for group, members in (("d/large", 100), ("d/small", 1)):
        cluster.add_group(group, members)
        cluster.add_pod(group, group[2:], "P1", 1)
        cluster.request_plan(group)
        cluster.now_s += 60
    await cluster.plan_all("d/large", "d/small")
    assert [snapshot.group.metadata.name for snapshot in cluster.planned_snapshots] == ["large", "small"]


async def test_a_group_that_changes_all_the_time_pauses_between_its_plans() -> None:
    cluster = make_cluster_with_one_pod()
    cluster.plan_duration_s = 2.0
    await cluster.plans.make_plan("d/g1")
    cluster.add_pod("d/g1", "b", "P1", 1)
    plan_state = cluster.request_plan("d/g1")
    assert plan_state.is_pending
    assert plan_state.plan is not None
    assert "d/b" not in plan_state.plan.targets

    planner = asyncio.create_task(cluster.plans.run())
    for _ in range(20):
        await asyncio.sleep(0)
    planner.cancel()
    assert len(cluster.planned_snapshots) == 1


async def test_a_failed_plan_is_reported_and_retried_later() -> None:
    cluster = make_cluster_with_one_pod()
    cluster.failure = PlanningError("DeadlineExceeded", "no plan was found within 30 s")
    assert cluster.request_plan("d/g1").is_pending
    await cluster.plans.make_plan("d/g1")
    assert read_planned_condition(cluster, "d/g1") == ("False", "DeadlineExceeded")
    plan_state = cluster.request_plan("d/g1")
    assert plan_state.plan is None
    assert not plan_state.is_pending

    cluster.now_s += MIN_BACKOFF_S
    assert cluster.request_plan("d/g1").is_pending
    cluster.failure = None
    await cluster.plans.make_plan("d/g1")
    assert read_planned_condition(cluster, "d/g1") == ("True", "Complete")


async def test_the_backoff_after_failed_plans_has_a_limit() -> None:
    cluster = make_cluster_with_one_pod()
    cluster.failure = PlanningError("DeadlineExceeded", "no plan was found within 30 s")
    cluster.request_plan("d/g1")
    for _ in range(1100):  # 2.0 ** 1024 overflows.
        await cluster.plans.make_plan("d/g1")
    assert not cluster.request_plan("d/g1").is_pending
    cluster.now_s += MAX_BACKOFF_S
    assert cluster.request_plan("d/g1").is_pending


async def test_replicas_that_do_not_exist_count_up_to_num_members() -> None:
    cluster = await make_plan_with_declared_replicas(50_000_000, members=3)
    assert read_planned_condition(cluster, "d/g1") == ("True", "MoreDeclared")
    assert cluster.planned_snapshots[0].replicas == {"P1": 3, "P2": 0}


async def test_a_group_of_too_many_replicas_has_no_plan_and_delays_no_other_group() -> None:
    cluster = await make_plan_with_declared_replicas(50_000_000, members=50_000_000)
    assert read_planned_condition(cluster, "d/g1") == ("False", "TooManyPods")
    assert cluster.request_plan("d/g1").plan is None

    cluster.add_group("e/g3", 1)
    cluster.add_pod("e/g3", "b", "P1", 1)
    await cluster.plans.make_plan("e/g3")
    assert cluster.request_plan("e/g3").plan is not None


async def test_a_group_that_is_deleted_while_its_plan_begins_does_not_end_the_planner() -> None:
    cluster = make_cluster_with_one_pod()
    plan = asyncio.create_task(cluster.plans.make_plan("d/g1"))
    await asyncio.sleep(0)
    cluster.state.on_group_change("d/g1", cluster.state.groups["d/g1"], None)
    await plan
    assert cluster.planned_snapshots == []


def test_histogram_buckets_of_plans_and_gates_reach_the_longest_possible_time() -> None:
    metrics = GateMetrics(CollectorRegistry())
    for histogram, longest_s in ((metrics.plan_duration, PLAN_TIME_LIMIT_S), (metrics.gate_wait, MAX_WAIT_S)):
        (family,) = histogram.collect()
        bounds = sorted(float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels)
        assert bounds[-2] >= longest_s, "the last bound is infinite"
