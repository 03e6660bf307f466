"""When a group's plan is made: the order of groups, failures and limits, the inputs of a plan, and changes that make it stale."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set

import msgspec
import pytest

from controller.cluster.crds import APPGROUP_LABEL
from controller.cluster.pods import GATE
from controller.cluster.volumes import PersistentVolume, PersistentVolumeClaim
from controller.scheduler.config import AllocatableArgs
from controller.scheduler.gating.group_plans import MIN_BACKOFF_S
from controller.scheduler.placement.planner import PlanningError
from tests.unit.controller.planning_cluster import PlanningCluster, make_cluster_with_one_pod

OTHER_PODS = {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {APPGROUP_LABEL: "other"}}}
AWAY_FROM_OTHERS = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [OTHER_PODS]}}
CLAIM = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
OTHER_GATE = {"name": "kueue.x-k8s.io/admission"}
ALL_NODES = {"n00", "n01", "n02"}


def bind_volume(cluster: PlanningCluster, _: str, claim: str = "data", zones: tuple[str, ...] = ("z2",)) -> None:
    """Bind a claim, by default of d/a, to a volume of these zones; n02 is in z2."""
    expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": zones}
    reach = {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}
    volume = msgspec.convert({"metadata": {"name": "pv"}, "spec": reach}, PersistentVolume)
    cluster.volumes.on_volume_change("pv", None, volume)
    body = {"metadata": {"name": claim, "namespace": "d"}, "spec": {"volumeName": "pv"}}
    cluster.volumes.on_claim_change(f"d/{claim}", None, msgspec.convert(body, PersistentVolumeClaim))


def avoid_node(cluster: PlanningCluster, node: str) -> None:
    cluster.node_cache.set_avoided_nodes(frozenset({node}))


def bind_other_pod(cluster: PlanningCluster, node: str) -> None:
    """Bind a pod that d/a must not share a zone with."""
    cluster.add_pod("d/other", "noisy", "P1", 1)
    cluster.bind_and_count("d/noisy", node)
    cluster.now_s += 60


def open_other_gate(cluster: PlanningCluster, _: str) -> None:
    cluster.update_pod("d/b", spec={"schedulingGates": [{"name": GATE}]})


def make_full_cluster(*priorities: int) -> PlanningCluster:
    """Each node is full of four pods of its priority; a group with two pods of priority 10 waits."""
    cluster = PlanningCluster(len(priorities), 4)
    for i, priority in enumerate(priorities):
        for k in range(4):
            name = f"other-{i}-{k}"
            cluster.add_pod("d/others", name, "", 1)
            cluster.update_pod(f"d/{name}", spec={"priority": priority})
            cluster.bind_and_count(f"d/{name}", f"n0{i}")
    cluster.add_group("d/g", 2)
    for name, workload in (("p1", "P1"), ("p2", "P2")):
        cluster.add_pod("d/g", name, workload, 1)
        cluster.update_pod(f"d/{name}", spec={"priority": 10})
    return cluster


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
    ("change", "nodes_of_a"),
    [
        pytest.param(bind_volume, lambda _: {"n02"}, id="a volume is bound"),
        pytest.param(avoid_node, lambda node: ALL_NODES - {node}, id="its node is hot"),
        pytest.param(bind_other_pod, lambda node: ALL_NODES - {node}, id="a foreign pod excludes its node"),
        pytest.param(open_other_gate, lambda node: {node}, id="the other gate of another pod opens"),
    ],
)
async def test_a_group_is_planned_again_when_inputs_of_its_plan_change(
    change: Callable[[PlanningCluster, str], None], nodes_of_a: Callable[[str], Set[str]]
) -> None:
    cluster = make_cluster_with_one_pod()
    cluster.add_pod("d/g1", "b", "P1", 1)
    cluster.update_pod("d/a", spec={"volumes": [CLAIM], "affinity": AWAY_FROM_OTHERS})
    spec = {"affinity": AWAY_FROM_OTHERS, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "b"}}]}
    cluster.update_pod("d/b", spec={"schedulingGates": [{"name": GATE}, OTHER_GATE], **spec})
    old_nodes = await cluster.plan_nodes("d/g1")
    bind_volume(cluster, "", claim="b", zones=("z0", "z1", "z2"))
    assert not cluster.request_plan("d/g1").is_pending, "plans leave d/b out"
    assert old_nodes.keys() == {"d/a"}

    change(cluster, old_nodes["d/a"])
    assert cluster.request_plan("d/g1").is_pending
    new_nodes = await cluster.plan_nodes("d/g1")
    assert new_nodes["d/a"] in nodes_of_a(old_nodes["d/a"])
    assert ("d/b" in new_nodes) == (change is open_other_gate)


async def test_a_plan_with_unplaced_pods_is_made_again_only_after_resources_were_freed() -> None:
    cluster = make_cluster_with_one_pod(hosts=1, cpu=3)
    cluster.add_group("d/g2", 1)
    cluster.add_pod("d/g2", "other", "P1", 3)
    cluster.bind_and_count("d/other", "n00")
    assert await cluster.plan_nodes("d/g1") == {}
    cluster.now_s += 600
    assert not cluster.request_plan("d/g1").is_pending
    cluster.delete_pod("d/other")
    assert cluster.request_plan("d/g1").is_pending


async def test_constraints_of_waiting_pods_count_beside_bound_pods_of_another_template() -> None:
    """d/new must not share n00's zone with d/noisy, and fits beside d/old, which has no constraint."""
    cluster = make_cluster_with_one_pod(hosts=2, cpu=3)
    cluster.bind_and_count("d/a", "n01")
    cluster.add_pod("d/other", "noisy", "P1", 1)
    cluster.bind_and_count("d/noisy", "n00")
    cluster.add_pod("d/g1", "new", "P1", 1)
    cluster.update_pod("d/new", spec={"affinity": AWAY_FROM_OTHERS})
    assert (await cluster.plan_nodes("d/g1"))["d/new"] == "n01"


@pytest.mark.parametrize(("weight", "nodes"), [(0, {"small", "large"}), (1, {"small"})])
async def test_small_pods_leave_the_large_node_free_with_an_allocatable_weight(weight: int, nodes: set[str]) -> None:
    cluster = PlanningCluster(0, 10)
    cluster.state.allocatable_args = AllocatableArgs(weight=weight)
    for cluster.cpu, name in ((10, "small"), (200, "large")):
        cluster.add_node(name, "z0")
    cluster.add_group("d/g", 6)
    for i in range(6):
        cluster.add_pod("d/g", f"p{i}", "P1" if i % 2 else "P2", 1)
    assert set((await cluster.plan_nodes("d/g")).values()) == nodes


async def test_a_group_is_planned_onto_pods_of_lower_priority_as_a_last_resort() -> None:
    cluster = make_full_cluster(0, 100, 100)
    assert await cluster.plan_nodes("d/g") == {"d/p1": "n00", "d/p2": "n00"}
    plan_state = cluster.request_plan("d/g")
    assert plan_state.awaiting_rollout == frozenset(), "no pod is evicted for a gated one"
    assert not plan_state.is_pending


async def test_a_group_with_a_pod_that_never_preempts_is_not_planned_onto_other_pods() -> None:
    cluster = make_full_cluster(0, 100, 100)
    cluster.update_pod("d/p1", spec={"preemptionPolicy": "Never"})
    await cluster.plans.make_plan("d/g")
    assert cluster.last_plan("d/g").unplaced == ("d/p1", "d/p2")


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
