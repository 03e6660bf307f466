"""Plans of all groups: no room is given away twice, nobody's group hurts another's, and what is not planned says so."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Histogram

from controller.cluster.pods import GATE, Target, target_of
from controller.cluster.resources import APPGROUP_LABEL
from controller.cluster.volumes import PersistentVolume, PersistentVolumeClaim
from controller.scheduler.config import AllocatableArgs
from controller.scheduler.gating.group_plans import FIRST_PAUSE_S, LONGEST_PAUSE_S
from controller.scheduler.metrics import GateMetrics
from controller.scheduler.placement.planner import Plan, PlanningError, plan_group
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.placement.worker import DEADLINE_S as WORKER_DEADLINE_S
from kubekit.wire import Node
from tests.unit.controller.leader import World

UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/12 nodes"}]


ROUNDS = int(os.environ.get("NETAWARE_ROUNDS", "12"))
"""A dozen keep watch; the note of a change to promises says that 1,000 were played."""
GROUPS = ("d/g1", "d/g2", "e/g3")


async def play(seed: int) -> int:
    """One round: three groups at once on 12 hosts of 4 cpu, in an order that nobody chose; how many pods got a place."""
    rng, world = random.Random(seed), World(12, 4)
    cpu = {(group, workload): rng.choice([1, 2, 3, 4]) for group in GROUPS for workload in ("P1", "P2")}
    for group in GROUPS:
        world.add_group(group, 4)
        for i in range(rng.randint(2, 8)):
            workload = rng.choice(["P1", "P2"])
            world.add_pod(group, f"{group[2:]}-{i}", workload, cpu[group, workload])
    for group in rng.sample(GROUPS, 3):
        await world.plans.make(group)
        assert world.overbooked() == []
    placed = sum(len(world.plan_of(group).targets) for group in GROUPS)
    for step in range(12):
        world.now += 60
        group = rng.choice(GROUPS)
        pods = world.of(group)
        if not pods:
            continue
        pod = rng.choice(pods)
        key = pod.metadata.key
        target = world.plan_of(group).targets.get(key)
        match rng.choice(["release", "bind", "refuse", "delete", "add", "seat"]):
            case "release" if pod.gated:
                world.release(key, target)
            case "bind" if pod.waiting and not pod.gated and (node := world.free_node(pod, rng)):
                world.bind(key, node)
            case "refuse" if pod.waiting and not pod.gated and not pod.found_no_node:
                world.change(key, status={"conditions": UNSCHEDULABLE})
                if (carried := target_of(pod)) is not None:
                    world.plans.reservations.refuse(world.pods[key], carried.node)
            case "delete":
                world.delete(group, key)
            case "add":
                world.add_pod(group, f"{group[2:]}-new-{step}", "P1", cpu[group, "P1"])
            case "seat" if pod.bound:
                world.seat(key)
        # What was bound against the plan may take the room that was promised to a group which has looked already.
        for other in rng.sample(GROUPS, 3) + rng.sample(GROUPS, 3):
            pods = world.of(other)
            if not any(p.waiting for p in pods):
                world.plans.drop(other, pods)
            elif world.plans.get_or_request(other, pods).pending:
                await world.plans.make(other)
        # Who gives way to a group that has begun looks again.
        for idle in world.plans.reservations.idle:
            if world.plans.get_or_request(idle, world.of(idle)).pending:
                await world.plans.make(idle)
        assert world.overbooked() == []
    return placed


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_three_groups_at_once_never_count_on_the_same_room(seed: int) -> None:
    assert await play(seed) > 0


async def test_what_the_scheduler_refused_is_not_asked_for_again_until_the_host_changes() -> None:
    world = World(3, 4)
    world.add_group("d/g1", 1)
    world.add_pod("d/g1", "a", "P1", 2)
    await world.plans.make("d/g1")
    first = world.plan_of("d/g1").targets["d/a"].node
    world.release("d/a", world.plan_of("d/g1").targets["d/a"])
    world.change("d/a", status={"conditions": UNSCHEDULABLE})
    world.plans.reservations.refuse(world.pods["d/a"], first)
    assert world.plans.get_or_request("d/g1", world.of("d/g1")).pending
    await world.plans.make("d/g1")
    second = world.plan_of("d/g1").targets["d/a"].node
    assert second != first
    assert world.plans.reservations.refused(world.of("d/g1")) == {"d/a": frozenset({first})}
    node = {
        "metadata": {"name": first, "labels": {"new": "label"}},
        "status": {"allocatable": {"cpu": "4", "pods": "9"}},
    }
    world.node_cache.on_node_change(first, None, msgspec.convert(node, Node))
    assert world.plans.reservations.refused(world.of("d/g1")) == {}


@pytest.mark.parametrize(
    ("is_bound", "happens", "is_refused"),
    [(True, "delete", False), (False, "delete", False), (False, "bind", True)],
    ids=["a pod leaves", "a reservation ends", "a reservation becomes a pod"],
)
async def test_a_host_that_refused_is_asked_again_when_room_comes(
    happens: str, *, is_bound: bool, is_refused: bool
) -> None:
    world = World(1, 4)
    world.add_group("d/g1", 1)
    world.add_group("d/g2", 1)
    world.add_pod("d/g2", "b", "P1", 3)

    def bind() -> None:
        world.bind("d/b", "n00")
        world.seat("d/b")

    if is_bound:
        bind()
    else:
        await world.plans.make("d/g2")
    refused = world.add_pod("d/g1", "a", "P1", 2)
    world.plans.reservations.refuse(refused, "n00")
    assert world.plans.reservations.refused([refused]) == {"d/a": frozenset({"n00"})}
    bind() if happens == "bind" else world.delete("d/g2", "d/b")
    assert bool(world.plans.reservations.refused([refused])) == is_refused


async def test_the_reservations_of_a_deleted_group_end_while_its_pods_wait() -> None:
    world = World(1, 4)
    world.add_group("d/g1", 1)
    world.add_pod("d/g1", "a", "P1", 3)
    await world.plans.make("d/g1")
    assert world.plans.reservations.reserved_by_others("d/g2")
    world.state.on_group_change("d/g1", world.state.groups["d/g1"], None)
    world.plans.get_or_request("d/g1", world.of("d/g1"))
    assert world.plans.reservations.reserved_by_others("d/g2") == {}


async def test_a_group_that_stands_in_part_gets_the_room_of_one_that_cannot_come_up_whole() -> None:
    """It would keep it for two minutes."""
    world = World(2, 4)
    for group in ("d/begun", "d/idle"):
        world.add_group(group, 2)
    world.add_pod("d/begun", "a", "P1", 4)
    world.add_pod("d/begun", "b", "P2", 3)
    world.bind("d/a", "n00")
    world.seat("d/a")
    world.add_pod("d/idle", "c", "P1", 2)
    world.add_pod("d/idle", "e", "P2", 9)
    await world.plans.make("d/idle")
    assert world.plan_of("d/idle").targets["d/c"].node == "n01"
    await world.plans.make("d/begun")
    assert world.plan_of("d/begun").targets["d/b"].node == "n01"
    assert "d/idle" in world.woken
    assert world.plans.get_or_request("d/idle", world.of("d/idle")).pending
    await world.plans.make("d/idle")
    assert world.plan_of("d/idle").targets == {}
    assert not world.plans.get_or_request("d/begun", world.of("d/begun")).pending


async def test_a_group_that_comes_up_whole_gives_no_room_to_one_that_stands_in_part() -> None:
    world = World(2, 4)
    for group in ("d/begun", "d/whole"):
        world.add_group(group, 2)
    world.add_pod("d/begun", "a", "P1", 4)
    world.add_pod("d/begun", "b", "P2", 3)
    world.bind("d/a", "n00")
    world.seat("d/a")
    world.add_pod("d/whole", "c", "P1", 2)
    await world.plans.make("d/whole")
    await world.plans.make("d/begun")
    assert world.plan_of("d/begun").unplaced == ("d/b",)


@pytest.mark.parametrize("members", [3, 50_000_000])
async def test_replicas_that_do_not_exist_count_up_to_what_the_group_says_it_has(members: int) -> None:
    """Two workloads that declare 50 million pods cost their owner nothing; nobody else is to pay."""
    world = World(3, 4)
    world.declared.by_workload = {"P1": 50_000_000, "P2": 50_000_000}
    world.add_group("d/g1", members)
    world.add_pod("d/g1", "a", "P1", 1)
    world.add_group("e/g3", 1)
    world.add_pod("e/g3", "b", "P1", 1)
    await world.plans.make("d/g1")
    await world.plans.make("e/g3")
    report = world.plans.report("d/g1")
    assert report is not None
    if members == 3:
        assert (report.status, report.reason) == ("True", "MoreDeclared")
        assert world.asked[0].replicas == {"P1": 3, "P2": 0}
    else:
        assert (report.status, report.reason) == ("False", "TooManyPods")
        assert "at most 10000 are planned together; its pods are placed by the plain rule" in report.message
        assert world.plans.get_or_request("d/g1", world.of("d/g1")).plan is None
    assert world.plans.get_or_request("e/g3", world.of("e/g3")).plan is not None


async def test_a_plan_that_cannot_be_made_is_said_and_tried_again_later() -> None:
    world = World(3, 4)
    world.add_group("d/g1", 1)
    world.add_pod("d/g1", "a", "P1", 1)
    world.failure = PlanningError("DeadlineExceeded", "no plan was found within 30 s")
    assert world.plans.get_or_request("d/g1", world.of("d/g1")).pending
    await world.plans.make("d/g1")
    report = world.plans.report("d/g1")
    assert report is not None
    assert report.message == "no plan was found within 30 s; its pods are placed by the plain rule"
    plan_state = world.plans.get_or_request("d/g1", world.of("d/g1"))
    assert (plan_state.plan, plan_state.pending) == (None, False)
    world.now += FIRST_PAUSE_S
    assert world.plans.get_or_request("d/g1", world.of("d/g1")).pending
    for _ in range(1100):  # 2.0 ** 1024 overflows.
        await world.plans.make("d/g1")
    assert not world.plans.get_or_request("d/g1", world.of("d/g1")).pending
    world.now += LONGEST_PAUSE_S
    assert world.plans.get_or_request("d/g1", world.of("d/g1")).pending
    world.failure = None
    await world.plans.make("d/g1")
    report = world.plans.report("d/g1")
    assert report is not None
    assert report.reason == "Complete"


async def test_a_group_that_never_settles_rests_between_its_plans() -> None:
    world = World(3, 4)
    world.add_group("d/g1", 1)
    world.add_pod("d/g1", "a", "P1", 1)

    async def slow(snapshot: GroupSnapshot, *_: object) -> Plan:
        world.now += 2.0
        return plan_group(snapshot)

    world.plans._solve = slow
    await world.plans.make("d/g1")
    world.add_pod("d/g1", "b", "P1", 1)
    plan_state = world.plans.get_or_request("d/g1", world.of("d/g1"))
    assert plan_state.pending
    assert plan_state.plan is not None
    assert "d/b" not in plan_state.plan.targets
    assert len(world.plans._queue) == 0
    await asyncio.sleep(0)


@pytest.mark.parametrize(("weight", "nodes"), [(0, {"small", "large"}), (1, {"small"})])
async def test_small_pods_leave_the_large_node_free_where_allocatable_counts(weight: int, nodes: set[str]) -> None:
    """Seed 002, as an AppGroup."""
    world = World(0, 10)
    world.state.allocatable = AllocatableArgs(weight=weight)
    for world.cpu, name in ((10, "small"), (200, "large")):
        world.add_node(name, "z0")
    world.add_group("d/g", 6)
    for i in range(6):
        world.add_pod("d/g", f"p{i}", "P1" if i % 2 else "P2", 1)
    await world.plans.make("d/g")
    plan = world.plans.get_or_request("d/g", world.of("d/g")).plan
    assert plan is not None
    assert {target.node for target in plan.targets.values()} == nodes


async def test_what_pods_of_less_priority_hold_is_room_of_last_resort() -> None:
    """Every node is full; only n00's pods are less important than the group, and evicting one of them is not enough."""
    world = World(3, 4)
    world.add_group("d/g", 2)
    for i, priority in enumerate((0, 100, 100)):
        for n in range(4):
            world.add_pod("d/others", f"other-{i}-{n}", "", 1)
            world.change(f"d/other-{i}-{n}", spec={"priority": priority})
            world.bind(f"d/other-{i}-{n}", f"n0{i}")
            world.seat(f"d/other-{i}-{n}")
    for name, workload in (("p1", "P1"), ("p2", "P2")):
        world.add_pod("d/g", name, workload, 1)
        world.change(f"d/{name}", spec={"priority": 10})
    await world.plans.make("d/g")
    found = world.plans.get_or_request("d/g", world.of("d/g"))
    assert found.plan is not None
    assert {key: target.node for key, target in found.plan.targets.items()} == {"d/p1": "n00", "d/p2": "n00"}
    assert (found.awaiting_room, found.pending) == (frozenset(), False), (
        "nobody evicts for a pod that waits at its gate"
    )
    world.change("d/p1", spec={"preemptionPolicy": "Never"})
    await world.plans.make("d/g")
    found = world.plans.get_or_request("d/g", world.of("d/g"))
    assert found.plan is not None
    assert found.plan.unplaced == ("d/p1", "d/p2")


def bind_volume(world: World, _: str) -> None:
    expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z2"]}
    reach = {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}
    volume = msgspec.convert({"metadata": {"name": "pv"}, "spec": reach}, PersistentVolume)
    world.volumes.on_volume_change("pv", None, volume)
    body = {"metadata": {"name": "data", "namespace": "d"}, "spec": {"volumeName": "pv"}}
    world.volumes.on_claim_change("d/data", None, msgspec.convert(body, PersistentVolumeClaim))


def heat_target(world: World, target: str) -> None:
    world.node_cache.set_hot_nodes(frozenset({target}))


def open_other_gate(world: World, _: str) -> None:
    world.change("d/b", spec={"schedulingGates": [{"name": GATE}]})


@pytest.mark.parametrize(
    ("change", "hosts"),
    [
        (bind_volume, lambda target: {"d/a": {"n02"}}),
        (heat_target, lambda target: {"d/a": {"n00", "n01", "n02"} - {target}}),
        (open_other_gate, lambda target: {"d/a": {target}, "d/b": {"n00", "n01", "n02"}}),
    ],
    ids=["a volume is bound", "its host is hot", "another gate opens"],
)
async def test_a_group_is_planned_anew_when_what_its_plan_rests_on_changes(change: Any, hosts: Any) -> None:
    world = World(3, 4)
    world.add_group("d/g1", 2)
    for name in ("a", "b"):
        world.add_pod("d/g1", name, "P1", 1)
    world.change("d/a", spec={"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]})
    world.change("d/b", spec={"schedulingGates": [{"name": GATE}, {"name": "kueue.x-k8s.io/admission"}]})
    await world.plans.make("d/g1")
    assert not world.plans.get_or_request("d/g1", world.of("d/g1")).pending
    assert set(world.plan_of("d/g1").targets) == {"d/a"}
    target = world.plan_of("d/g1").targets["d/a"].node
    change(world, target)
    assert world.plans.get_or_request("d/g1", world.of("d/g1")).pending
    await world.plans.make("d/g1")
    found = world.plan_of("d/g1").targets
    assert found.keys() == hosts(target).keys()
    assert all(found[key].node in nodes for key, nodes in hosts(target).items())


async def test_a_bound_pod_of_another_template_does_not_hide_what_the_waiting_one_demands() -> None:
    world = World(2, 4)
    world.add_group("d/g1", 2)
    for group, name, cpu, node in (("d/g1", "new", 1, ""), ("d/g1", "old", 3, "n01"), ("d/other", "noisy", 1, "n00")):
        world.add_pod(group, name, "P1", cpu)
        if node:
            world.bind(f"d/{name}", node)
            world.seat(f"d/{name}")
    term = {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {APPGROUP_LABEL: "other"}}}
    world.change(
        "d/new", spec={"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    )
    await world.plans.make("d/g1")
    assert world.plan_of("d/g1").targets["d/new"].node == "n01"


async def test_a_bound_pod_is_placed_anew_as_if_it_were_gone_and_hot_hosts_are_left_out() -> None:
    world = World(2, 4)
    world.add_group("d/g1", 2)
    for name, workload, host in (("a", "P1", "n00"), ("b", "P2", "n01")):
        world.add_pod("d/g1", name, workload, 3)
        world.bind(f"d/{name}", host)
        world.seat(f"d/{name}")
    # n00 has room for it only because it is gone from there; n01 has none.
    found = await world.plans.simulate_replacement("d/g1", "d/a", 0)
    assert found is not None
    assert found.node == "n00"
    world.add_node("n02", "z2")
    world.node_cache.set_hot_nodes(frozenset({"n00"}))
    found = await world.plans.simulate_replacement("d/g1", "d/a", 0)
    assert found is not None
    assert found.node == "n02"
    with pytest.raises(PlanningError):
        await world.plans.simulate_replacement("d/g1", "d/nobody", 0)


async def test_a_replacement_is_planned_for_the_host_that_was_promised_until_nobody_waits_for_it() -> None:
    async def goes_to(promised: str, waits_s: float) -> str:
        world = World(6, 4)
        world.add_group("d/g1", 1)
        world.add_pod("d/g1", "new", "P1", 1)
        if promised:
            host = world.node_cache.hosts[promised]
            world.plans.expect_replacement("d/g1", "P1", Target(host.location.zone, "r", promised), (), for_s=60)
        world.now += waits_s
        await world.plans.make("d/g1")
        return world.plan_of("d/g1").targets["d/new"].node

    unasked = await goes_to("", 0)
    other = "n00" if unasked != "n00" else "n01"
    assert await goes_to(other, 1) == other
    assert await goes_to(other, 61) == unasked


async def test_room_that_was_promised_to_a_replacement_is_kept_from_other_groups_until_it_has_come() -> None:
    """A StatefulSet's replacement comes when its predecessor is gone; another group's plan is made meanwhile."""
    world = World(2, 4)
    for group in ("d/g1", "d/g2"):
        world.add_group(group, 1)
    world.add_pod("d/g2", "other", "P1", 3)

    async def other_goes_to() -> str:
        await world.plans.make("d/g2")
        return world.plan_of("d/g2").targets["d/other"].node

    wanted = await other_goes_to()
    world.plans.drop("d/g2", world.of("d/g2"))
    world.plans.expect_replacement(
        "d/g1", "P1", Target("z1", "r", wanted), (), for_s=60, requests={"cpu": 3000, "pods": 1}
    )
    elsewhere = await other_goes_to()
    assert elsewhere != wanted
    world.add_pod("d/g1", "heir", "P1", 3)
    await world.plans.make("d/g1")
    assert world.plan_of("d/g1").targets["d/heir"].node == wanted
    assert world.overbooked() == []
    world.delete("d/g1", "d/heir")
    for group in ("d/g1", "d/g2"):
        world.plans.drop(group, world.of(group))
    assert await other_goes_to() != wanted
    world.plans.drop("d/g2", world.of("d/g2"))
    world.now += 61
    assert await other_goes_to() == wanted, "nobody waits for it any more"


@pytest.mark.parametrize(
    ("namespaces", "groups", "members", "dense", "takes_s", "before"),
    [
        pytest.param(1, 12, 1200, 0, 3.0, 1, id="of one namespace"),
        pytest.param(30, 1, 1200, 0, 3.0, 1, id="of thirty"),
        pytest.param(30, 1, 1, 30, 3.0, 1, id="few pods of many dependencies"),
        pytest.param(10, 6, 1, 0, 0.2, 10, id="many tiny ones"),
    ],
)
async def test_slow_plans_of_others_do_not_keep_a_small_group_waiting(
    namespaces: int, groups: int, members: int, dense: int, takes_s: float, before: int
) -> None:
    world = World(3, 4)
    world.plan_takes_s = takes_s
    hostile = [f"hostile{n}/g{i}" for n in range(namespaces) for i in range(groups)]
    for group in hostile:
        world.add_group(group, members, dense)
        world.add_pod(group, group.replace("/", "-"), "P1", 400)
    world.add_group("tenant/small", 2)
    world.add_pod("tenant/small", "web", "P1", 1)
    everybody = [*hostile, "tenant/small"]
    async with asyncio.TaskGroup() as tasks:
        for group in everybody:
            world.plans.get_or_request(group, world.of(group))
        planner = tasks.create_task(world.plans.run())
        while len(world.solved) < len(everybody):
            await asyncio.sleep(0)
        planner.cancel()
    assert [namespace for namespace, _ in world.solved].index("tenant") <= before
    searches = [search_s for namespace, search_s in world.solved if namespace != "tenant"]
    assert max(searches[:-1]) <= 1, "while others wait"
    if namespaces == 1:
        assert searches[-1] < 1, "who has used much planner time gets short searches"


async def test_a_plan_that_left_pods_out_is_made_anew_only_when_room_came() -> None:
    world = World(1, 4)
    world.add_group("d/g1", 2)
    world.add_group("d/g2", 1)
    world.bind(world.add_pod("d/g2", "other", "P1", 3).metadata.key, "n00")
    world.seat("d/other")
    world.add_pod("d/g1", "web", "P1", 3)
    await world.plans.make("d/g1")
    world.now += 600
    assert not world.plans.get_or_request("d/g1", world.of("d/g1")).pending
    world.delete("d/g2", "d/other")
    assert world.plans.get_or_request("d/g1", world.of("d/g1")).pending


async def test_a_large_group_gets_its_turn_though_small_ones_of_its_namespace_come_again() -> None:
    world = World(3, 4)
    for group, members in (("d/large", 100), ("d/small", 1)):
        world.add_group(group, members)
        world.add_pod(group, group[2:], "P1", 1)
        world.plans.get_or_request(group, world.of(group))
        world.now += 60
    planner = asyncio.create_task(world.plans.run())
    while len(world.asked) < 2:
        await asyncio.sleep(0)
    planner.cancel()
    assert [snapshot.group.metadata.name for snapshot in world.asked] == ["large", "small"]


def test_buckets_of_plans_and_gates_reach_the_longest_that_may_be() -> None:
    metrics = GateMetrics(CollectorRegistry())

    def longest(histogram: Histogram) -> float:
        (family,) = histogram.collect()
        return sorted(float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels)[-2]

    assert longest(metrics.planning) >= WORKER_DEADLINE_S
    assert longest(metrics.waited) >= 3600
