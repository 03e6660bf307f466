"""Before a pod goes, whoever will place its replacement is asked where that would land; it goes only for a gain that is likely."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.descheduler.low_node_load import nodes_to_taint
from controller.descheduler.reporting import taint_patches
from controller.descheduler.round_plan import NodeState
from kubekit.wire import Node
from netperf.contract import HOT_TAINT
from tests.unit.controller.descheduling import (
    NOW_S,
    Detector,
    History,
    LoadSnapshot,
    MoveResult,
    PersistentVolume,
    PodInfo,
    RoundDecision,
    RoundState,
    Volumes,
    amounts,
    decided,
    follow_up,
    moved,
    node,
    once,
    pending_move,
    pod,
    settings,
    snapshot,
)

ASKS: dict[str, Any] = {"minChancePercent": 95}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SPREAD = [
    {
        "topologyKey": "zone",
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
]


def skips(decision: RoundDecision) -> dict[str, str]:
    return {skip.pod.partition("/")[2]: skip.condition for skip in decision.plan.skips}


def two_idle(victim: PodInfo, *others: PodInfo, view: dict[str, Any] | None = None, **limits: Any) -> RoundDecision:
    """A hot node and two idle ones, of which one is full of requests."""
    full = pod("hoarder", "promised", cpu="3", memory="12Gi", owner="ReplicaSet/hoarder")
    base = pod("base", "hot", cpu="1500m", memory="4Gi", owner="DaemonSet/base")
    nodes = [node("hot"), node("promised"), node("chosen")]
    usage = {"hot": amounts(3.5, 1), "promised": amounts(0.1, 1), "chosen": amounts(0.2, 1), **(view or {})}
    found = snapshot(nodes, [victim, full, base, *others], usage, {victim.name: amounts(1, 1)})
    return once(found, settings(limits={**ASKS, **limits}))


VICTIM = pod("web", "hot", cpu="500m", memory="1Gi")


@pytest.mark.parametrize(
    ("others", "chosen_cores", "limits", "target"),
    [
        ([], 0.2, {}, "chosen"),
        # The least used node, where nobody is asked.
        ([], 0.2, {"minChancePercent": 0}, "promised"),
        ([], 0.92, {}, "chosen"),
        ([], 1.05, {}, ""),
        ([], 1.9, {}, ""),
        # Its own node would be the emptiest by requests.
        ([pod("o", "chosen", cpu="2", memory="6Gi")], 0.2, {}, ""),
    ],
)
def test_a_pod_goes_only_where_kube_scheduler_would_put_it_for_a_gain(
    others: list[PodInfo], chosen_cores: float, limits: dict[str, int], target: str
) -> None:
    decision = two_idle(VICTIM, *others, view={"chosen": amounts(chosen_cores, 1)}, **limits)
    assert [move.target for move in decision.plan.moves] == ([target] if target else [])
    assert target or skips(decision)["web"] == "prediction"


@pytest.mark.parametrize("scheduler", ["default-scheduler", "bin-packing"])
def test_of_foreign_schedulers_nothing_is_known_and_the_least_loaded_node_is_promised(scheduler: str) -> None:
    victim = pod("web", "hot", cpu="500m", memory="1Gi", spec={"schedulerName": scheduler})
    (move,) = two_idle(victim).plan.moves
    assert move.target == ("chosen" if scheduler == "default-scheduler" else "promised")


def test_hosts_of_equal_score_share_the_chance() -> None:
    """A StatefulSet waits for the end of its pod, so that of three equal nodes one is hot: two in three are not enough."""
    nodes = [node(name) for name in ("hot", "a", "b")]
    usage = {"hot": amounts(3.5, 1), "a": amounts(0.1, 1), "b": amounts(0.1, 1)}

    def go(owner: str, chance: int) -> list[str]:
        view = snapshot(nodes, [pod("web", "hot", cpu="1", owner=owner)], usage, {"web": amounts(1, 1)})
        return moved(once(view, settings(limits={"minChancePercent": chance})))

    assert go("StatefulSet/web", 80) == []
    assert go("StatefulSet/web", 60) == ["web"]
    # A ReplicaSet makes the replacement while its predecessor still counts on the hot node.
    assert go("ReplicaSet/web", 80) == ["web"]


# What of a round, or of a deletion, has happened by the time a replacement is placed


def three(*pods: PodInfo, used: dict[str, float]) -> RoundDecision:
    """Two hot nodes and an idle one; each pod uses 0.9 cores."""
    nodes = [node("hot-1"), node("hot-2"), node("idle")]
    usage = {n.name: amounts(used[n.name], 1) for n in nodes}
    return once(snapshot(nodes, pods, usage, {p.name: amounts(0.9, 0.5) for p in pods}), settings(limits=ASKS))


FIRST = pod("first", "hot-1", cpu="2", owner="ReplicaSet/first")
SECOND = pod("second", "hot-2", cpu="500m", owner="ReplicaSet/second")
HELD = pod("held", "hot-2", cpu="2500m", owner="DaemonSet/held")


def test_a_pod_stays_while_the_node_that_another_has_just_left_might_take_it() -> None:
    """As long as the first one's predecessor ends, its node is full; an instant later it is the emptiest, and as hot."""
    used = {"hot-1": 3.6, "hot-2": 3.5, "idle": 0.1}
    assert moved(three(SECOND, HELD, pod("b", "hot-1", cpu="2", owner="DaemonSet/b"), used=used)) == ["second"]
    decision = three(FIRST, pod("b", "hot-1", cpu="500m", owner="DaemonSet/b"), SECOND, HELD, used=used)
    assert (moved(decision), skips(decision)["second"]) == (["first"], "prediction")


def test_a_pod_stays_while_a_node_might_take_it_that_another_pod_is_leaving() -> None:
    going = pod("going", "hot-1", cpu="2", owner="ReplicaSet/first", deleting=True)
    used = {"hot-1": 3.6, "hot-2": 3.5, "idle": 0.1}
    decision = three(going, SECOND, HELD, used=used)
    assert (moved(decision), skips(decision)["second"]) == ([], "prediction")


def test_a_pod_is_counted_on_each_host_where_it_may_land() -> None:
    """Two equal hosts have room for one of these each, and which of them takes the first one is a matter of luck."""
    nodes = [node(name) for name in ("hot", "a", "b")]
    web = [pod(f"w{i}", "hot", cpu="1", owner=f"ReplicaSet/w{i}") for i in range(2)]
    usage = {"hot": amounts(3.9, 1), "a": amounts(0.5, 1), "b": amounts(0.5, 1)}
    view = snapshot(nodes, web, usage, {p.name: amounts(1.2, 0.5) for p in web})
    assert len(moved(once(view, settings(limits=ASKS)))) == 1


# What binds a replacement beside its own constraints


BY_HOST = {"topologyKey": "kubernetes.io/hostname"}
TO_DB = {"podAffinity": {REQUIRED: [{**BY_HOST, "labelSelector": {"matchLabels": {"app": "db"}}}]}}
FROM_WEB = {
    "affinity": {"podAntiAffinity": {REQUIRED: [{**BY_HOST, "labelSelector": {"matchLabels": {"app": "web"}}}]}}
}
DATA = {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}


def sibling(name: str, on: str) -> PodInfo:
    return pod(name, on, labels={"app": "web"}, owner="ReplicaSet/other")


def database(on: str) -> PodInfo:
    return pod("db", on, labels={"app": "db"})


def local(on: str) -> Volumes:
    """A volume of a node."""
    host = {"key": "kubernetes.io/hostname", "operator": "In", "values": [on]}
    spec = {
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [host]}]}},
        "claimRef": {"namespace": "default", "name": "data"},
    }
    return Volumes.from_objects([msgspec.convert({"metadata": {"name": "pv"}, "spec": spec}, PersistentVolume)], [])


@pytest.mark.parametrize(
    ("spec", "others", "volumes", "goes"),
    [
        ({"topologySpreadConstraints": SPREAD}, [sibling("b", "idle")], None, False),
        ({"topologySpreadConstraints": SPREAD}, [sibling("b", "idle"), sibling("a", "hot")], None, True),
        ({"affinity": TO_DB}, [database("hot")], None, False),
        ({"affinity": TO_DB}, [database("idle")], None, True),
        ({}, [pod("shy", "idle", spec=FROM_WEB)], None, False),
        # Even while it goes.
        ({}, [pod("shy", "idle", spec=FROM_WEB, deleting=True)], None, False),
        ({}, [pod("shy", "idle", spec=FROM_WEB, namespace="other")], None, True),
        (DATA, [], local("hot"), False),
        (DATA, [], local("idle"), True),
    ],
)
def test_spread_affinity_and_volumes_bind_a_replacement(
    spec: dict[str, Any], others: list[PodInfo], volumes: Volumes | None, *, goes: bool
) -> None:
    victim = pod("web", "hot", cpu="100m", labels={"app": "web"}, spec=spec)
    nodes = [node("hot", labels={"zone": "a"}), node("idle", labels={"zone": "b"})]
    usage = {"hot": amounts(3.5, 1), "idle": amounts(0.2, 1)}
    view = snapshot(nodes, [victim, *others], usage, {"web": amounts(1, 1)}, volumes=volumes)
    assert moved(once(view, settings(protection={"volumeClaims": True}))) == (["web"] if goes else [])


# The soft taint


def share_state(name: str, cpu: float, kind: str = "normal") -> NodeState:
    return NodeState(name, "default", kind, {"cpu": cpu}, {"cpu": 20.0}, {"cpu": 50.0})


def test_hot_nodes_and_those_half_way_there_are_shunned_until_they_have_low_load_again() -> None:
    """Half way from 20 to 50 % is 35 %."""
    soft = [{"key": HOT_TAINT, "effect": "PreferNoSchedule"}]
    nodes = {n.name: n for n in (node("plain"), node("tainted", taints=soft))}

    def shunned(cpu: float, *, kind: str = "normal", hot: bool = False) -> set[str]:
        states = [share_state(name, cpu, kind) for name in nodes]
        return set(nodes_to_taint(states, dict.fromkeys(nodes, Detector(hot=hot)), nodes))

    assert shunned(36) == {"plain", "tainted"}
    assert shunned(30) == {"tainted"}
    assert shunned(20) == set()
    assert shunned(20, hot=True) == {"plain", "tainted"}
    assert shunned(0, kind="unknown") == {"tainted"}


def test_with_the_taint_a_pod_goes_where_it_would_not_have_gone() -> None:
    """The busy node has less requested, and is shunned."""
    base = [pod("b", "idle", cpu="2", owner="ReplicaSet/b"), pod("h", "hot", cpu="2", owner="ReplicaSet/h")]
    nodes = [node("hot"), node("busy"), node("idle")]
    usage = {"hot": amounts(3.5, 1), "busy": amounts(1.9, 1), "idle": amounts(0.2, 1)}
    view = snapshot(nodes, [VICTIM, *base], usage, {"web": amounts(1, 1)})
    assert moved(once(view, settings(limits=ASKS))) == []
    (move,) = once(view, settings(limits=ASKS, taintHotNodes=True)).plan.moves
    assert move.target == "idle"


def test_the_taint_is_written_and_taken_back_beside_the_taints_of_others() -> None:
    def wire(name: str, *keys: str, effect: str = "PreferNoSchedule") -> Node:
        taints = [{"key": key, "effect": effect} for key in keys]
        return msgspec.convert({"metadata": {"name": name, "resourceVersion": "7"}, "spec": {"taints": taints}}, Node)

    nodes = {n.metadata.name: n for n in (wire("a"), wire("b", "x"), wire("c", "x", HOT_TAINT), wire("d", HOT_TAINT))}
    # Somebody's own: the controller's rights do not reach it.
    nodes["e"] = wire("e", HOT_TAINT, effect="NoSchedule")
    ours = {"key": HOT_TAINT, "effect": "PreferNoSchedule"}
    assert taint_patches(nodes, frozenset({"a", "b", "d"})) == {
        "a": [
            {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
            {"op": "add", "path": "/spec/taints", "value": [ours]},
        ],
        "b": [{"op": "add", "path": "/spec/taints/-", "value": ours}],
        "c": [
            {"op": "test", "path": "/spec/taints/1/key", "value": HOT_TAINT},
            {"op": "test", "path": "/spec/taints/1/effect", "value": "PreferNoSchedule"},
            {"op": "remove", "path": "/spec/taints/1"},
        ],
    }


# The breaker


def results(count: int, good: int, strategy: Any = "LowNodeLoad", age_s: float = 60) -> tuple[MoveResult, ...]:
    return tuple(MoveResult(NOW_S - age_s, strategy, good=i < good) for i in range(count))


HOT = (
    [node("hot"), node("idle")],
    [pod("p", "hot")],
    {"hot": amounts(3, 1), "idle": amounts(0.1, 1)},
    {"p": amounts(1, 1)},
)


@pytest.mark.parametrize(
    ("results", "least", "goes"),
    [
        (results(3, 0), 50, True),
        (results(4, 1), 50, False),
        (results(4, 2), 50, True),
        (results(10, 4), 50, False),
        (results(10, 4), 40, True),
        (results(10, 0), 0, True),
        (results(10, 0, age_s=86_401), 50, True),
        # No strategy stops another.
        (results(10, 0, "NetworkMisplacement"), 50, True),
    ],
)
def test_a_strategy_of_whose_moves_too_few_helped_stops_and_says_so(
    results: tuple[MoveResult, ...], least: int, goes: bool
) -> None:
    rules, history = settings(limits={"minSuccessPercent": least}), History(results=results)
    decision = once(snapshot(*HOT), rules, memory=history)
    assert moved(decision) == (["p"] if goes else [])
    (hot,) = (state for state in decision.plan.nodes if state.node == "hot")
    assert hot.stuck is not goes
    assert hot.why == "" if goes else "moves in 24 h helped" in hot.why
    outside = decided(snapshot(*HOT), history, RoundState(), rules, NOW_S, confirmed=True)
    assert outside.plan == decision.plan, "so does the dry-run from outside"


def test_a_replacement_is_not_moved_again_for_half_a_day() -> None:
    """Whether the move that made it is still followed, or was judged and helped."""
    rules = settings(protection={"minPodAgeS": 0})
    (followed,) = once(snapshot(*HOT), rules).pending
    heir = pod("q", "idle", uid="q", created_s=NOW_S)
    nodes = [node("hot"), node("idle")]
    view = snapshot(nodes, [heir], {"hot": amounts(0.1, 1), "idle": amounts(3, 1)}, {"q": amounts(1, 1)})
    cooled = snapshot(nodes, [heir], {"hot": amounts(0.1, 1), "idle": amounts(0.5, 1)})
    memory = History(pending=(followed,))
    for at_s in (30.0, 900.0, 40_000.0):
        memory, _ = follow_up(cooled, memory, rules.limits, NOW_S + at_s)
        memory = msgspec.structs.replace(memory, backoffs={k: v for k, v in memory.backoffs.items() if "/" not in k})
        assert skips(once(view, rules, memory=memory, now=NOW_S + at_s))["q"] == "replica-backoff"
    assert moved(once(view, rules, memory=memory, now=NOW_S + 46_800)) == ["q"]


def test_a_replacement_whose_move_has_no_outcome_yet_stays() -> None:
    landed = pending_move(
        node="elsewhere", at_s=NOW_S - 300, landed="hot", landed_pod="default/q", landed_uid="q", landed_s=NOW_S - 290
    )
    rules = settings()
    assert skips(once(replacement_on_a_hot_node(), rules, memory=History(pending=(landed,))))["q"] == "replica-backoff"
    assert moved(once(replacement_on_a_hot_node(), rules)) == ["q"]


def replacement_on_a_hot_node() -> LoadSnapshot:
    nodes, usage = [node("hot"), node("idle")], {"hot": amounts(3, 1), "idle": amounts(0.1, 1)}
    return snapshot(nodes, [pod("q", "hot", uid="q")], usage, {"q": amounts(1, 1)})


@pytest.mark.slow
def test_a_round_looks_at_so_many_pods_and_every_hot_node_has_its_turn() -> None:
    """40 hot nodes of 30 pods each; for every one of them kube-scheduler would choose a busy node."""
    hot = [f"hot-{i:02}" for i in range(40)]
    there = [pod(f"{name}-{k}", name, cpu="10m", memory="1Mi") for name in hot for k in range(30)]
    full = pod("hoarder", "promised", cpu="3", memory="12Gi", owner="ReplicaSet/hoarder")
    usage = {name: amounts(3.5, 1) for name in hot} | {"promised": amounts(0.1, 1), "chosen": amounts(2.6, 1)}
    nodes = [node(name) for name in usage]
    found = snapshot(nodes, [*there, full], usage, {p.name: amounts(0.2, 0.01) for p in there})
    rules = settings(limits=ASKS)
    looked: set[str] = set()
    rounds = [once(found, rules, now=NOW_S + k * rules.interval_s) for k in range(3)]
    for decision in rounds:
        waiting = {s.node: s for s in decision.plan.nodes if s.why.startswith("its turn comes: 500 pods")}
        assert decision.plan.skipped["prediction"] < 500 + 30
        assert 0 < len(waiting) < len(hot)
        assert not any(state.stuck for state in waiting.values())
        looked |= set(hot) - set(waiting)
    assert looked == set(hot)
