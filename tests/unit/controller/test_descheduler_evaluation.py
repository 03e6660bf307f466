"""Evaluation of moves, back-offs and the breaker: loops of evictions end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from controller.descheduler.config import LimitsConfig
from controller.descheduler.history import MAX_BACKOFFS, drop_expired, extend_backoff
from tests.support.descheduled import (
    NOW_S,
    BackoffEntry,
    BreakerEntry,
    DescheduleDecision,
    DeschedulerSnapshot,
    Eviction,
    History,
    PendingMove,
    PodInfo,
    ReasonDurations,
    add_moves,
    amounts,
    decided,
    evaluate_moves,
    moved,
    node,
    once,
    pending_move,
    pod,
    settings,
    short_uid,
    snapshot,
)

WORKLOAD = "default/Deployment/web"
LIMITS = LimitsConfig()
HALF_A_DAY_S = 12 * 3600.0


def move(**fields: Any) -> PendingMove:
    known = {
        "pod": "default/web-old",
        "uid": "old",
        "workload": WORKLOAD,
        "node": "hot",
        "planned_at_s": NOW_S,
        "target": "idle",
    }
    shares = {
        "usage_percent_before": {"cpu": 90.0},
        "expected_relief_percent": {"cpu": 30.0},
        "exceeded_thresholds": {"cpu": 50.0},
    }
    return pending_move(**{**known, **shares, **fields})


def replica(name: str, on: str, age_s: float = 5, **fields: Any) -> PodInfo:
    labels = {"pod-template-hash": "5d4f"}
    return pod(name, on, owner="ReplicaSet/web-5d4f", labels=labels, created_s=NOW_S + age_s, **fields)


def world(*pods: PodInfo, hot_cpu: float = 2.0, idle_cpu: float = 1.0) -> DeschedulerSnapshot:
    return snapshot([node("hot"), node("idle")], pods, {"hot": amounts(hot_cpu, 1), "idle": amounts(idle_cpu, 1)})


def replicas(memory: History) -> dict[str, float]:
    """Until when replicas back off."""
    return {key: backoff.until_s for key, backoff in memory.backoffs.items() if "/" not in key}


def evaluated_after(
    view: DeschedulerSnapshot, after_s: float, *moves: PendingMove, memory: History | None = None
) -> tuple[History, list[str]]:
    memory = msgspec.structs.replace(memory or History(), pending=moves or (move(),))
    memory, ended = evaluate_moves(view, memory, LIMITS, NOW_S + after_s)
    return memory, [end.outcome for end in ended]


def test_a_replacement_on_another_node_that_cooled_is_a_success() -> None:
    memory, outcomes = evaluated_after(world(replica("new", "idle")), 60)
    assert (outcomes, memory.pending[0].replacement_node, memory.pending[0].replacement_pod) == (
        [],
        "idle",
        "default/new",
    )
    before = History(backoffs={WORKLOAD: BackoffEntry(NOW_S + 100, 3)})
    memory, outcomes = evaluated_after(world(replica("new", "idle")), 306, memory=before)
    assert outcomes == ["helped"]
    assert WORKLOAD not in memory.backoffs, "a success ends the back-off"
    resting = History(backoffs={WORKLOAD: BackoffEntry(NOW_S + 5000, 3)})
    memory, _ = evaluated_after(world(replica("new", "idle")), 306, memory=resting)
    assert memory.backoffs[WORKLOAD] == resting.backoffs[WORKLOAD], "a back-off that is not over is served"
    assert memory.pending == ()


def test_a_move_is_not_evaluated_without_usage() -> None:
    """The node may be as hot as before, so a back-off must not end."""
    seen = world(replica("new", "idle"))
    for unseen in ({"idle": amounts(1, 1)}, {"hot": amounts(2, 1)}, {}):
        blind = snapshot(seen.nodes.values(), seen.pods.by_key.values(), unseen)
        before = History(backoffs={WORKLOAD: BackoffEntry(NOW_S + 100, 3)})
        memory, outcomes = evaluated_after(blind, 306, memory=before)
        assert outcomes == []
        assert evaluated_after(seen, 400, *memory.pending)[1] == ["helped"], "once it is seen"
        memory, outcomes = evaluated_after(blind, 306 + LIMITS.start_timeout_s, memory=before)
        assert outcomes == ["unknown"]
        assert (memory.backoffs[WORKLOAD], memory.breaker_entries) == (before.backoffs[WORKLOAD], ())
        assert list(replicas(memory)) == [replica("new", "idle").uid]


def test_back_off_doubles_with_each_failure_up_to_its_cap() -> None:
    found, memory = [], History()
    for i in range(9):
        memory, _ = evaluated_after(world(replica("new", "hot")), 10, memory=memory)
        found.append((memory.backoffs[WORKLOAD].until_s - NOW_S - 10) / 3600)
        assert memory.backoffs[WORKLOAD].failures == i + 1
    assert found == [2, 4, 8, 16, 32, 64, 128, 168, 168]


def test_a_new_pod_of_a_scale_out_on_the_old_node_is_not_taken_for_the_replacement() -> None:
    view = world(replica("scaled", "hot", age_s=1), replica("new", "idle", age_s=2))
    memory, outcomes = evaluated_after(view, 10)
    assert (outcomes, memory.pending[0].replacement_pod) == ([], "default/new")


@pytest.mark.parametrize("skew_s", [-30.0, -2.0, 2.0, 30.0])
def test_a_replacement_is_found_despite_clock_skew(skew_s: float) -> None:
    """The replacement bears the API server's time, the move ours."""
    assert evaluated_after(world(replica("new", "idle", age_s=2 - skew_s)), 400)[1] == ["helped"]


def test_five_returns_in_one_round_are_one_failure() -> None:
    moves = [move(pod=f"default/web-old{i}", uid=f"old{i}") for i in range(5)]
    memory, outcomes = evaluated_after(world(*(replica(f"new{i}", "hot") for i in range(5))), 10, *moves)
    assert outcomes == ["returned"] * 5
    assert memory.backoffs[WORKLOAD] == BackoffEntry(NOW_S + 10 + 7200, 1, "returned")


def test_an_eviction_that_was_not_made_does_not_count() -> None:
    memory = add_moves(History(), [move()])
    still_there = replica("web-old", "hot", age_s=-1000, uid="old")
    memory, ended = evaluate_moves(world(still_there), memory, LIMITS, NOW_S + 60)
    assert ended == []
    memory, ended = evaluate_moves(world(still_there), memory, LIMITS, NOW_S + 121)
    assert [end.outcome for end in ended] == ["not-evicted"]
    assert memory == History(), "neither back-off nor budget"


def test_older_siblings_are_no_replacements_and_each_replacement_is_claimed_once() -> None:
    known = (short_uid("uid-default-sibling"),)
    moves = (
        move(sibling_short_uids=known),
        move(pod="default/web-old2", uid="old2", node="idle", sibling_short_uids=known),
    )
    view = world(
        replica("sibling", "hot", age_s=-50), replica("new", "idle", age_s=2), replica("newer", "hot", age_s=3)
    )
    memory, outcomes = evaluated_after(view, 10, *moves)
    assert outcomes == []
    assert [m.replacement_pod for m in memory.pending] == ["default/new", "default/newer"]


def test_a_bare_pod_has_no_replacement_to_wait_for() -> None:
    assert evaluated_after(world(), 10, move(workload="default/Pod/web-old"))[1] == ["helped"]


def test_the_history_is_bounded_and_drops_the_back_offs_that_end_first() -> None:
    memory = History()
    for i in range(MAX_BACKOFFS + 5):
        memory = extend_backoff(memory, f"default/Deployment/w{i}", "returned", i, NOW_S)
    assert len(memory.backoffs) == MAX_BACKOFFS
    assert "default/Deployment/w4" not in memory.backoffs
    assert len(msgspec.json.encode(memory)) < 1 << 19
    replicas_first = History(backoffs={f"replica{i}": BackoffEntry(NOW_S + HALF_A_DAY_S) for i in range(MAX_BACKOFFS)})
    memory, outcomes = evaluated_after(world(replica("new", "hot")), 10, memory=replicas_first)
    assert (outcomes, len(memory.backoffs)) == (["returned"], MAX_BACKOFFS)


def test_old_entries_are_dropped_but_failures_are_remembered_beyond_their_back_off() -> None:
    """A workload's for a week, a replica's for as long as a first failure."""
    over = {
        "a/Deployment/over": BackoffEntry(NOW_S - 1),
        "a/Deployment/failed": BackoffEntry(NOW_S - 86_400, 2),
        "replica": BackoffEntry(NOW_S - 60, 1),
    }
    old = {"a/Deployment/long-ago": BackoffEntry(NOW_S - 8 * 86_400, 2), "old-replica": BackoffEntry(NOW_S - 7300, 1)}
    memory = History(evictions=(Eviction(NOW_S - 301, "a"), Eviction(NOW_S - 299, "b")), backoffs=over | old)
    kept = drop_expired(memory, LIMITS, NOW_S)
    assert [entry.workload for entry in kept.evictions] == ["b"]
    assert list(kept.backoffs) == ["a/Deployment/failed", "replica"]


NEW = replica("new", "idle")


@pytest.mark.parametrize(
    ("view", "after_s", "outcome", "backs_off"),
    [
        (world(NEW), 60, "", False),
        (world(NEW), 306, "helped", True),
        # 90 % before, 30 % used by the pod: 75 % of 4 cores is 3 cores.
        (world(NEW, hot_cpu=2.9), 306, "helped", True),
        (world(NEW, hot_cpu=3.1), 306, "node-still-overutilized", True),
        # 52 % of the new node, and the threshold is 50.
        (world(NEW, hot_cpu=1.0, idle_cpu=2.1), 306, "target-overutilized", True),
        (world(replica("new", "hot")), 10, "returned", True),
        (world(replica("new", "idle", ready=False)), 306, "not-ready", True),
        (world(replica("new", "", phase="Pending")), 599, "", False),
        (world(replica("new", "", phase="Pending")), 601, "not-scheduled", True),
        # A scale-down after the move says nothing about it.
        (world(), 601, "not-replaced", False),
    ],
)
def test_each_outcome_backs_off_its_workload_and_replacement(
    view: DeschedulerSnapshot, after_s: float, outcome: str, *, backs_off: bool
) -> None:
    memory, outcomes = evaluated_after(view, after_s)
    helped, says_nothing = outcome == "helped", outcome in {"", "not-replaced"}
    assert outcomes == ([outcome] if outcome else [])
    failed = BackoffEntry(NOW_S + after_s + 7200, 1, outcome)
    assert memory.backoffs.get(WORKLOAD) == (None if helped or says_nothing else failed)
    rests_s = HALF_A_DAY_S if helped else 2 * HALF_A_DAY_S
    assert replicas(memory) == ({NEW.uid: NOW_S + after_s + rests_s} if backs_off else {})
    assert [result.has_helped for result in memory.breaker_entries] == ([] if says_nothing else [helped])


def test_the_successor_of_a_replacement_is_evaluated() -> None:
    """The kubelet may have evicted the replacement before its evaluation."""
    landed, _ = evaluated_after(world(replica("new", "idle")), 60)
    assert evaluated_after(world(), 120, *landed.pending)[0].pending == landed.pending
    memory, outcomes = evaluated_after(world(replica("next", "hot", age_s=130)), 140, *landed.pending)
    assert outcomes == ["returned"]
    assert replicas(memory) == {replica("next", "hot").uid: NOW_S + 140 + 2 * HALF_A_DAY_S}


# The breaker


def skips(decision: DescheduleDecision) -> dict[str, str]:
    return {skip.pod.partition("/")[2]: skip.condition for skip in decision.plan.skips}


def results(count: int, good: int, strategy: Any = "LowNodeLoad", age_s: float = 60) -> tuple[BreakerEntry, ...]:
    return tuple(BreakerEntry(NOW_S - age_s, strategy, has_helped=i < good) for i in range(count))


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
def test_the_breaker_stops_a_strategy_if_too_few_moves_helped(
    results: tuple[BreakerEntry, ...], least: int, goes: bool
) -> None:
    rules, history = settings(limits={"minSuccessPercent": least}), History(breaker_entries=results)
    decision = once(snapshot(*HOT), rules, memory=history)
    assert moved(decision) == (["p"] if goes else [])
    (hot,) = (state for state in decision.plan.nodes if state.node == "hot")
    assert hot.is_stuck is not goes
    assert hot.why == "" if goes else "moves in 24 h helped" in hot.why
    outside = decided(snapshot(*HOT), history, ReasonDurations(), rules, NOW_S, assume_lasting=True)
    assert outside.plan == decision.plan, "so does the dry-run from outside"


def test_a_replacement_is_not_moved_again_for_half_a_day() -> None:
    """Whether the move that made it is still followed, or was judged and helped."""
    rules = settings(protection={"minPodAgeS": 0})
    (followed,) = once(snapshot(*HOT), rules).pending
    replacement = pod("q", "idle", uid="q", created_s=NOW_S)
    nodes = [node("hot"), node("idle")]
    view = snapshot(nodes, [replacement], {"hot": amounts(0.1, 1), "idle": amounts(3, 1)}, {"q": amounts(1, 1)})
    cooled = snapshot(nodes, [replacement], {"hot": amounts(0.1, 1), "idle": amounts(0.5, 1)})
    memory = History(pending=(followed,))
    for at_s in (30.0, 900.0, 40_000.0):
        memory, _ = evaluate_moves(cooled, memory, rules.limits, NOW_S + at_s)
        memory = msgspec.structs.replace(memory, backoffs={k: v for k, v in memory.backoffs.items() if "/" not in k})
        assert skips(once(view, rules, memory=memory, now=NOW_S + at_s))["q"] == "replica-backoff"
    assert moved(once(view, rules, memory=memory, now=NOW_S + 46_800)) == ["q"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_pod_that_always_returns_is_evicted_at_most_four_times_in_a_day(*, restarts: bool) -> None:
    """A minute a round; of a process that ends every hour the history stays, detectors do not."""
    rules, history, state = settings({"anomalyCondition": {}}), History(), ReasonDurations()
    moves, outcomes, born_s = list[float](), set[str](), NOW_S - 1000
    for minute in range(1440):
        now = NOW_S + 60 * minute
        if restarts and minute % 60 == 0:
            history, state = msgspec.json.decode(msgspec.json.encode(history), type=History), ReasonDurations()
        labels, name = {"pod-template-hash": "5d4f"}, f"web-{len(moves)}"
        one = pod(name, "hot", owner="ReplicaSet/web-5d4f", labels=labels, uid=name, created_s=born_s)
        usage = {"hot": amounts(3.8, 1), "idle": amounts(0.2, 1)}
        view = snapshot([node("hot"), node("idle")], [one], usage, {name: amounts(1.6, 0.5)})
        decision = decided(view, history, state, rules, now)
        outcomes |= {end.outcome for end in decision.evaluated}
        history, state = add_moves(decision.history, decision.pending), decision.durations
        for _ in decision.pending:
            moves.append(now)
            born_s = now + 3
    assert 1 <= len(moves) <= 4
    assert outcomes == {"returned"}
    gaps = [later - earlier for earlier, later in pairwise([NOW_S, *moves])]
    assert restarts or all(later > 1.9 * earlier for earlier, later in pairwise(gaps)), gaps
