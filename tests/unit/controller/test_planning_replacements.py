"""The plan for the replacement of a pod that the descheduler evicts."""

from __future__ import annotations

import pytest

from controller.cluster.pods import Target
from controller.scheduler.placement.planner import PlanningError
from tests.unit.controller.planning_cluster import PlanningCluster, make_cluster_with_one_pod

RESERVATION_S = 60.0


async def plan_other_group(cluster: PlanningCluster) -> str:
    """The node of d/other by a new plan of d/g2, without a plan of d/g1."""
    for group in ("d/g1", "d/g2"):
        cluster.plans.drop_plan(group, cluster.list_pods(group))
    return (await cluster.plan_nodes("d/g2"))["d/other"]


def make_cluster_of_two_groups() -> PlanningCluster:
    """Two nodes of 4 cores; d/evicted of d/g1 and d/other of d/g2, of 3 cores each, wait."""
    cluster = PlanningCluster(2, 4)
    for group, name in (("d/g1", "evicted"), ("d/g2", "other")):
        cluster.add_group(group, 1)
        cluster.add_pod(group, name, "P1", 3)
    return cluster


@pytest.mark.parametrize("used_cpu", [4, 5], ids=["as requested", "more, during a resize"])
async def test_a_replacement_is_simulated_without_its_pod_and_hot_nodes(used_cpu: int) -> None:
    cluster = PlanningCluster(2, 4)
    cluster.add_group("d/g1", 2)
    for name, workload, node in (("a", "P1", "n00"), ("b", "P2", "n01")):
        cluster.add_pod("d/g1", name, workload, 4)
        cluster.bind(f"d/{name}", node)
        used = {"resources": {"requests": {"cpu": str(used_cpu)}}}
        cluster.update_pod(f"d/{name}", status={"containerStatuses": [used]})
        cluster.count_on_node(f"d/{name}")
    target = await cluster.plans.simulate_replacement("d/g1", "d/a", 0)
    assert target is not None
    assert target.node == "n00", "n00 has the capacity only without the pod, n01 has none"

    cluster.add_node("n02", "z2")
    cluster.node_cache.set_avoided_nodes(frozenset({"n00"}))
    target = await cluster.plans.simulate_replacement("d/g1", "d/a", 0)
    assert target is not None
    assert target.node == "n02"


async def test_a_pod_that_its_node_does_not_count_yet_frees_nothing() -> None:
    cluster = make_cluster_with_one_pod(hosts=1, cpu=3)
    cluster.bind("d/a", "n00")
    cluster.add_pod("d/other", "b", "P1", 2)
    cluster.bind_and_count("d/b", "n00")
    assert await cluster.plans.simulate_replacement("d/g1", "d/a", 0) is None
    with pytest.raises(PlanningError):
        await cluster.plans.simulate_replacement("d/g1", "d/missing", 0)


async def test_a_node_is_reserved_for_one_replacement_while_there_is_none_until_the_time_is_over() -> None:
    """A StatefulSet creates a replacement after its predecessor is gone; another group's plan is made meanwhile."""
    cluster = make_cluster_of_two_groups()
    reserved_node = await plan_other_group(cluster)
    cluster.plans.expect_replacement("d/g1", "d/evicted", Target("z1", "r", reserved_node), duration_s=RESERVATION_S)
    cluster.delete_pod("d/evicted")
    assert await plan_other_group(cluster) != reserved_node
    assert cluster.planned_snapshots[-1].reserved[reserved_node]["cpu"] == 3000

    cluster.add_pod("d/g1", "replacement", "P1", 3)
    assert await cluster.plan_nodes("d/g1") == {"d/replacement": reserved_node}
    assert cluster.list_overcommitted_nodes() == []
    await cluster.plans.make_plan("d/g2")
    reserved_millicores = cluster.planned_snapshots[-1].reserved[reserved_node]["cpu"]
    assert reserved_millicores == 3000, "now the plan of its own group reserves the node"

    cluster.bind("d/replacement", reserved_node)
    cluster.add_pod("d/g1", "next", "P1", 1)
    await cluster.plans.make_plan("d/g1")
    assert "d/next" not in cluster.planned_snapshots[-1].previous_targets, "the node was reserved for one replacement"

    for name in ("replacement", "next"):
        cluster.delete_pod(f"d/{name}")
    assert await plan_other_group(cluster) != reserved_node, "reserved again"
    cluster.now_s += RESERVATION_S + 1
    assert await plan_other_group(cluster) == reserved_node


def test_the_reservation_for_a_replacement_ends_with_a_new_node_or_its_group() -> None:
    """The eviction before may have been refused, so the same replacement may be expected again."""
    cluster = make_cluster_of_two_groups()
    old_target, new_target = Target("z0", "r", "n00"), Target("z1", "r", "n01")
    freed_count = cluster.plans.reservations.freed_count
    for target, freed in ((old_target, 0), (new_target, 1), (new_target, 1)):
        cluster.plans.expect_replacement("d/g1", "d/evicted", target, duration_s=RESERVATION_S)
        assert cluster.plans.reservations.freed_count == freed_count + freed
    cluster.state.on_group_change("d/g1", cluster.state.groups["d/g1"], None)
    cluster.request_plan("d/g1")
    assert cluster.plans.reservations.freed_count == freed_count + 2, "a reservation ends with its group"


@pytest.mark.parametrize(
    ("age_s", "existed_before", "is_on_reserved_node"),
    [(1, False, True), (RESERVATION_S + 1, False, False), (1, True, False)],
    ids=["in time", "too late", "a pod that existed before the eviction"],
)
async def test_a_replacement_is_planned_for_its_reserved_node_until_that_expires(
    age_s: float, *, existed_before: bool, is_on_reserved_node: bool
) -> None:
    preferred_node = (await make_cluster_with_one_pod(hosts=6).plan_nodes("d/g1"))["d/a"]
    cluster, reserved_node = make_cluster_with_one_pod(hosts=6), "n00" if preferred_node != "n00" else "n01"
    zone = cluster.node_cache.hosts[reserved_node].location.zone
    cluster.add_pod("d/g1", "evicted", "P1", 1)
    if not existed_before:
        cluster.delete_pod("d/a")
    target = Target(zone, "r", reserved_node)
    cluster.plans.expect_replacement("d/g1", "d/evicted", target, duration_s=RESERVATION_S)
    cluster.delete_pod("d/evicted")
    cluster.add_pod("d/g1", "a", "P1", 1)
    cluster.now_s += age_s
    expected_node = reserved_node if is_on_reserved_node else preferred_node
    assert await cluster.plan_nodes("d/g1") == {"d/a": expected_node}
