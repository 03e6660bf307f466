"""A round is found over in a thread, of a world that stands still; what has changed by then is not evicted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.cluster.services import Service
from controller.cluster.volumes import PersistentVolumeClaim
from controller.descheduler import program as of_program
from controller.descheduler.decide import evaluate
from controller.descheduler.load import LoadRound
from controller.descheduler.program import Descheduler
from controller.descheduler.snapshot import Budget
from kubekit.wire import Node, ObjectMeta
from tests.unit.controller.descheduling import (
    CALM,
    GI,
    NOW_S,
    DeschedulerConfig,
    History,
    PersistentVolume,
    RoundState,
    SchedulerConfig,
    State,
    UsageBatch,
    UsageReading,
    UsageSmoother,
    Volumes,
    World,
    moved,
    pending_move,
    pod,
    settings,
)
from tests.unit.controller.test_descheduler_misplacement import cluster

PATIENCE_S = 5.0
POLICY = {
    "lowThresholds": {"cpu": 20, "memory": 30},
    "highThresholds": {"cpu": 50, "memory": 60},
    "anomalyCondition": CALM,
}
NODES = {"hot": 3.6, "cold": 0.1, "cool": 0.2}


def batch_of(world: World, nodes: dict[str, float]) -> UsageBatch:
    cores = {name: nodes.get(name, 0.1) for name in world.nodes}
    found = [UsageReading(name, "cpu", 1000 * used, NOW_S) for name, used in cores.items()]
    found += [UsageReading(name, "memory", float(GI), NOW_S) for name in cores]
    pods = [UsageReading(key, "cpu", 500.0, NOW_S) for key in world.pods]
    return UsageBatch(tuple(found), tuple(pods))


class Api:
    """Of the client, what a round needs."""

    def __init__(self) -> None:
        self.evicted: list[str] = []

    async def evict(self, namespace: str, name: str, uid: str, *, dry_run: bool = False) -> None:
        self.evicted.append(name)

    async def apply(self, *_: Any, **__: Any) -> None:
        pass


class Source:
    """Of usage."""

    world: World

    async def read(self) -> UsageBatch:
        return batch_of(self.world, NODES)


def node(name: str) -> Node:
    document = {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {
            "allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    return msgspec.convert(document, Node)


def program(api: Api) -> Descheduler:
    """Over three nodes, one of them hot by four pods."""
    free = {"minChancePercent": 0, "perWorkload": 100, "unavailablePerWorkload": 100, "perNode": 100}
    document = {"policy": POLICY, "limits": free, "protection": {"minReplicas": 1, "minPodAgeS": 0}}
    config = msgspec.convert(document, DeschedulerConfig)
    network, source = State(SchedulerConfig(), "netaware-system"), Source()
    found = Descheduler(
        cast("Any", api),
        cast("Any", SimpleNamespace(nodes=SimpleNamespace(items={}))),
        config,
        cast("Any", SimpleNamespace(normal=lambda *_: None, warning=lambda *_: None)),
        CollectorRegistry(),
        namespace="netaware-system",
        network=network,
        volumes=Volumes(),
        planner=cast("Any", SimpleNamespace(simulate_replacement=None)),
        set_hot_nodes=lambda _: None,
        source=source,
        wall=lambda: NOW_S,
    )
    source.world = found.world
    for name in NODES:
        found.world.take_node(name, None, node(name))
    for name in ("a", "b", "c", "d"):
        found.world.take_pod(f"default/{name}", None, pod(name, "hot"))
    return found


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> list[bool]:
    """Do this on the event loop while the rule is at work; the list says afterwards whether the loop had its turn."""
    loop, turn, had, plan = asyncio.get_running_loop(), threading.Event(), list[bool](), LoadRound.plan

    def act_in_turn() -> None:
        act()
        turn.set()

    def slow(self: LoadRound, *args: Any, **more: Any) -> Any:
        loop.call_soon_threadsafe(act_in_turn)
        had.append(turn.wait(PATIENCE_S))
        return plan(self, *args, **more)

    monkeypatch.setattr(LoadRound, "plan", slow)
    return had


async def test_others_have_their_turn_while_a_round_is_thought_over(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    descheduler, had = program(api), meanwhile(monkeypatch, lambda: None)
    decision = await descheduler.round()
    assert had == [True]
    assert api.evicted == moved(decision) != []


@pytest.mark.parametrize(
    ("strategy", "ago_s", "looks"), [("ZoneSurvival", 60, 5), ("ZoneSurvival", 240, 0), ("LowNodeLoad", 60, 0)]
)
async def test_while_a_zone_is_filled_there_are_looks_between_two_rounds(
    monkeypatch: pytest.MonkeyPatch, strategy: str, ago_s: float, looks: int
) -> None:
    descheduler, rounds, over = program(Api()), list[bool](), asyncio.Event()
    moved_before = pending_move("default/a", "a", "default/Deployment/a", "hot", NOW_S - ago_s, cast("Any", strategy))

    async def load() -> History:
        return History(pending=(moved_before,))

    async def round_(*, survival_only: bool = False) -> None:
        rounds.append(survival_only)
        if len(rounds) > 1 and not survival_only:
            over.set()

    synced = SimpleNamespace(synced=asyncio.Event())
    synced.synced.set()
    monkeypatch.setattr(descheduler, "_caches", SimpleNamespace(pods=synced))
    monkeypatch.setattr(descheduler, "_budgets", synced)
    monkeypatch.setattr(descheduler._store, "load", load)
    monkeypatch.setattr(descheduler, "round", round_)
    # A round of 60 s, and looks 10 s apart, a hundred times as fast.
    slept = asyncio.sleep
    monkeypatch.setattr(of_program, "FILL_S", 10.0)
    monkeypatch.setattr(asyncio, "sleep", lambda s: slept(s / 100))
    running = asyncio.create_task(descheduler._rounds())
    await asyncio.wait_for(over.wait(), PATIENCE_S)
    running.cancel()
    assert rounds == [False, *[True] * looks, False]


async def test_what_changes_meanwhile_changes_no_decision_and_is_not_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = moved(await program(Api()).round())
    api = Api()
    descheduler = program(api)
    first, second, *rest = expected

    def change() -> None:
        descheduler.world.take_pod(f"default/{first}", None, None)
        descheduler.world.take_pod(f"default/{second}", None, pod(second, "cool", uid="another"))

    had = meanwhile(monkeypatch, change)
    decision = await descheduler.round()
    assert had == [True]
    assert moved(decision) == expected
    assert api.evicted == rest


async def test_a_target_that_goes_away_meanwhile_gets_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    descheduler = program(api)
    decision = await program(Api()).round()
    stays = [m.pod.partition("/")[2] for m in decision.plan.moves if m.target != "cold"]
    meanwhile(monkeypatch, lambda: descheduler.world.take_node("cold", None, None))
    assert len(moved(await descheduler.round())) > len(stays)
    assert api.evicted == stays


def whole() -> World:
    """With something in each of its indexes, and a pod that its network misplaces."""
    world = cluster({"web-0": "z3-n1", "db-0": "z1-n1", "db-1": "z1-n2"})
    budget = {"metadata": {"name": "b", "namespace": "default"}, "spec": {"selector": {}}}
    world.take_budget("default/b", None, msgspec.convert({**budget, "status": {"disruptionsAllowed": 5}}, Budget))
    volume = {"metadata": {"name": "v", "labels": {"topology.kubernetes.io/zone": "z1"}}}
    bound = {**volume, "spec": {"claimRef": {"namespace": "default", "name": "c"}}}
    world._volumes.take_volume("v", None, msgspec.convert(bound, PersistentVolume))
    claim = msgspec.convert({"metadata": {"name": "c"}, "spec": {"volumeName": "v"}}, PersistentVolumeClaim)
    world._volumes.take_claim("default/c", None, claim)
    service = {"metadata": {"name": "db", "namespace": "default"}, "spec": {"selector": {"app": "db"}}}
    world.network.take_service("default/db", None, msgspec.convert(service, Service))
    world.network.weigh("default", "shop", "web")
    return world


def decided(world: World) -> Any:
    rules = settings(misplacement={"enabled": True})
    batch = batch_of(world, {"z2-n1": 3.6})
    found = evaluate(
        world, UsageSmoother(0, 180), batch, History(), RoundState(), settings=rules, now=NOW_S, confirmed=True
    )
    return found.unconfirmed.decision


def test_a_copy_decides_as_the_world_did_whatever_is_taken_later() -> None:
    world = whole()
    before, still = decided(world), world.copy()
    assert "web-0" in moved(before)
    group = msgspec.structs.replace(world.network.groups["default/shop"], metadata=ObjectMeta(name="x", namespace="y"))
    world.network.take_group("y/x", None, group)
    world.network.take_group("default/shop", None, None)
    world.network.take_topology("default/nt-default", None, None)
    for name in list(world.nodes):
        world.take_node(name, None, None)
    for key in list(world.pods):
        world.take_pod(key, None, None)
    assert moved(decided(world)) == []
    assert decided(still) == before
