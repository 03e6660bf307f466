"""Plans of several groups never use the same resources: reservations, and nodes that refused a pod."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from prometheus_client import CollectorRegistry

from controller.cluster.cluster_cache import ClusterCache
from controller.cluster.crds import APPGROUP_LABEL
from controller.cluster.pod_info import PodReader
from controller.cluster.pods import Target, target_of
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.gating.controller import GatingController
from lab.polling import poll_until
from tests.unit.controller.components import fill_store
from tests.unit.controller.planning_cluster import PlanningCluster, make_cluster_with_one_pod

UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/12 nodes"}]
SEEDS = int(os.environ.get("NETAWARE_ROUNDS", "12"))
"""Changes of reservations are tried with 1,000."""
GROUPS = ("d/g1", "d/g2", "e/g3")


def make_cluster_with_started_group() -> PlanningCluster:
    """Two nodes of 4 cores; a pod of d/started fills n00, another of 3 cores waits, and one of d/other of 2 cores."""
    cluster = PlanningCluster(2, 4)
    for group in ("d/started", "d/other"):
        cluster.add_group(group, 2)
    cluster.add_pod("d/started", "a", "P1", 4)
    cluster.add_pod("d/started", "b", "P2", 3)
    cluster.bind_and_count("d/a", "n00")
    cluster.add_pod("d/other", "c", "P1", 2)
    return cluster


def make_controller() -> tuple[ClusterCache, GatingController]:
    client = AsyncMock(**{"create.return_value.status": {"allowed": False}})
    cache = ClusterCache(client, "netaware-system")
    return cache, GatingController(client, cache, SchedulerConfig(), Mock(), CollectorRegistry())


def add_groups_with_pods(cluster: PlanningCluster, rng: random.Random) -> dict[str, int]:
    """Add the groups with up to 8 pods each; returns the cores of a pod of P1 by group."""
    cores_by_workload = {(group, workload): rng.choice([1, 2, 3, 4]) for group in GROUPS for workload in ("P1", "P2")}
    for group in GROUPS:
        cluster.add_group(group, 4)
        for i in range(rng.randint(2, 8)):
            workload = rng.choice(["P1", "P2"])
            cluster.add_pod(group, f"{group[2:]}-{i}", workload, cores_by_workload[group, workload])
    return {group: cores_by_workload[group, "P1"] for group in GROUPS}


def apply_random_event(cluster: PlanningCluster, group: str, new_pod: str, cores: int, rng: random.Random) -> None:
    """Change a pod of a group, or add one, if the drawn event is possible now."""
    pod = rng.choice(cluster.list_pods(group))
    key = pod.metadata.key
    target = cluster.last_plan(group).targets.get(key)
    match rng.choice(["release", "bind", "refuse", "delete", "add", "count"]):
        case "release" if pod.is_gated:
            cluster.open_gate(key, target)
        case "bind" if pod.is_waiting and not pod.is_gated and (node := cluster.choose_node(pod, rng)):
            cluster.bind(key, node)
        case "refuse" if pod.is_waiting and not pod.is_gated and not pod.status.scheduling_failed:
            cluster.update_pod(key, status={"conditions": UNSCHEDULABLE})
            if (old_target := target_of(pod)) is not None:
                cluster.refuse(key, old_target.node)
        case "delete":
            cluster.delete_pod(key)
        case "add":
            cluster.add_pod(group, new_pod, "P1", cores)
        case "count" if pod.is_bound:
            cluster.count_on_node(key)


async def make_pending_plans(cluster: PlanningCluster, rng: random.Random) -> None:
    """Check every group twice, as the leader does, and make the plans that are due.

    A pod that is bound against the plan may use resources that are reserved for a group that was checked before.
    """
    for group in rng.sample(GROUPS, 3) + rng.sample(GROUPS, 3):
        pods = cluster.list_pods(group)
        if not any(pod.is_waiting for pod in pods):
            cluster.plans.drop_plan(group, pods)
        elif cluster.request_plan(group).is_pending:
            await cluster.plans.make_plan(group)
    for group in tuple(cluster.plans.reservations.yielding_groups):
        if cluster.request_plan(group).is_pending:
            await cluster.plans.make_plan(group)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_three_groups_never_reserve_the_same_resources(seed: int) -> None:
    """On 12 nodes of 4 cores, in a random order of events."""
    rng, cluster = random.Random(seed), PlanningCluster(12, 4)
    cores_by_group = add_groups_with_pods(cluster, rng)
    for group in rng.sample(GROUPS, 3):
        await cluster.plans.make_plan(group)
        assert cluster.list_overcommitted_nodes() == []
    assert sum(len(cluster.last_plan(group).targets) for group in GROUPS) > 0

    for step in range(12):
        cluster.now_s += 60
        group = rng.choice(GROUPS)
        if cluster.list_pods(group):
            apply_random_event(cluster, group, f"{group[2:]}-new-{step}", cores_by_group[group], rng)
            await make_pending_plans(cluster, rng)
            assert cluster.list_overcommitted_nodes() == []


async def test_a_refused_node_is_not_planned_again_until_it_changes() -> None:
    cluster = make_cluster_with_one_pod(cpu=2)
    refused_node = (await cluster.plan_nodes("d/g1"))["d/a"]
    cluster.open_gate("d/a", cluster.last_plan("d/g1").targets["d/a"])
    cluster.update_pod("d/a", status={"conditions": UNSCHEDULABLE})
    cluster.refuse("d/a", refused_node)

    assert cluster.request_plan("d/g1").is_pending
    assert (await cluster.plan_nodes("d/g1"))["d/a"] != refused_node
    assert cluster.refused_nodes("d/a") == {refused_node}

    cluster.add_node(refused_node, "another-zone")
    assert cluster.refused_nodes("d/a") == frozenset()


@pytest.mark.parametrize(
    ("is_bound", "event", "is_refused"),
    [(True, "delete", False), (False, "delete", False), (False, "bind", True)],
    ids=["a pod leaves", "a reservation ends", "a reservation becomes a pod"],
)
async def test_a_refused_node_is_planned_again_when_its_usage_falls(
    event: str, *, is_bound: bool, is_refused: bool
) -> None:
    cluster = make_cluster_with_one_pod(hosts=1, cpu=2)
    cluster.add_group("d/g2", 1)
    cluster.add_pod("d/g2", "b", "P1", 3)
    if is_bound:
        cluster.bind_and_count("d/b", "n00")
    else:
        await cluster.plans.make_plan("d/g2")
    cluster.refuse("d/a", "n00")
    assert cluster.refused_nodes("d/a") == {"n00"}

    if event == "bind":
        cluster.bind_and_count("d/b", "n00")
    else:
        cluster.delete_pod("d/b")
    assert bool(cluster.refused_nodes("d/a")) == is_refused


async def test_the_reservations_of_a_deleted_group_end_while_its_pods_wait() -> None:
    cluster = make_cluster_with_one_pod(hosts=1, cpu=3)
    await cluster.plans.make_plan("d/g1")
    assert cluster.plans.reservations.reserved_by_others("d/g2")
    cluster.state.on_group_change("d/g1", cluster.state.groups["d/g1"], None)
    cluster.request_plan("d/g1")
    assert cluster.plans.reservations.reserved_by_others("d/g2") == {}


async def test_a_leader_ends_the_reservations_of_a_group_that_is_gone() -> None:
    cache, controller = make_controller()
    reservations = controller.plans.reservations
    reservations.reserve("d/gone", [(make_cluster_with_one_pod().pods["d/a"], "n00")])
    cache.pods.ready.set()
    leader = asyncio.create_task(controller.run())
    await poll_until(lambda: not reservations.groups())
    leader.cancel()


@pytest.mark.parametrize(
    ("before", "after", "is_refused"),
    [({}, {}, True), ({"conditions": UNSCHEDULABLE}, {}, False), ({}, {"nominatedNodeName": "n00"}, False)],
    ids=["a new attempt", "the same attempt", "pods are being preempted there"],
)
def test_a_pod_whose_attempt_failed_refuses_its_planned_node(
    before: dict[str, Any], after: dict[str, Any], *, is_refused: bool
) -> None:
    cache, controller = make_controller()
    cluster = make_cluster_with_one_pod()
    cluster.open_gate("d/a", Target(node="n00"))
    for status in (before, {"conditions": UNSCHEDULABLE, **after}):
        cluster.update_pod("d/a", status=status)
        fill_store(cache.pods, [PodReader().read(cluster.pods["d/a"])])
    assert bool(controller.plans.reservations.refused_nodes.nodes_by_pod([cluster.pods["d/a"]])) == is_refused


@pytest.mark.parametrize(
    "change", [{"uid": "new"}, {"labels": {APPGROUP_LABEL: "g2"}}], ids=["another pod", "another group"]
)
def test_a_pod_inherits_no_open_gate_from_its_predecessor_or_its_former_group(change: dict[str, Any]) -> None:
    """A list after an interrupted watch shows the new pod in place of the old one of the same name."""
    cache, controller = make_controller()
    reservations, cluster = controller.plans.reservations, make_cluster_with_one_pod()
    fill_store(cache.pods, [PodReader().read(cluster.pods["d/a"])])
    reservations.mark_released("d/a")

    cluster.update_pod("d/a", metadata=change)
    fill_store(cache.pods, [PodReader().read(cluster.pods["d/a"])])
    reservations.reserve("d/g1", [(cluster.pods["d/a"], "n00")])
    assert reservations.reserved_by_others_on("d/g3", "n00")
    assert not reservations.reserved_by_others_on("d/g3", "n00", released_only=True)


async def test_a_started_group_may_use_the_reservations_of_a_group_with_an_incomplete_plan() -> None:
    cluster = make_cluster_with_started_group()
    cluster.add_pod("d/other", "e", "P2", 9)  # No node has 9 cores.
    assert await cluster.plan_nodes("d/other") == {"d/c": "n01"}

    assert (await cluster.plan_nodes("d/started"))["d/b"] == "n01"
    assert "d/other" in cluster.enqueued
    assert cluster.request_plan("d/other").is_pending
    assert await cluster.plan_nodes("d/other") == {}
    assert not cluster.request_plan("d/started").is_pending


async def test_a_started_group_may_not_use_the_reservations_of_a_complete_plan() -> None:
    cluster = make_cluster_with_started_group()
    assert await cluster.plan_nodes("d/other") == {"d/c": "n01"}
    await cluster.plans.make_plan("d/started")
    assert cluster.last_plan("d/started").unplaced == ("d/b",)
