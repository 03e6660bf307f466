"""Plans of several groups: no resources are reserved twice, no group delays other groups, and failed plans are reported."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.cluster.cluster_cache import ClusterCache
from controller.cluster.crds import APPGROUP_LABEL
from controller.cluster.pod_info import PodReader
from controller.cluster.pods import GATE, Target, target_of
from controller.cluster.volumes import PersistentVolume, PersistentVolumeClaim
from controller.scheduler.config import AllocatableArgs, SchedulerConfig
from controller.scheduler.gating.controller import GatingController
from controller.scheduler.gating.group_plans import MAX_BACKOFF_S, MIN_BACKOFF_S
from controller.scheduler.metrics import GateMetrics
from controller.scheduler.placement.planner import PlanningError
from controller.scheduler.placement.worker import PLAN_TIME_LIMIT_S
from kubekit.client import Client
from tests.unit.controller.components import SilentEventRecorder, fill_store
from tests.unit.controller.planning_cluster import PlanningCluster

UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/12 nodes"}]
ROUNDS = int(os.environ.get("NETAWARE_ROUNDS", "12"))
"""Changes of reservations are tried with 1,000."""
GROUPS = ("d/g1", "d/g2", "e/g3")


async def simulate_events(seed: int) -> int:
    """Three groups at once on 12 nodes of 4 cpu, in a random order of events; returns the number of planned pods."""
    rng, world = random.Random(seed), PlanningCluster(12, 4)
    cpu = {(group, workload): rng.choice([1, 2, 3, 4]) for group in GROUPS for workload in ("P1", "P2")}
    for group in GROUPS:
        world.add_group(group, 4)
        for i in range(rng.randint(2, 8)):
            workload = rng.choice(["P1", "P2"])
            world.add_pod(group, f"{group[2:]}-{i}", workload, cpu[group, workload])
    for group in rng.sample(GROUPS, 3):
        await world.plans.make_plan(group)
        assert world.list_overcommitted_nodes() == []
    placed = sum(len(world.plan_of(group).targets) for group in GROUPS)
    for step in range(12):
        world.now += 60
        group = rng.choice(GROUPS)
        pods = world.pods_of(group)
        if not pods:
            continue
        pod = rng.choice(pods)
        key = pod.metadata.key
        target = world.plan_of(group).targets.get(key)
        match rng.choice(["release", "bind", "refuse", "delete", "add", "count"]):
            case "release" if pod.is_gated:
                world.open_gate(key, target)
            case "bind" if pod.is_waiting and not pod.is_gated and (node := world.choose_node(pod, rng)):
                world.bind(key, node)
            case "refuse" if pod.is_waiting and not pod.is_gated and not pod.status.scheduling_failed:
                world.update_pod(key, status={"conditions": UNSCHEDULABLE})
                if (old_target := target_of(pod)) is not None:
                    world.plans.reservations.refused_nodes.add(world.pods[key], old_target.node)
            case "delete":
                world.delete_pod(key)
            case "add":
                world.add_pod(group, f"{group[2:]}-new-{step}", "P1", cpu[group, "P1"])
            case "count" if pod.is_bound:
                world.count_on_node(key)
        # A pod that is bound against the plan may use resources that are reserved for a group that was checked before.
        for other in rng.sample(GROUPS, 3) + rng.sample(GROUPS, 3):
            pods = world.pods_of(other)
            if not any(p.is_waiting for p in pods):
                world.plans.drop_plan(other, pods)
            elif world.plans.get_or_request(other, pods).is_pending:
                await world.plans.make_plan(other)
        for idle in tuple(world.plans.reservations.yielding_groups):
            if world.request_plan(idle).is_pending:
                await world.plans.make_plan(idle)
        assert world.list_overcommitted_nodes() == []
    return placed


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_three_groups_never_reserve_the_same_resources(seed: int) -> None:
    assert await simulate_events(seed) > 0


def world_with_one_pod(hosts: int = 3, cpu: int = 1) -> PlanningCluster:
    """A cluster with one group, d/g1, which has one pod, d/a."""
    world = PlanningCluster(hosts, 4)
    world.add_group("d/g1", 1)
    world.add_pod("d/g1", "a", "P1", cpu)
    return world


def planned_condition(world: PlanningCluster, group: str) -> tuple[str, str]:
    """Status and reason of the condition Planned."""
    condition = world.plans.planned_condition(group)
    assert condition is not None
    return condition.status, condition.reason


async def test_a_refused_node_is_not_planned_again_until_it_changes() -> None:
    world = world_with_one_pod(cpu=2)
    first = (await world.planned_nodes("d/g1"))["d/a"]
    world.open_gate("d/a", world.plan_of("d/g1").targets["d/a"])
    world.update_pod("d/a", status={"conditions": UNSCHEDULABLE})
    world.plans.reservations.refused_nodes.add(world.pods["d/a"], first)
    assert world.request_plan("d/g1").is_pending
    assert (await world.planned_nodes("d/g1"))["d/a"] != first
    assert world.plans.reservations.refused_nodes.nodes_by_pod(world.pods_of("d/g1")) == {"d/a": frozenset({first})}
    world.add_node(first, "another-zone")
    assert world.plans.reservations.refused_nodes.nodes_by_pod(world.pods_of("d/g1")) == {}


@pytest.mark.parametrize(
    ("is_bound", "happens", "is_refused"),
    [(True, "delete", False), (False, "delete", False), (False, "bind", True)],
    ids=["a pod leaves", "a reservation ends", "a reservation becomes a pod"],
)
async def test_a_refused_node_is_planned_again_when_its_usage_falls(
    happens: str, *, is_bound: bool, is_refused: bool
) -> None:
    world = PlanningCluster(1, 4)
    for group in ("d/g1", "d/g2"):
        world.add_group(group, 1)
    world.add_pod("d/g2", "b", "P1", 3)
    if is_bound:
        world.bind_and_count("d/b", "n00")
    else:
        await world.plans.make_plan("d/g2")
    refused = world.add_pod("d/g1", "a", "P1", 2)
    world.plans.reservations.refused_nodes.add(refused, "n00")
    assert world.plans.reservations.refused_nodes.nodes_by_pod([refused]) == {"d/a": frozenset({"n00"})}
    world.bind_and_count("d/b", "n00") if happens == "bind" else world.delete_pod("d/b")
    assert bool(world.plans.reservations.refused_nodes.nodes_by_pod([refused])) == is_refused


async def test_the_reservations_of_a_deleted_group_end_while_its_pods_wait() -> None:
    world = world_with_one_pod(hosts=1, cpu=3)
    await world.plans.make_plan("d/g1")
    assert world.plans.reservations.reserved_by_others("d/g2")
    world.state.on_group_change("d/g1", world.state.groups["d/g1"], None)
    world.request_plan("d/g1")
    assert world.plans.reservations.reserved_by_others("d/g2") == {}


async def test_a_group_that_is_deleted_while_its_plan_begins_does_not_end_the_planner() -> None:
    world = world_with_one_pod()
    plan = asyncio.create_task(world.plans.make_plan("d/g1"))
    await asyncio.sleep(0)
    world.state.on_group_change("d/g1", world.state.groups["d/g1"], None)
    await plan
    assert world.planned_snapshots == []


@pytest.mark.parametrize(
    "change", [{"uid": "new"}, {"labels": {APPGROUP_LABEL: "g2"}}], ids=["another-pod", "another-group"]
)
def test_a_pod_inherits_no_open_gate_from_its_predecessor_or_its_former_group(change: dict[str, Any]) -> None:
    """A list after an interrupted watch shows the new pod in place of the old one of the same name."""
    client = cast("Client", None)
    cache = ClusterCache(client, "netaware-system")
    controller = GatingController(client, cache, SchedulerConfig(), SilentEventRecorder(), CollectorRegistry())
    reservations, reader, world = controller.plans.reservations, PodReader(), world_with_one_pod()
    fill_store(cache.pods, [reader.read(world.pods["d/a"])])
    reservations.mark_released("d/a")
    world.update_pod("d/a", metadata=change)
    fill_store(cache.pods, [reader.read(world.pods["d/a"])])
    reservations.reserve("d/g1", [(world.pods["d/a"], "n00")])
    assert reservations.reserved_by_others_on("d/g3", "n00")
    assert not reservations.reserved_by_others_on("d/g3", "n00", released_only=True)


@pytest.mark.parametrize("is_complete", [False, True], ids=["incomplete", "complete"])
async def test_a_started_group_may_use_the_reservations_of_a_group_with_an_incomplete_plan(
    *, is_complete: bool
) -> None:
    world = PlanningCluster(2, 4)
    for group in ("d/started", "d/other"):
        world.add_group(group, 2)
    world.add_pod("d/started", "a", "P1", 4)
    world.add_pod("d/started", "b", "P2", 3)
    world.bind_and_count("d/a", "n00")
    world.add_pod("d/other", "c", "P1", 2)
    if not is_complete:
        world.add_pod("d/other", "e", "P2", 9)
    assert await world.planned_nodes("d/other") == {"d/c": "n01"}
    nodes = await world.planned_nodes("d/started")
    if is_complete:
        assert world.plan_of("d/started").unplaced == ("d/b",)
        return
    assert nodes["d/b"] == "n01"
    assert "d/other" in world.enqueued
    assert world.request_plan("d/other").is_pending
    assert await world.planned_nodes("d/other") == {}
    assert not world.request_plan("d/started").is_pending


@pytest.mark.parametrize("members", [3, 50_000_000])
async def test_replicas_that_do_not_exist_count_up_to_num_members(members: int) -> None:
    """Two workloads that declare 50 million pods do not delay other groups."""
    world = PlanningCluster(3, 4)
    world.declared.by_workload = {"P1": 50_000_000, "P2": 50_000_000}
    for group, name, count in (("d/g1", "a", members), ("e/g3", "b", 1)):
        world.add_group(group, count)
        world.add_pod(group, name, "P1", 1)
        await world.plans.make_plan(group)
    if members == 3:
        assert planned_condition(world, "d/g1") == ("True", "MoreDeclared")
        assert world.planned_snapshots[0].replicas == {"P1": 3, "P2": 0}
    else:
        assert planned_condition(world, "d/g1") == ("False", "TooManyPods")
        assert world.request_plan("d/g1").plan is None
    assert world.request_plan("e/g3").plan is not None


async def test_a_failed_plan_is_reported_and_retried_later() -> None:
    world = world_with_one_pod()
    world.failure = PlanningError("DeadlineExceeded", "no plan was found within 30 s")
    assert world.request_plan("d/g1").is_pending
    await world.plans.make_plan("d/g1")
    assert planned_condition(world, "d/g1") == ("False", "DeadlineExceeded")
    plan_state = world.request_plan("d/g1")
    assert (plan_state.plan, plan_state.is_pending) == (None, False)
    world.now += MIN_BACKOFF_S
    assert world.request_plan("d/g1").is_pending
    for _ in range(1100):  # 2.0 ** 1024 overflows.
        await world.plans.make_plan("d/g1")
    assert not world.request_plan("d/g1").is_pending
    world.now += MAX_BACKOFF_S
    assert world.request_plan("d/g1").is_pending
    world.failure = None
    await world.plans.make_plan("d/g1")
    assert planned_condition(world, "d/g1") == ("True", "Complete")


async def test_a_group_that_changes_all_the_time_pauses_between_its_plans() -> None:
    world = world_with_one_pod()
    world.plan_duration_s = 2.0
    await world.plans.make_plan("d/g1")
    world.add_pod("d/g1", "b", "P1", 1)
    plan_state = world.request_plan("d/g1")
    assert plan_state.is_pending
    assert plan_state.plan is not None
    assert "d/b" not in plan_state.plan.targets
    planner = asyncio.create_task(world.plans.run())
    for _ in range(20):
        await asyncio.sleep(0)
    planner.cancel()
    assert len(world.planned_snapshots) == 1


@pytest.mark.parametrize(("weight", "nodes"), [(0, {"small", "large"}), (1, {"small"})])
async def test_small_pods_leave_the_large_node_free_with_an_allocatable_weight(weight: int, nodes: set[str]) -> None:
    world = PlanningCluster(0, 10)
    world.state.allocatable_args = AllocatableArgs(weight=weight)
    for world.cpu, name in ((10, "small"), (200, "large")):
        world.add_node(name, "z0")
    world.add_group("d/g", 6)
    for i in range(6):
        world.add_pod("d/g", f"p{i}", "P1" if i % 2 else "P2", 1)
    assert set((await world.planned_nodes("d/g")).values()) == nodes


async def test_pods_of_lower_priority_are_evicted_only_as_a_last_resort() -> None:
    """Every node is full; only n00's pods have a lower priority, and the group needs two of their places."""
    world = PlanningCluster(3, 4)
    world.add_group("d/g", 2)
    for i, priority in enumerate((0, 100, 100)):
        for n in range(4):
            world.add_pod("d/others", f"other-{i}-{n}", "", 1)
            world.update_pod(f"d/other-{i}-{n}", spec={"priority": priority})
            world.bind_and_count(f"d/other-{i}-{n}", f"n0{i}")
    for name, workload in (("p1", "P1"), ("p2", "P2")):
        world.add_pod("d/g", name, workload, 1)
        world.update_pod(f"d/{name}", spec={"priority": 10})
    assert await world.planned_nodes("d/g") == {"d/p1": "n00", "d/p2": "n00"}
    plan_state = world.request_plan("d/g")
    assert (plan_state.awaiting_rollout, plan_state.is_pending) == (frozenset(), False), (
        "no pod is evicted for a gated one"
    )
    world.update_pod("d/p1", spec={"preemptionPolicy": "Never"})
    await world.plans.make_plan("d/g")
    assert world.plan_of("d/g").unplaced == ("d/p1", "d/p2")


OTHERS = {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {APPGROUP_LABEL: "other"}}}
AWAY_FROM_OTHERS = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [OTHERS]}}


def bind_volume(world: PlanningCluster, _: str) -> None:
    expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z2"]}
    reach = {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}
    volume = msgspec.convert({"metadata": {"name": "pv"}, "spec": reach}, PersistentVolume)
    world.volumes.on_volume_change("pv", None, volume)
    body = {"metadata": {"name": "data", "namespace": "d"}, "spec": {"volumeName": "pv"}}
    world.volumes.on_claim_change("d/data", None, msgspec.convert(body, PersistentVolumeClaim))


def bind_noisy_pod(world: PlanningCluster, target: str) -> None:
    world.add_pod("d/other", "noisy", "P1", 1)
    world.bind("d/noisy", target)
    world.count_on_node("d/noisy")
    world.now += 60


@pytest.mark.parametrize(
    ("change", "hosts"),
    [
        (bind_volume, lambda target: {"d/a": {"n02"}}),
        (
            lambda world, target: world.node_cache.set_avoided_nodes(frozenset({target})),
            lambda target: {"d/a": {"n00", "n01", "n02"} - {target}},
        ),
        (bind_noisy_pod, lambda target: {"d/a": {"n00", "n01", "n02"} - {target}}),
        (
            lambda world, _: world.update_pod("d/b", spec={"schedulingGates": [{"name": GATE}]}),
            lambda target: {"d/a": {target}, "d/b": {"n00", "n01", "n02"}},
        ),
    ],
    ids=["a volume is bound", "its node is hot", "a foreign pod excludes its node", "another gate opens"],
)
async def test_a_group_is_planned_again_when_inputs_of_its_plan_change(change: Any, hosts: Any) -> None:
    world = world_with_one_pod()
    world.add_pod("d/g1", "b", "P1", 1)
    claim = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    gates = [{"name": GATE}, {"name": "kueue.x-k8s.io/admission"}]
    world.update_pod("d/a", spec={"volumes": claim, "affinity": AWAY_FROM_OTHERS})
    world.update_pod("d/b", spec={"schedulingGates": gates, "affinity": AWAY_FROM_OTHERS})
    first = await world.planned_nodes("d/g1")
    assert not world.request_plan("d/g1").is_pending
    assert first.keys() == {"d/a"}
    change(world, first["d/a"])
    assert world.request_plan("d/g1").is_pending
    second, expected = await world.planned_nodes("d/g1"), hosts(first["d/a"])
    assert second.keys() == expected.keys()
    assert all(second[key] in nodes for key, nodes in expected.items())


async def test_constraints_of_waiting_pods_count_beside_bound_pods_of_another_template() -> None:
    world = PlanningCluster(2, 4)
    world.add_group("d/g1", 2)
    for group, name, cpu, node in (("d/g1", "new", 1, ""), ("d/g1", "old", 3, "n01"), ("d/other", "noisy", 1, "n00")):
        world.add_pod(group, name, "P1", cpu)
        if node:
            world.bind_and_count(f"d/{name}", node)
    world.update_pod("d/new", spec={"affinity": AWAY_FROM_OTHERS})
    assert (await world.planned_nodes("d/g1"))["d/new"] == "n01"


async def test_a_replacement_is_simulated_without_its_pod_and_hot_nodes() -> None:
    world = PlanningCluster(2, 4)
    world.add_group("d/g1", 2)
    for name, workload, node in (("a", "P1", "n00"), ("b", "P2", "n01")):
        world.add_pod("d/g1", name, workload, 3)
        world.bind_and_count(f"d/{name}", node)

    async def simulated() -> str:
        target = await world.plans.simulate_replacement("d/g1", "d/a", 0)
        return target.node if target is not None else ""

    assert await simulated() == "n00", "n00 has the capacity only without the pod, n01 has none"
    world.add_node("n02", "z2")
    world.node_cache.set_avoided_nodes(frozenset({"n00"}))
    assert await simulated() == "n02"
    with pytest.raises(PlanningError):
        await world.plans.simulate_replacement("d/g1", "d/missing", 0)


async def test_a_node_is_reserved_for_a_replacement_until_it_exists_or_expires() -> None:
    """A StatefulSet creates a replacement after its predecessor is gone; another group's plan is made meanwhile."""
    world = PlanningCluster(2, 4)
    for group in ("d/g1", "d/g2"):
        world.add_group(group, 1)
    world.add_pod("d/g2", "other", "P1", 3)

    async def node_of_other_group() -> str:
        for group in ("d/g1", "d/g2"):
            world.plans.drop_plan(group, world.pods_of(group))
        return (await world.planned_nodes("d/g2"))["d/other"]

    reserved = await node_of_other_group()
    target = Target("z1", "r", reserved)
    world.add_pod("d/g1", "evicted", "P1", 3)
    other_target = Target("z1", "r", next(node for node in world.node_cache.hosts if node != reserved))
    freed_count = world.plans.reservations.freed_count
    for node_target, freed in ((other_target, 0), (target, 1), (target, 1)):  # Earlier evictions may have been refused.
        world.plans.expect_replacement("d/g1", "d/evicted", node_target, duration_s=60)
        assert world.plans.reservations.freed_count == freed_count + freed
    world.delete_pod("d/evicted")
    assert await node_of_other_group() != reserved
    assert world.planned_snapshots[-1].reserved[reserved]["cpu"] == 3000
    world.add_pod("d/g1", "replacement", "P1", 3)
    assert await world.planned_nodes("d/g1") == {"d/replacement": reserved}
    assert world.list_overcommitted_nodes() == []
    await world.plans.make_plan("d/g2")
    assert world.planned_snapshots[-1].reserved[reserved]["cpu"] == 3000, (
        "now the plan of its own group reserves the node"
    )
    world.delete_pod("d/replacement")
    assert await node_of_other_group() != reserved
    world.now += 61
    assert await node_of_other_group() == reserved, "the reservation has ended"


async def test_the_reservation_for_a_replacement_ends_with_its_group() -> None:
    world = world_with_one_pod()
    world.plans.expect_replacement("d/g1", "d/a", Target("z1", "r", "n00"), duration_s=60)
    freed_count = world.plans.reservations.freed_count
    world.state.on_group_change("d/g1", world.state.groups["d/g1"], None)
    world.request_plan("d/g1")
    assert world.plans.reservations.freed_count == freed_count + 1, "plans of other groups may use the node"


@pytest.mark.parametrize(
    ("waits_s", "existed_before", "is_kept"), [(1, False, True), (61, False, False), (1, True, False)]
)
async def test_a_replacement_is_planned_for_its_reserved_node_until_that_expires(
    waits_s: float, *, existed_before: bool, is_kept: bool
) -> None:
    preferred = (await world_with_one_pod(hosts=6).planned_nodes("d/g1"))["d/a"]
    world, reserved = world_with_one_pod(hosts=6), "n00" if preferred != "n00" else "n01"
    zone = world.node_cache.hosts[reserved].location.zone
    world.add_pod("d/g1", "evicted", "P1", 1)
    if not existed_before:
        world.delete_pod("d/a")
    world.plans.expect_replacement("d/g1", "d/evicted", Target(zone, "r", reserved), duration_s=60)
    world.delete_pod("d/evicted")
    world.add_pod("d/g1", "a", "P1", 1)
    world.now += waits_s
    assert await world.planned_nodes("d/g1") == {"d/a": reserved if is_kept else preferred}


@pytest.mark.parametrize(
    ("namespaces", "groups", "members", "dense", "takes_s", "before"),
    [
        pytest.param(1, 12, 1200, 0, 3.0, 1, id="large groups of one namespace"),
        pytest.param(30, 1, 1200, 0, 3.0, 1, id="large groups of thirty namespaces"),
        pytest.param(30, 1, 1, 30, 3.0, 1, id="few pods with many dependencies"),
        pytest.param(10, 6, 1, 0, 0.2, 10, id="many small groups"),
    ],
)
async def test_slow_plans_of_others_do_not_delay_a_small_group(
    namespaces: int, groups: int, members: int, dense: int, takes_s: float, before: int
) -> None:
    world = PlanningCluster(3, 4)
    world.plan_duration_s = takes_s
    hostile = [f"hostile{n}/g{i}" for n in range(namespaces) for i in range(groups)]
    for group in hostile:
        world.add_group(group, members, dense)
        world.add_pod(group, group.replace("/", "-"), "P1", 400)
    world.add_group("tenant/small", 2)
    world.add_pod("tenant/small", "web", "P1", 1)
    await world.plan_all(*hostile, "tenant/small")
    assert [namespace for namespace, _ in world.searches].index("tenant") <= before
    searches = [search_s for namespace, search_s in world.searches if namespace != "tenant"]
    assert max(searches[:-1]) <= 1, "while others wait"
    if namespaces == 1:
        assert searches[-1] < 1, "a namespace that has used much planner time gets short searches"


async def test_a_large_group_is_planned_before_newer_small_ones_of_its_namespace() -> None:
    world = PlanningCluster(3, 4)
    for group, members in (("d/large", 100), ("d/small", 1)):
        world.add_group(group, members)
        world.add_pod(group, group[2:], "P1", 1)
        world.request_plan(group)
        world.now += 60
    await world.plan_all("d/large", "d/small")
    assert [snapshot.group.metadata.name for snapshot in world.planned_snapshots] == ["large", "small"]


async def test_a_plan_with_unplaced_pods_is_made_again_only_after_resources_were_freed() -> None:
    world = world_with_one_pod(hosts=1, cpu=3)
    world.add_group("d/g2", 1)
    world.add_pod("d/g2", "other", "P1", 3)
    world.bind_and_count("d/other", "n00")
    assert await world.planned_nodes("d/g1") == {}
    world.now += 600
    assert not world.request_plan("d/g1").is_pending
    world.delete_pod("d/other")
    assert world.request_plan("d/g1").is_pending


def test_histogram_buckets_of_plans_and_gates_reach_the_longest_possible_time() -> None:
    metrics = GateMetrics(CollectorRegistry())
    for histogram, longest_s in ((metrics.plan_duration, PLAN_TIME_LIMIT_S), (metrics.gate_wait, 3600)):
        (family,) = histogram.collect()
        bounds = sorted(float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels)
        assert bounds[-2] >= longest_s
