"""NetworkMisplacement and ZoneSurvival move one pod of a ready AppGroup at a time, for a lasting gain by the scheduler's score."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.crds import AppGroup
from controller.cluster.pods import TARGET_ANNOTATION
from controller.scheduler.affinity import NARROWED_ANNOTATION
from controller.scheduler.placement.planner import PlanningError
from tests.support.bodies import make_appgroup_spec, make_symmetric_costs
from tests.support.descheduler_builders import (
    NOW_S,
    DescheduleDecision,
    DeschedulerSnapshot,
    History,
    PodInfo,
    ReasonDurations,
    SchedulerConfig,
    Target,
    UsageView,
    World,
    add_moves,
    decide,
    evaluate_moves,
    list_moved_pods,
    make_config,
    make_node,
    make_pending_move,
    make_pod_info,
    short_uid,
    to_usage,
)
from tests.unit.controller.scheduler_objects import make_topology

ZONES = ("z1", "z2", "z3")
CHEAP = {("z1", "z2"): 5, ("z1", "z3"): 40, ("z2", "z3"): 40}


def cluster(
    placed: dict[str, str],
    *,
    costs: dict[tuple[str, str], int] | None = None,
    members: int = 0,
    max_cost: int = 15,
    not_ready: frozenset[str] = frozenset(),
    cpu: str = "100m",
    cordoned: frozenset[str] = frozenset(),
    score_dependents: bool = True,
    spread: str = "",
) -> World:
    """Two nodes per zone; workload ``web`` depends on ``db``; pods named ``workload-n`` on the nodes given."""
    world = World(SchedulerConfig(network_overhead=NetworkOverheadArgs(score_dependents=score_dependents)))
    for zone in ZONES:
        labels = {"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": "r1"}
        for name in (f"{zone}-n1", f"{zone}-n2"):
            world.on_node_change(name, make_node(name, pods="10", labels=labels, unschedulable=name in cordoned))
    world.network.on_topology_change("default/nt-default", None, make_topology(make_symmetric_costs(costs or CHEAP)))
    annotations = {"netaware.io/spread": spread} if spread else {}
    metadata = {"name": "shop", "namespace": "default", "annotations": annotations}
    spec = make_appgroup_spec({"web": {"db": max_cost}, "db": {}}, members=members or len(placed))
    group = msgspec.convert({"metadata": metadata, "spec": spec}, AppGroup)
    world.network.on_group_change("default/shop", None, group)
    for name, on in placed.items():
        world.on_pod_change(f"default/{name}", replica(name, on, ready=name not in not_ready, cpu=cpu))
    return world


def replica(name: str, on: str, **fields: Any) -> PodInfo:
    """A pod of the group, of the workload that its name begins with."""
    workload = name.partition("-")[0]
    labels = {"appgroup.diktyo.x-k8s.io": "shop", "appgroup.diktyo.x-k8s.io.workload": workload}
    defaults = {"owner": f"ReplicaSet/{workload}-rs", "labels": labels, "cpu": "100m", "created_s": NOW_S - 1000}
    return make_pod_info(name, on, **{**defaults, **fields})


def plan(
    world: World | DeschedulerSnapshot,
    *,
    assume_lasting: bool = True,
    history: History | None = None,
    durations: ReasonDurations | None = None,
    now: float = NOW_S,
    usage: dict[str, dict[str, float]] | None = None,
    policy: dict[str, Any] | None = None,
    **misplacement: Any,
) -> DescheduleDecision:
    config = make_config(policy, misplacement={"enabled": True, **misplacement})
    view = world.snapshot(UsageView(usage or {}, {})) if isinstance(world, World) else world
    return decide(
        view, history or History(), durations or ReasonDurations(), config, now, assume_lasting=assume_lasting
    ).decision


APART = {"web-1": "z3-n1", "db-1": "z1-n1"}


def test_a_pod_with_a_violated_dependency_moves_to_the_node_with_the_best_score() -> None:
    world = cluster(APART)
    decision = plan(world)
    (move,) = decision.plan.moves
    assert list_moved_pods(plan(world, enabled=False)) == []
    assert (move.pod, move.node, move.target) == ("default/web-1", "z3-n1", "z1-n1")
    assert (move.cost_before, move.cost_after) == (40, 0)
    reason = (
        "pod is misplaced, network cost(40)>elsewhere(0), pods of dependencies beyond maxNetworkCost(1)>elsewhere(0)"
    )
    assert move.reason == reason
    score_table = world.network.score("default", "shop", "web")
    score = {name: score_table.node_score(name, world.network.location_index[name]).cost for name in world.nodes}
    assert (move.cost_before, move.cost_after) == (score["z3-n1"], score[move.target])
    assert move.cost_after == min(score.values())


@pytest.mark.parametrize(("gain", "margin", "moves"), [(12, 10, 1), (9, 10, 0), (40, 10, 1), (5, 1, 1), (5, 6, 0)])
def test_the_gain_must_reach_the_margin(gain: int, margin: int, moves: int) -> None:
    decision = plan(cluster(APART, costs=dict.fromkeys(CHEAP, gain), max_cost=1000), margin=margin)
    assert len(decision.plan.moves) == moves


@pytest.mark.parametrize(("beside", "moves"), [(23, ["web-1"]), (25, [])])
def test_the_gain_must_reach_a_fifth_of_the_current_cost(beside: int, moves: list[str]) -> None:
    # Where web is, its peers cost 30.
    placed = {"web-1": "z3-n1", "db-1": "z1-n1", "db-2": "z2-n1"}
    costs = {("z1", "z2"): beside, ("z1", "z3"): 15, ("z2", "z3"): 15}
    assert list_moved_pods(plan(cluster(placed, costs=costs, max_cost=1000, score_dependents=False), margin=1)) == moves


def test_the_gain_must_last_without_a_break() -> None:
    apart, together = cluster(APART), cluster(APART, costs=dict.fromkeys(CHEAP, 2))
    durations, moves, skips = ReasonDurations(), [], []
    for minute, world in enumerate((apart, apart, together, *([apart] * 7))):
        decision = plan(world, assume_lasting=False, durations=durations, now=NOW_S + 60 * minute, holdS=300)
        durations = decision.durations
        moves.append(len(decision.plan.moves))
        skips += [(s.pod, s.condition, s.reason) for s in decision.plan.skips]
    # The break in minute 2 starts the five minutes anew in minute 3.
    assert moves == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert skips[1] == ("default/web-1", "reason-duration", "there has been a better node for 0 of 300 s")


def test_one_pod_of_a_group_moves_at_a_time() -> None:
    placed = {"web-1": "z3-n1", "web-2": "z3-n2", "db-1": "z1-n1"}
    decision = plan(cluster(placed))
    assert len(decision.plan.moves) == 1
    assert "group-limit" in decision.plan.skip_counts or "group-readiness" in decision.plan.skip_counts
    siblings = tuple(map(short_uid, ("uid-default-web-1", "uid-default-web-2")))
    earlier = ("default/web-9", "9", "default/ReplicaSet/web-rs", "z3-n1")
    underway = make_pending_move(*earlier, group="default/shop", sibling_short_uids=siblings)
    assert list_moved_pods(plan(cluster(placed), history=History(pending_moves=(underway,)))) == []


@pytest.mark.parametrize("fields", [{"not_ready": frozenset({"db-1"})}, {"members": 3}])
def test_no_pod_of_an_incomplete_group_moves(fields: dict[str, Any]) -> None:
    decision = plan(cluster(APART, **fields))
    assert list_moved_pods(decision) == []
    assert "group-readiness" in decision.plan.skip_counts


def test_a_better_node_must_have_free_capacity() -> None:
    assert plan(cluster(APART, cpu="3")).plan.moves[0].target == "z1-n2", "its peer's node is full"
    cordoned = frozenset({"z1-n1", "z1-n2", "z2-n1", "z2-n2"})
    decision = plan(cluster(APART, cordoned=cordoned), margin=1)
    assert [(m.pod, m.target) for m in decision.plan.moves] == [("default/db-1", "z3-n1")], "its peer moves instead"


def test_overutilized_nodes_are_no_targets() -> None:
    hot, idle = to_usage(3.9, 1), to_usage(0.1, 1)
    usage = {name: hot if name.startswith("z1") else idle for name in cluster(APART).nodes}
    (move,) = plan(cluster(APART), usage=usage, policy={"numberOfNodes": 100}).plan.moves
    assert (move.pod, move.target, move.cost_after) == ("default/web-1", "z2-n1", 5)


def test_protected_pods_are_not_moved() -> None:
    world = cluster(APART)
    for name, on in APART.items():
        protected = replica(name, on, annotations={"descheduler.alpha.kubernetes.io/evict": "false"})
        world.on_pod_change(f"default/{name}", protected)
    decision = plan(world)
    assert list_moved_pods(decision) == []
    assert decision.plan.skip_counts == {"eviction-protection": 2}


@pytest.mark.parametrize(
    ("strategy", "on", "violated_before", "outcome"),
    [
        ("NetworkMisplacement", "z1-n1", 0, "helped"),
        ("NetworkMisplacement", "z3-n2", 0, "cost-not-fallen"),
        # At the same cost it violates fewer dependencies.
        ("NetworkMisplacement", "z3-n2", 2, "helped"),
        ("ZoneSurvival", "z1-n1", 0, "helped"),
        ("ZoneSurvival", "z3-n2", 0, "returned"),
        ("ZoneSurvival", "z3-n1", 0, "returned"),
    ],
)
def test_a_workload_backs_off_if_the_cost_did_not_fall_or_the_zone_is_the_same(
    strategy: str, on: str, violated_before: int, outcome: str
) -> None:
    workload, limits = "default/ReplicaSet/web-rs", make_config().limits
    evicted = ("default/web-1", "uid-web-1", workload, "z3-n1")
    move = make_pending_move(*evicted, NOW_S - 400, strategy, cost_before=40, violated_before=violated_before)
    world = cluster({"db-1": "z1-n1"})
    world.on_pod_change("default/web-2", replica("web-2", on, created_s=NOW_S - 390))
    history, evaluated = evaluate_moves(world.snapshot(), History(pending_moves=(move,)), limits, NOW_S - 380)
    if not evaluated:
        history, evaluated = evaluate_moves(world.snapshot(), history, limits, NOW_S)
    assert [end.outcome for end in evaluated] == [outcome]
    assert (workload in history.backoffs) is (outcome != "helped")


def test_a_pod_may_leave_the_zone_to_which_netaware_narrowed_its_affinity() -> None:
    """In affinity mode the release wrote a required zone; only the user's own constraints count."""
    ours = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z3"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [ours]}]}
    spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
    for added, moves in (({NARROWED_ANNOTATION: msgspec.json.encode(ours).decode()}, 1), ({}, 0)):
        world = cluster(APART, score_dependents=False)
        world.on_pod_change("default/web-1", replica("web-1", "z3-n1", spec=spec, annotations=added))
        assert len(plan(world).plan.moves) == moves


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
async def test_a_planned_pod_moves_only_if_two_new_plans_place_its_replacement_on_a_better_node(
    answers: tuple[str | None, ...], target: str, kind: str
) -> None:
    world, annotations = cluster(APART), {TARGET_ANNOTATION: '{"node": "z3-n1", "zone": "z3"}'}
    world.on_pod_change("default/web-1", replica("web-1", "z3-n1", annotations=annotations))
    view = world.snapshot()
    config = make_config(misplacement={"enabled": True})
    unconfirmed = decide(view, History(), ReasonDurations(), config, NOW_S, assume_lasting=True)

    async def simulate_replacement(group: str, key: str, seed: int) -> Target | None:
        assert (group, key) == ("default/shop", "default/web-1")
        answer = answers[seed]
        if answer == "refuses":
            raise PlanningError("TooManyPods", "too many")
        return None if answer is None else Target(node=answer)

    decision = await unconfirmed.confirm(simulate_replacement)
    assert [move.target for move in decision.plan.moves] == ([target] if target else [])
    assert [p.move.target for p in decision.pending_moves] == ([target] if target else [])
    assert [s.condition for s in decision.plan.skips if s.pod == "default/web-1"] == ([kind] if kind else [])
    assert [expected.node for expected in decision.replacement_targets.values()] == ([target] if target else [])
    assert not target or decision.plan.moves[0].cost_after == (0 if target == "z1-n1" else 1)


# ZoneSurvival

TOGETHER = {"web-1": "z1-n1", "web-2": "z1-n2", "db-1": "z1-n1", "db-2": "z2-n1"}
"""After an outage of the other zones: web is wholly in z1."""
EVERYWHERE_BUT_Z1 = frozenset({"z2-n1", "z2-n2", "z3-n1", "z3-n2"})


def test_zone_survival_moves_one_replica_to_the_nearest_other_zone() -> None:
    decision = plan(cluster(TOGETHER, spread="zone"))
    (move,) = decision.plan.moves
    assert (move.pod, move.strategy, move.target) == ("default/web-2", "ZoneSurvival", "z2-n1")
    assert move.reason == "all replicas of its workload are in zone z1, and it should survive the loss of a zone"


@pytest.mark.parametrize(
    ("spread", "max_cost", "cordoned"),
    [("soft", 15, ()), ("none", 15, ()), ("zone", 15, EVERYWHERE_BUT_Z1), ("zone", 1, ())],
    ids=["soft", "none", "other zones are cordoned", "beyond maxNetworkCost"],
)
def test_zone_survival_moves_no_replica_without_spread_zone_or_a_node_that_can_take_it(
    spread: str, max_cost: int, cordoned: Iterable[str]
) -> None:
    placed = {name: on for name, on in TOGETHER.items() if name != "db-2" or max_cost > 1}
    world = cluster(placed, spread=spread, max_cost=max_cost, cordoned=frozenset(cordoned))
    assert list_moved_pods(plan(world)) == []


def test_zone_survival_moves_one_replica_after_the_hold_time_and_network_misplacement_does_not_undo_it() -> None:
    """Two days of rounds with all defaults: web's dependency is in z1, at a cost of 30 from z2, and web should survive a zone."""
    placed = {"web-1": "z1-n1", "web-2": "z1-n2", "db-1": "z1-n1"}
    costs = {("z1", "z2"): 30, ("z1", "z3"): 40, ("z2", "z3"): 40}
    world = cluster(placed, costs=costs, max_cost=50, spread="zone")
    config = make_config(misplacement={"enabled": True})
    history, durations, moves = History(), ReasonDurations(), []
    for minute in range(0, 2 * 1440, 5):
        now = NOW_S + 60 * minute
        view = world.snapshot()
        decision = decide(view, history, durations, config, now).decision
        durations, history = decision.durations, add_moves(decision.history, decision.pending_moves)
        for move in decision.plan.moves:
            moves.append((minute, move.strategy, move.target))
            world.on_pod_change(move.pod, None)
            name = f"web-{minute}"
            world.on_pod_change(f"default/{name}", replica(name, move.target, created_s=now))
    assert moves == [(5, "ZoneSurvival", "z2-n1")]


def test_network_misplacement_may_move_the_only_replica_of_a_zone_to_a_third_zone() -> None:
    """All dependencies of web are in z3; once web-1 is there, web-2 must not follow."""
    far = dict.fromkeys(CHEAP, 90)
    peers = {"web-2": "z2-n1", "db-1": "z3-n1", "db-2": "z3-n2"}
    (move,) = plan(cluster({"web-1": "z1-n1", **peers}, costs=far, max_cost=100, spread="zone")).plan.moves
    assert (move.pod, move.strategy) == ("default/web-1", "NetworkMisplacement")
    assert move.target in {"z3-n1", "z3-n2"}
    there = {"web-1": "z3-n1", **peers}
    assert "default/web-2" not in list_moved_pods(plan(cluster(there, costs=far, max_cost=100, spread="zone")))
    assert "web-2" in list_moved_pods(plan(cluster(there, costs=far, max_cost=100))), "it would without the spread"
