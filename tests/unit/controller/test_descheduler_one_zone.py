"""A workload that is to survive a zone and is wholly in one: one replica goes to another zone once there is one, and then none."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.descheduled import (
    NOW_S,
    History,
    RoundState,
    World,
    add_moves,
    decided,
    evaluate_moves,
    moved,
    pending_move,
    read,
    settings,
)
from tests.unit.controller.test_descheduler_misplacement import cluster, plan, pod_document

TOGETHER = {"web-1": "z1-n1", "web-2": "z1-n2", "db-1": "z1-n1", "db-2": "z2-n1"}
"""After an outage of the other zones: web is wholly in z1."""
EVERYWHERE_BUT_Z1 = frozenset({"z2-n1", "z2-n2", "z3-n1", "z3-n2"})


def spread(world: World, how: str = "zone") -> World:
    group = world.network.groups["default/shop"]
    meta = msgspec.structs.replace(group.metadata, annotations={"netaware.io/spread": how})
    world.network.on_group_change("default/shop", group, msgspec.structs.replace(group, metadata=meta))
    return world


def test_one_replica_goes_to_the_nearest_zone_that_has_come_back() -> None:
    decision = plan(spread(cluster(TOGETHER)))
    (move,) = decision.plan.moves
    assert (move.pod, move.strategy, move.target) == ("default/web-2", "ZoneSurvival", "z2-n1")
    assert move.reason == "all replicas of its workload are in zone z1, and it should survive the loss of a zone"


@pytest.mark.parametrize("how", ["soft", "none"])
def test_nobody_moves_who_is_not_to_survive_a_zone(how: str) -> None:
    assert moved(plan(spread(cluster(TOGETHER), how))) == []


def test_nobody_moves_while_the_other_zones_are_away_or_beyond_the_limit() -> None:
    assert moved(plan(spread(cluster(TOGETHER, cordoned=EVERYWHERE_BUT_Z1)))) == []
    placed = {name: on for name, on in TOGETHER.items() if name != "db-2"}
    assert moved(plan(spread(cluster(placed, max_cost=1)))) == [], "survival breaks no maxNetworkCost"


def test_it_waits_until_the_zone_has_been_back_for_a_while_and_moves_once() -> None:
    """A minute a round, over half an hour: the replacement in z2 ends it. Of two the one goes that leaves the least behind."""
    placed, state, moves = dict(TOGETHER), RoundState(), []
    for minute in range(30):
        world = spread(cluster(placed))
        decision = plan(world, assume_lasting=False, state=state, now=NOW_S + 60 * minute, holdS=300)
        state = decision.state
        for move in decision.plan.moves:
            moves.append((minute, move.pod, move.target))
            placed[move.pod.partition("/")[2]] = move.target
    assert moves == [(5, "default/web-2", "z2-n1")]


def test_a_replacement_that_came_back_to_the_zone_is_a_failure_that_rests_the_workload() -> None:
    move = pending_move(
        pod="default/web-1",
        uid="uid-web-1",
        workload="default/ReplicaSet/web-rs",
        node="z1-n1",
        at_s=NOW_S - 400,
        strategy="ZoneSurvival",
    )
    for on, outcome in (("z2-n1", "helped"), ("z1-n2", "returned"), ("z1-n1", "returned")):
        world = cluster({"db-1": "z1-n1"})
        world.on_pod_change("default/web-3", read(pod_document("web-3", on, created_s=NOW_S - 390)))
        memory, ended = evaluate_moves(world.snapshot(), History(pending=(move,)), settings().limits, NOW_S)
        assert [end.outcome for end in ended] == [outcome]
        assert ("default/ReplicaSet/web-rs" in memory.backoffs) == (outcome == "returned")


def test_the_network_does_not_bring_back_what_survival_has_moved() -> None:
    """Two days of rounds with all defaults: web's peer is in z1, 30 away from z2, and web is to survive a zone."""
    placed = {"web-1": "z1-n1", "web-2": "z1-n2", "db-1": "z1-n1"}
    world = spread(cluster(placed, costs={("z1", "z2"): 30, ("z1", "z3"): 40, ("z2", "z3"): 40}, max_cost=50))
    rules = settings(misplacement={"enabled": True})
    memory, state, moves = History(), RoundState(), []
    for minute in range(0, 2 * 1440, 5):
        now = NOW_S + 60 * minute
        view = world.snapshot()
        decision = decided(view, memory, state, rules, now)
        state, memory = decision.state, add_moves(decision.history, decision.pending)
        for move in decision.plan.moves:
            moves.append((move.strategy, move.target))
            world.on_pod_change(move.pod, None)
            heir = f"web-{minute}"
            world.on_pod_change(f"default/{heir}", read(pod_document(heir, move.target, created_s=now)))
    assert moves == [("ZoneSurvival", "z2-n1")]


def test_to_a_third_zone_the_network_may_move_a_replica_that_is_alone_in_its_own() -> None:
    """Both of web have their peers in z3; with web-1 there already, web-2 stays away from it."""
    far = {("z1", "z2"): 90, ("z1", "z3"): 90, ("z2", "z3"): 90}
    peers = {"web-2": "z2-n1", "db-1": "z3-n1", "db-2": "z3-n2"}
    (move,) = plan(spread(cluster({"web-1": "z1-n1", **peers}, costs=far, max_cost=100))).plan.moves
    assert (move.pod, move.strategy) == ("default/web-1", "NetworkMisplacement")
    assert move.target in {"z3-n1", "z3-n2"}
    there = {"web-1": "z3-n1", **peers}
    assert "default/web-2" not in moved(plan(spread(cluster(there, costs=far, max_cost=100))))
    assert "web-2" in moved(plan(cluster(there, costs=far, max_cost=100))), "it would, if it were not to survive a zone"
