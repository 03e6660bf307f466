"""Pods of an AppGroup follow their peers: only for a lasting gain, one at a time, while the group is whole, by the scheduler's score."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.pods import TARGET_ANNOTATION
from controller.cluster.resources import AppGroup, NetworkTopology
from controller.scheduler.affinity import NARROWED_ANNOTATION
from controller.scheduler.placement.planner import PlanningError
from tests.support.descheduled import (
    NOW_S,
    DeschedulerSnapshot,
    History,
    Node,
    RoundDecision,
    RoundState,
    SchedulerConfig,
    Target,
    UsageView,
    World,
    amounts,
    decide,
    evaluate_moves,
    format_time,
    moved,
    pending_move,
    read,
    settings,
    short_uid,
)

ZONES = ("z1", "z2", "z3")
CHEAP = {("z1", "z2"): 5, ("z1", "z3"): 40, ("z2", "z3"): 40}


def cluster(
    placed: dict[str, str],
    *,
    costs: dict[tuple[str, str], int] | None = None,
    members: int = 0,
    max_cost: int = 15,
    not_ready: frozenset[str] = frozenset(),
    labels: dict[str, dict[str, str]] | None = None,
    requests: dict[str, str] | None = None,
    cordoned: frozenset[str] = frozenset(),
    score_dependents: bool = True,
) -> World:
    """Two nodes per zone; workload ``web`` depends on ``db``; pods named ``workload-n`` on the nodes given."""
    overhead = NetworkOverheadArgs(score_dependents=score_dependents)
    world = World(SchedulerConfig(network_overhead=overhead))
    for zone in ZONES:
        for i in (1, 2):
            name = f"{zone}-n{i}"
            document = {
                "metadata": {
                    "name": name,
                    "labels": {"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": "r1"},
                },
                "spec": {"unschedulable": name in cordoned},
                "status": {
                    "allocatable": {"cpu": "4", "memory": "16Gi", "pods": "10"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
            world.on_node_change(name, msgspec.convert(document, Node))
    both = {**(costs or CHEAP), **{(b, a): cost for (a, b), cost in (costs or CHEAP).items()}}
    origins = [
        {
            "origin": a,
            "costList": [{"destination": b, "networkCost": cost} for (o, b), cost in sorted(both.items()) if o == a],
        }
        for a in ZONES
    ]
    topology = {
        "metadata": {"name": "nt-default", "namespace": "default", "resourceVersion": "1"},
        "spec": {
            "weights": [
                {
                    "name": "UserDefined",
                    "topologyList": [{"topologyKey": "topology.kubernetes.io/zone", "originList": origins}],
                }
            ]
        },
    }
    world.network.on_topology_change("default/nt-default", None, msgspec.convert(topology, NetworkTopology))
    web = {"kind": "Deployment", "name": "web", "selector": "web"}
    db = {"kind": "Deployment", "name": "db", "selector": "db"}
    group = {
        "metadata": {"name": "shop", "namespace": "default"},
        "spec": {
            "numMembers": members or len(placed),
            "workloads": [
                {"workload": web, "dependencies": [{"workload": db, "maxNetworkCost": max_cost}]},
                {"workload": db},
            ],
        },
    }
    world.network.on_group_change("default/shop", None, msgspec.convert(group, AppGroup))
    for name, on in placed.items():
        pod = pod_document(name, on, ready=name not in not_ready, labels=(labels or {}).get(name), requests=requests)
        world.on_pod_change(f"default/{name}", read(pod))
    return world


def pod_document(
    name: str,
    on: str,
    *,
    ready: bool = True,
    labels: dict[str, str] | None = None,
    requests: dict[str, str] | None = None,
    created_s: float = NOW_S - 1000,
) -> dict[str, Any]:
    workload = name.partition("-")[0]
    names = {"appgroup.diktyo.x-k8s.io": "shop", "appgroup.diktyo.x-k8s.io.workload": workload, **(labels or {})}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "labels": names,
            "creationTimestamp": format_time(created_s),
            "ownerReferences": [{"kind": "ReplicaSet", "name": f"{workload}-rs", "controller": True}],
        },
        "spec": {"nodeName": on, "containers": [{"resources": {"requests": requests or {"cpu": "100m"}}}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def plan(
    world: World | DeschedulerSnapshot,
    *,
    assume_lasting: bool = True,
    memory: History | None = None,
    state: RoundState | None = None,
    now: float = NOW_S,
    usage: dict[str, dict[str, float]] | None = None,
    policy: dict[str, Any] | None = None,
    **misplacement: Any,
) -> RoundDecision:
    rules = settings(policy, misplacement={"enabled": True, **misplacement})
    view = world.snapshot(UsageView(usage or {}, {})) if isinstance(world, World) else world
    return decide(view, memory or History(), state or RoundState(), rules, now, assume_lasting=assume_lasting).decision


APART = {"web-1": "z3-n1", "db-1": "z1-n1"}


def test_a_pod_whose_dependency_is_beyond_its_cost_goes_to_where_the_scheduler_would_put_it() -> None:
    world = cluster(APART)
    decision = plan(world)
    (move,) = decision.plan.moves
    assert (move.pod, move.node, move.target) == ("default/web-1", "z3-n1", "z1-n1")
    assert (move.cost_before, move.cost_after) == (40, 0)
    assert (
        move.reason
        == "pod is misplaced, network cost(40)>elsewhere(0), dependencies beyond maxNetworkCost(1)>elsewhere(0)"
    )
    score_table = world.network.score("default", "shop", "web")
    score = {name: score_table.node_score(name, world.network.location_index[name]).cost for name in world.nodes}
    assert (move.cost_before, move.cost_after) == (score["z3-n1"], score[move.target])
    assert move.cost_after == min(score.values())


def test_it_is_off_unless_asked_for() -> None:
    assert moved(plan(cluster(APART), enabled=False)) == []


@pytest.mark.parametrize(
    ("gain", "margin", "moves"),
    [(12, 10, 1), (9, 10, 0), (40, 10, 1), (5, 1, 1), (5, 6, 0)],
)
def test_a_gain_must_exceed_the_margin(gain: int, margin: int, moves: int) -> None:
    costs = {("z1", "z2"): gain, ("z1", "z3"): gain, ("z2", "z3"): gain}
    decision = plan(cluster(APART, costs=costs, max_cost=1000), margin=margin)
    assert len(decision.plan.moves) == moves


@pytest.mark.parametrize(("beside", "moves"), [(23, ["web-1"]), (25, [])])
def test_a_fifth_of_the_cost_counts_when_it_is_more_than_the_margin(beside: int, moves: list[str]) -> None:
    # Where web is, its peers cost 30.
    placed = {"web-1": "z3-n1", "db-1": "z1-n1", "db-2": "z2-n1"}
    costs = {("z1", "z2"): beside, ("z1", "z3"): 15, ("z2", "z3"): 15}
    assert moved(plan(cluster(placed, costs=costs, max_cost=1000, score_dependents=False), margin=1)) == moves


def test_the_gain_must_last_without_a_break() -> None:
    apart, together = cluster(APART), cluster(APART, costs=dict.fromkeys(CHEAP, 2))
    state, found = RoundState(), []
    for minute, world in enumerate((apart, apart, together, *([apart] * 7))):
        decision = plan(world, assume_lasting=False, state=state, now=NOW_S + 60 * minute, holdS=300)
        state = decision.state
        found.append(len(decision.plan.moves))
    # The break in minute 2 starts the five minutes anew in minute 3.
    assert found == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]


def test_a_gain_that_has_not_lasted_is_reported() -> None:
    decision = plan(cluster(APART), assume_lasting=False, holdS=300)
    assert [(s.pod, s.condition, s.why) for s in decision.plan.skips] == [
        ("default/db-1", "lasting", "there has been a better node for 0 of 300 s"),
        ("default/web-1", "lasting", "there has been a better node for 0 of 300 s"),
    ]


def test_one_pod_of_a_group_moves_at_a_time() -> None:
    placed = {"web-1": "z3-n1", "web-2": "z3-n2", "db-1": "z1-n1"}
    decision = plan(cluster(placed))
    assert len(decision.plan.moves) == 1
    assert "group-limit" in decision.plan.skip_counts or "group-complete" in decision.plan.skip_counts
    underway = pending_move(
        pod="default/web-9",
        uid="9",
        workload="default/ReplicaSet/web-rs",
        node="z3-n1",
        at_s=NOW_S,
        group="default/shop",
        sibling_short_uids=tuple(map(short_uid, ("uid-web-1", "uid-web-2"))),
    )
    assert moved(plan(cluster(placed), memory=History(pending=(underway,)))) == []


@pytest.mark.parametrize("fields", [{"not_ready": frozenset({"db-1"})}, {"members": 3}])
def test_a_group_that_is_not_whole_loses_nobody(fields: dict[str, Any]) -> None:
    decision = plan(cluster(APART, **fields))
    assert moved(decision) == []
    assert "group-complete" in decision.plan.skip_counts


def test_a_better_node_must_have_room_now() -> None:
    full = {"cpu": "3"}
    assert plan(cluster(APART, requests=full)).plan.moves[0].target == "z1-n2", "beside its peer there is no room"
    cordoned = frozenset({"z1-n1", "z1-n2", "z2-n1", "z2-n2"})
    decision = plan(cluster({"web-1": "z3-n1", "db-1": "z1-n1"}, cordoned=cordoned), margin=1)
    assert [(m.pod, m.target) for m in decision.plan.moves] == [("default/db-1", "z3-n1")], "then the peer comes here"


def test_hot_nodes_are_no_places_to_go() -> None:
    hot, idle = amounts(3.9, 1), amounts(0.1, 1)
    usage = {name: hot if name.startswith("z1") else idle for name in cluster(APART).nodes}
    (move,) = plan(cluster(APART), usage=usage, policy={"numberOfNodes": 100}).plan.moves
    assert (move.pod, move.target, move.cost_after) == ("default/web-1", "z2-n1", 5)


def test_protected_pods_stay_where_they_are() -> None:
    world = cluster({"web-1": "z3-n1", "db-1": "z1-n1"})
    for name, on in (("web-1", "z3-n1"), ("db-1", "z1-n1")):
        document = pod_document(name, on)
        document["metadata"]["annotations"] = {"descheduler.alpha.kubernetes.io/evict": "false"}
        world.on_pod_change(f"default/{name}", read(document))
    decision = plan(world)
    assert moved(decision) == []
    assert decision.plan.skip_counts == {"protected": 2}


def test_no_flapping_when_the_latency_returns() -> None:
    """z3 becomes dear, web follows its peer to z1; z3 becomes cheap again and web stays."""
    together = {"web-1": "z1-n1", "db-1": "z1-n1"}
    for costs in (CHEAP, {("z1", "z2"): 5, ("z1", "z3"): 3, ("z2", "z3"): 3}):
        assert moved(plan(cluster(together, costs=costs))) == []


def test_a_cost_that_did_not_fall_is_a_move_that_did_not_help() -> None:
    move = pending_move(
        pod="default/web-1",
        uid="uid-web-1",
        workload="default/ReplicaSet/web-rs",
        node="z3-n1",
        at_s=NOW_S - 400,
        strategy="NetworkMisplacement",
        cost_before=40,
    )
    for on, outcome in (("z1-n1", "helped"), ("z3-n2", "cost-not-fallen")):
        world = cluster({"db-1": "z1-n1"})
        newborn = pod_document("web-2", on, created_s=NOW_S - 390)
        world.on_pod_change("default/web-2", read(newborn))
        view: DeschedulerSnapshot = world.snapshot()
        rules = settings().limits
        _, ended = evaluate_moves(view, History(pending=(move,)), rules, NOW_S)
        assert [end.outcome for end in ended] == [outcome]


def test_a_zone_that_our_own_gate_required_holds_nobody_there() -> None:
    """In affinity mode the release wrote a required zone; what the user asked for is what counts."""
    ours = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z3"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [ours]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    for narrowed, moves in ((True, 1), (False, 0)):
        world = cluster(APART, score_dependents=False)
        document = pod_document("web-1", "z3-n1")
        document["spec"]["affinity"] = affinity
        if narrowed:
            document["metadata"]["annotations"] = {NARROWED_ANNOTATION: msgspec.json.encode(ours).decode()}
        world.on_pod_change("default/web-1", read(document))
        assert len(plan(world).plan.moves) == moves


def planned(world: World) -> World:
    """The same, with a plan's target on the pods that are misplaced."""
    for name in ("web-1", "web-2"):
        known = world.pods.get(f"default/{name}")
        if known is not None:
            document = pod_document(name, known.node)
            document["metadata"]["annotations"] = {TARGET_ANNOTATION: f'{{"node": "{known.node}", "zone": "z3"}}'}
            world.on_pod_change(f"default/{name}", read(document))
    return world


@pytest.mark.parametrize(
    ("answers", "target", "kind"),
    [
        (("z1-n2", "z1-n2"), "z1-n2", ""),
        (("z1-n1", "z2-n1"), "z1-n1", ""),
        (("z3-n1", "z3-n1"), "", "planner"),
        (("z1-n1", "z3-n2"), "", "planner"),
        ((None, None), "", "planner"),
        (("z1-n1", "refuses"), "", "planner"),
    ],
)
async def test_a_planned_pod_goes_only_where_the_planner_asked_twice_would_put_it_for_a_gain(
    answers: tuple[str | None, ...], target: str, kind: str
) -> None:
    world = planned(cluster(APART))
    view = world.snapshot()
    rules = settings(misplacement={"enabled": True})
    unconfirmed = decide(view, History(), RoundState(), rules, NOW_S, assume_lasting=True)

    async def place(group: str, key: str, turn: int) -> Target | None:
        assert (group, key) == ("default/shop", "default/web-1")
        answer = answers[turn]
        if answer == "refuses":
            raise PlanningError("TooManyPods", "too many")
        return None if answer is None else Target(node=answer)

    found = await unconfirmed.confirm(place)
    assert [move.target for move in found.plan.moves] == ([target] if target else [])
    assert [p.move.target for p in found.pending] == ([target] if target else [])
    assert [s.condition for s in found.plan.skips if s.pod == "default/web-1"] == ([kind] if kind else [])
    assert [promise.target.node for promise in found.replacement_targets.values()] == ([target] if target else [])
    assert not target or found.plan.moves[0].cost_after == (0 if target == "z1-n1" else 1)
