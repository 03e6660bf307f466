"""The plan for the replacement of a pod that the descheduler evicts."""

from __future__ import annotations

import msgspec
import pytest

from controller.cluster.hosts import NodeCache
from controller.cluster.pod_info import PodReader
from controller.cluster.pods import ContainerStatus, PodStatus, Target
from controller.scheduler.placement.planner import PlanningError, plan_group
from controller.scheduler.placement.snapshot import without_pod
from kubekit.wire import ResourceRequirements
from tests.unit.controller import groups
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


async def evict_and_plan_other_group(cluster: PlanningCluster) -> str:
    """Reserve the node that d/other would get for the replacement of d/evicted; returns the node."""
    reserved_node = await plan_other_group(cluster)
    cluster.plans.expect_replacement("d/g1", "d/evicted", Target("z1", "r", reserved_node), duration_s=RESERVATION_S)
    cluster.delete_pod("d/evicted")
    assert await plan_other_group(cluster) != reserved_node
    return reserved_node


@pytest.mark.parametrize("is_counted", [False, True], ids=["not counted yet", "counted"])
@pytest.mark.parametrize("reserved_cpu", [0, 1000], ids=["nothing reserved", "a core reserved"])
def test_after_an_eviction_the_resources_of_the_pod_are_free_and_its_replacement_waits(
    reserved_cpu: int, *, is_counted: bool
) -> None:
    """Node a has capacity for one pod, whether its usage includes the pod yet or not; the pod on node b stays."""
    used_millicores = 1000 * is_counted
    snapshot = groups.make_snapshot(
        groups.make_chain((3,)),
        [groups.make_zone_node("a", "z0", "2" if reserved_cpu else "1"), groups.make_zone_node("b", "z1", "1")],
        pods=[
            groups.make_bound_pod("w0-0", "w0", "a"),
            groups.make_bound_pod("w0-1", "w0", "b"),
            groups.make_waiting_pod("w0-2", "w0"),
        ],
        assigned_nodes={"default/w0-1": "b"} | ({"default/w0-0": "a"} if is_counted else {}),
        used={"a": {"cpu": used_millicores, "pods": int(is_counted)}, "b": {"cpu": 1000, "pods": 1}},
        reserved={"a": {"cpu": reserved_cpu}},
    )
    assert plan_group(snapshot).targets == {}

    after_eviction = without_pod(snapshot, "default/w0-0")
    assert [pod.metadata.name for pod in after_eviction.pods if pod.is_waiting] == ["w0-0", "w0-2"]
    plan = plan_group(after_eviction)
    assert [target.node for target in plan.targets.values()] == ["a"]
    assert len(plan.unplaced) == 1
    assert snapshot.reserved == {"a": {"cpu": reserved_cpu}}, "the first snapshot is unchanged"


def test_allocated_resources_above_the_requests_are_free_after_an_eviction() -> None:
    """During an in-place resize the pod frees all that its host counts for it."""
    pod = groups.make_bound_pod("w0-0", "w0", "a")
    status = ContainerStatus(resources=ResourceRequirements(requests={"cpu": "2"}))
    pod = msgspec.structs.replace(pod, status=PodStatus(phase="Running", container_statuses=[status]))
    node_cache = NodeCache()
    node_cache.on_node_change("a", None, groups.make_zone_node("a", "z0"))
    node_cache.on_pod_change("default/w0-0", None, PodReader().read(pod))
    requested = node_cache.requested
    snapshot = groups.make_snapshot(
        groups.make_lone_workload(1), [], hosts=node_cache.hosts, used=requested, pods=[pod]
    )
    after_eviction = without_pod(snapshot, "default/w0-0")
    assert requested["a"]["cpu"] + after_eviction.reserved["a"]["cpu"] == 0


async def test_a_replacement_is_simulated_without_its_pod_and_hot_nodes() -> None:
    cluster = PlanningCluster(2, 4)
    cluster.add_group("d/g1", 2)
    for name, workload, node in (("a", "P1", "n00"), ("b", "P2", "n01")):
        cluster.add_pod("d/g1", name, workload, 3)
        cluster.bind_and_count(f"d/{name}", node)
    target = await cluster.plans.simulate_replacement("d/g1", "d/a", 0)
    assert target is not None
    assert target.node == "n00", "n00 has the capacity only without the pod, n01 has none"

    cluster.add_node("n02", "z2")
    cluster.node_cache.set_avoided_nodes(frozenset({"n00"}))
    target = await cluster.plans.simulate_replacement("d/g1", "d/a", 0)
    assert target is not None
    assert target.node == "n02"


async def test_a_replacement_of_an_unknown_pod_is_not_simulated() -> None:
    with pytest.raises(PlanningError):
        await make_cluster_with_one_pod().plans.simulate_replacement("d/g1", "d/missing", 0)


async def test_a_node_is_reserved_for_a_replacement_until_that_exists() -> None:
    """A StatefulSet creates a replacement after its predecessor is gone; another group's plan is made meanwhile."""
    cluster = make_cluster_of_two_groups()
    reserved_node = await evict_and_plan_other_group(cluster)
    assert cluster.planned_snapshots[-1].reserved[reserved_node]["cpu"] == 3000

    cluster.add_pod("d/g1", "replacement", "P1", 3)
    assert await cluster.plan_nodes("d/g1") == {"d/replacement": reserved_node}
    assert cluster.list_overcommitted_nodes() == []
    await cluster.plans.make_plan("d/g2")
    reserved_millicores = cluster.planned_snapshots[-1].reserved[reserved_node]["cpu"]
    assert reserved_millicores == 3000, "now the plan of its own group reserves the node"


async def test_a_node_stays_reserved_after_its_replacement_was_deleted_until_the_time_is_over() -> None:
    cluster = make_cluster_of_two_groups()
    reserved_node = await evict_and_plan_other_group(cluster)
    cluster.add_pod("d/g1", "replacement", "P1", 3)
    assert await cluster.plan_nodes("d/g1") == {"d/replacement": reserved_node}

    cluster.delete_pod("d/replacement")
    assert await plan_other_group(cluster) != reserved_node
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
