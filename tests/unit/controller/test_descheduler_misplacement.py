"""NetworkMisplacement and ZoneSurvival move one pod of a ready AppGroup at a time, for a lasting gain by the scheduler's score."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.scheduler.affinity import NARROWED_ANNOTATION
from tests.support.descheduler_builders import (
    NOW_S,
    History,
    ReasonDurations,
    add_moves,
    decide_once,
    evaluate_moves,
    list_moved_pods,
    make_config,
    make_pending_move,
    to_usage,
)
from tests.unit.controller.misplacement import APART, COSTS, decide_misplacement, make_shop_pod, make_shop_world

TOGETHER = {"web-1": "z1-n1", "web-2": "z1-n2", "db-1": "z1-n1", "db-2": "z2-n1"}
"""After an outage of the other zones: web is wholly in z1."""
NODES_OUTSIDE_Z1 = frozenset({"z2-n1", "z2-n2", "z3-n1", "z3-n2"})


def test_a_pod_with_a_violated_dependency_moves_to_the_node_with_the_best_score() -> None:
    world = make_shop_world(APART)
    assert list_moved_pods(decide_misplacement(world, enabled=False)) == []

    (move,) = decide_misplacement(world).plan.moves

    assert (move.pod, move.node, move.target) == ("default/web-1", "z3-n1", "z1-n1")
    assert (move.cost_before, move.cost_after) == (40, 0)
    assert move.reason == (
        "pod is misplaced, network cost(40)>elsewhere(0), pods of dependencies beyond maxNetworkCost(1)>elsewhere(0)"
    )
    score_table = world.network.score("default", "shop", "web")
    costs = {name: score_table.node_score(name, world.network.location_index[name]).cost for name in world.nodes}
    assert (move.cost_before, move.cost_after) == (costs["z3-n1"], costs[move.target])
    assert move.cost_after == min(costs.values())


@pytest.mark.parametrize(("gain", "margin", "moves"), [(12, 10, 1), (9, 10, 0), (40, 10, 1), (5, 1, 1), (5, 6, 0)])
def test_the_gain_must_reach_the_margin(gain: int, margin: int, moves: int) -> None:
    decision = decide_misplacement(
        make_shop_world(APART, costs=dict.fromkeys(COSTS, gain), max_cost=1000), margin=margin
    )
    assert len(decision.plan.moves) == moves


@pytest.mark.parametrize(("cost_beside_db", "moved"), [(23, ["web-1"]), (25, [])])
def test_the_gain_must_reach_a_fifth_of_the_current_cost(cost_beside_db: int, moved: list[str]) -> None:
    """web's two peers cost 15 + 15 where it is, and 0 + ``cost_beside_db`` on the node of one of them."""
    node_by_pod = {"web-1": "z3-n1", "db-1": "z1-n1", "db-2": "z2-n1"}
    costs = {("z1", "z2"): cost_beside_db, ("z1", "z3"): 15, ("z2", "z3"): 15}
    world = make_shop_world(node_by_pod, costs=costs, max_cost=1000, score_dependents=False)
    assert list_moved_pods(decide_misplacement(world, margin=1)) == moved


def test_the_gain_must_last_without_a_break() -> None:
    expensive, cheap = make_shop_world(APART), make_shop_world(APART, costs=dict.fromkeys(COSTS, 2))
    durations, move_counts, skips = ReasonDurations(), [], []
    for minute, world in enumerate((expensive, expensive, cheap, *([expensive] * 7))):
        decision = decide_misplacement(
            world, ignore_durations=False, durations=durations, now=NOW_S + 60 * minute, holdS=300
        )
        durations = decision.durations
        move_counts.append(len(decision.plan.moves))
        skips += [(skip.pod, skip.condition, skip.reason) for skip in decision.plan.skips]

    # The break in minute 2 starts the five minutes anew in minute 3.
    assert move_counts == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert skips[1] == ("default/web-1", "reason-duration", "there has been a better node for 0 of 300 s")


def test_one_pod_of_a_group_moves_at_a_time() -> None:
    world = make_shop_world({"web-1": "z3-n1", "web-2": "z3-n2", "db-1": "z1-n1"})
    decision = decide_misplacement(world)
    assert len(decision.plan.moves) == 1
    assert "group-limit" in decision.plan.skip_counts


@pytest.mark.parametrize("fields", [{"not_ready": frozenset({"db-1"})}, {"members": 3}])
def test_no_pod_of_an_incomplete_group_moves(fields: dict[str, Any]) -> None:
    decision = decide_misplacement(make_shop_world(APART, **fields))
    assert list_moved_pods(decision) == []
    assert "group-readiness" in decision.plan.skip_counts


def test_a_better_node_must_have_free_capacity() -> None:
    assert decide_misplacement(make_shop_world(APART, cpu="3")).plan.moves[0].target == "z1-n2", (
        "its peer's node is full"
    )
    cordoned = frozenset({"z1-n1", "z1-n2", "z2-n1", "z2-n2"})
    decision = decide_misplacement(make_shop_world(APART, cordoned=cordoned), margin=1)
    assert [(move.pod, move.target) for move in decision.plan.moves] == [("default/db-1", "z3-n1")], (
        "its peer moves instead"
    )


def test_overutilized_nodes_are_no_targets() -> None:
    """numberOfNodes keeps LowNodeLoad from moving the peer off its node."""
    world, hot, idle = make_shop_world(APART), to_usage(3.9, 1), to_usage(0.1, 1)
    usage = {name: hot if name.startswith("z1") else idle for name in world.nodes}
    (move,) = decide_misplacement(world, usage=usage, policy={"numberOfNodes": 100}).plan.moves
    assert (move.pod, move.target, move.cost_after) == ("default/web-1", "z2-n1", 5)


def test_protected_pods_are_not_moved() -> None:
    world = make_shop_world(APART)
    for name, node_name in APART.items():
        protected_pod = make_shop_pod(name, node_name, annotations={"descheduler.alpha.kubernetes.io/evict": "false"})
        world.on_pod_change(f"default/{name}", protected_pod)
    decision = decide_misplacement(world)
    assert list_moved_pods(decision) == []
    assert decision.plan.skip_counts == {"eviction-protection": 2}


@pytest.mark.parametrize(
    ("strategy", "replacement_node", "violated_before", "outcome"),
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
    strategy: str, replacement_node: str, violated_before: int, outcome: str
) -> None:
    workload, limits = "default/ReplicaSet/web-rs", make_config().limits
    evicted = ("default/web-1", "uid-web-1", workload, "z3-n1")
    move = make_pending_move(*evicted, NOW_S - 400, strategy, cost_before=40, violated_before=violated_before)
    world = make_shop_world({"db-1": "z1-n1"})
    world.on_pod_change("default/web-2", make_shop_pod("web-2", replacement_node, created_s=NOW_S - 390))

    # The first round finds the replacement; a later one decides what needs time.
    history, ended = evaluate_moves(world.snapshot(), History(pending_moves=(move,)), limits, NOW_S - 380)
    if not ended:
        history, ended = evaluate_moves(world.snapshot(), history, limits, NOW_S)

    assert [end.outcome for end in ended] == [outcome]
    assert (workload in history.backoffs) is (outcome != "helped")


@pytest.mark.parametrize("is_narrowed", [True, False])
def test_a_pod_may_leave_the_zone_to_which_netaware_narrowed_its_affinity(*, is_narrowed: bool) -> None:
    """In affinity mode the release wrote a required zone; only the user's own constraints count."""
    in_zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z3"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [in_zone]}]}
    spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
    annotations = {NARROWED_ANNOTATION: msgspec.json.encode(in_zone).decode()} if is_narrowed else {}
    world = make_shop_world(APART, score_dependents=False)
    world.on_pod_change("default/web-1", make_shop_pod("web-1", "z3-n1", spec=spec, annotations=annotations))
    assert bool(decide_misplacement(world).plan.moves) == is_narrowed


@pytest.mark.parametrize(
    ("spread", "max_cost", "cordoned"),
    [
        ("soft", 15, frozenset()),
        ("none", 15, frozenset()),
        ("zone", 15, NODES_OUTSIDE_Z1),
        ("zone", 1, frozenset()),
    ],
    ids=["soft", "none", "other zones are cordoned", "beyond maxNetworkCost"],
)
def test_zone_survival_moves_no_replica_without_spread_zone_or_a_node_that_can_take_it(
    spread: str, max_cost: int, cordoned: frozenset[str]
) -> None:
    # Beside db-2 in z2, a replica of web would meet any maxNetworkCost.
    node_by_pod = {name: node for name, node in TOGETHER.items() if name != "db-2" or max_cost > 1}
    world = make_shop_world(node_by_pod, spread=spread, max_cost=max_cost, cordoned=cordoned)
    assert list_moved_pods(decide_misplacement(world)) == []


def test_zone_survival_moves_one_replica_after_the_hold_time_and_network_misplacement_does_not_undo_it() -> None:
    """Two days of rounds with all defaults: web's dependency is in z1, at a cost of 30 from z2, and web should survive a zone."""
    node_by_pod = {"web-1": "z1-n1", "web-2": "z1-n2", "db-1": "z1-n1"}
    costs = {("z1", "z2"): 30, ("z1", "z3"): 40, ("z2", "z3"): 40}
    world = make_shop_world(node_by_pod, costs=costs, max_cost=50, spread="zone")
    config = make_config(misplacement={"enabled": True})
    history, durations, moves = History(), ReasonDurations(), []
    for minute in range(0, 2 * 1440, 5):
        now = NOW_S + 60 * minute
        decision = decide_once(world.snapshot(), config, history=history, durations=durations, now=now)
        durations, history = decision.durations, add_moves(decision.history, decision.pending_moves)
        for move in decision.plan.moves:
            moves.append((minute, move.strategy, move.target, move.reason))
            world.on_pod_change(move.pod, None)
            name = f"web-{minute}"
            world.on_pod_change(f"default/{name}", make_shop_pod(name, move.target, created_s=now))
    reason = "all replicas of its workload are in zone z1, and it should survive the loss of a zone"
    assert moves == [(5, "ZoneSurvival", "z2-n1", reason)]


def test_network_misplacement_may_move_the_only_replica_of_a_zone_to_a_third_zone() -> None:
    """All dependencies of web are in z3; once web-1 is there, web-2 must not follow."""
    options: dict[str, Any] = {"costs": dict.fromkeys(COSTS, 90), "max_cost": 100}
    peers = {"web-2": "z2-n1", "db-1": "z3-n1", "db-2": "z3-n2"}
    (move,) = decide_misplacement(make_shop_world({"web-1": "z1-n1", **peers}, **options, spread="zone")).plan.moves
    assert (move.pod, move.strategy) == ("default/web-1", "NetworkMisplacement")
    assert move.target in {"z3-n1", "z3-n2"}

    after_move = {"web-1": "z3-n1", **peers}
    assert "web-2" not in list_moved_pods(decide_misplacement(make_shop_world(after_move, **options, spread="zone")))
    assert "web-2" in list_moved_pods(decide_misplacement(make_shop_world(after_move, **options))), "without spread"
