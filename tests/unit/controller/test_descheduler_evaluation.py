"""Evaluation of moves, back-offs and the breaker, which end loops of evictions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from controller.descheduler.config import LimitsConfig
from controller.descheduler.history import MAX_BACKOFFS, drop_expired, extend_backoff
from tests.support.descheduler_builders import (
    NOW_S,
    BackoffEntry,
    BreakerEntry,
    DescheduleDecision,
    DeschedulerSnapshot,
    EvictionEntry,
    History,
    PendingMove,
    PodInfo,
    ReasonDurations,
    add_moves,
    decide,
    decide_once,
    evaluate_moves,
    list_moved_pods,
    make_config,
    make_host,
    make_pending_move,
    make_pod_info,
    make_snapshot,
    short_uid,
    to_usage,
)

WORKLOAD = "default/Deployment/web"
LIMITS = LimitsConfig()
HALF_A_DAY_S = 12 * 3600.0
NODES = [make_host("hot"), make_host("idle")]


def make_move(**fields: Any) -> PendingMove:
    defaults: dict[str, Any] = {"pod": "default/web-old", "uid": "old", "workload": WORKLOAD, "target": "idle"}
    defaults |= {"usage_percent_before": {"cpu": 90.0}, "expected_relief_percent": {"cpu": 30.0}}
    return make_pending_move(**{**defaults, "exceeded_thresholds": {"cpu": 50.0}, **fields})


def replica(name: str, on: str, age_s: float = 5, **fields: Any) -> PodInfo:
    labels = {"pod-template-hash": "5d4f"}
    return make_pod_info(name, on, owner="ReplicaSet/web-5d4f", labels=labels, created_s=NOW_S + age_s, **fields)


def world(*pods: PodInfo, hot_cpu: float = 2.0, idle_cpu: float = 1.0) -> DeschedulerSnapshot:
    return make_snapshot(NODES, pods, {"hot": to_usage(hot_cpu, 1), "idle": to_usage(idle_cpu, 1)})


def replica_backoffs(history: History) -> dict[str, float]:
    """End of the back-offs of replicas, by uid."""
    return {key: backoff.until_s for key, backoff in history.backoffs.items() if "/" not in key}


def evaluate_after(
    view: DeschedulerSnapshot, after_s: float, *moves: PendingMove, history: History | None = None
) -> tuple[History, list[str]]:
    """Evaluate once, and before, 5 s after the moves, if ``after_s`` is long enough for an outcome."""
    history = msgspec.structs.replace(history or History(), pending_moves=moves or (make_move(),))
    outcomes: list[str] = []
    for at_s in (5.0, after_s) if after_s > LIMITS.evaluate_after_s else (after_s,):
        history, ended = evaluate_moves(view, history, LIMITS, NOW_S + at_s)
        outcomes += [end.outcome for end in ended]
    return history, outcomes


def test_a_move_that_helped_does_not_end_a_running_back_off() -> None:
    before = History(backoffs={WORKLOAD: BackoffEntry(NOW_S + 5000, 3)})
    history, outcomes = evaluate_after(world(replica("new", "idle")), 306, history=before)
    assert (outcomes, history.pending_moves, history.backoffs[WORKLOAD]) == (["helped"], (), before.backoffs[WORKLOAD])


def test_a_move_is_not_evaluated_while_usage_is_unknown() -> None:
    """The node may be as loaded as before, so failures must not be cleared."""
    with_usage = world(replica("new", "idle"))
    for known_usage in ({"idle": to_usage(1, 1)}, {"hot": to_usage(2, 1)}, {}):
        without_usage = make_snapshot(with_usage.nodes.values(), with_usage.pods.by_key.values(), known_usage)
        before = History(backoffs={WORKLOAD: BackoffEntry(NOW_S + 100, 3)})
        history, outcomes = evaluate_after(without_usage, 306, history=before)
        assert outcomes == []
        assert evaluate_after(with_usage, 400, *history.pending_moves)[1] == ["helped"], "once usage is known"
        history, outcomes = evaluate_after(without_usage, 306 + LIMITS.start_timeout_s, history=before)
        assert outcomes == ["unknown"]
        assert (history.backoffs[WORKLOAD], history.breaker_entries) == (before.backoffs[WORKLOAD], ())
        assert list(replica_backoffs(history)) == [replica("new", "idle").uid]


def test_the_back_off_of_a_workload_doubles_with_each_failure_up_to_a_week() -> None:
    history = History()
    for failures, backoff_h in enumerate((2, 4, 8, 16, 32, 64, 128, 168, 168), start=1):
        history, _ = evaluate_after(world(replica(f"new{failures}", "hot")), 10, history=history)
        assert history.backoffs[WORKLOAD] == BackoffEntry(NOW_S + 10 + 3600 * backoff_h, failures, "returned")


def test_a_new_pod_on_another_node_is_preferred_as_replacement_to_one_on_the_old_node() -> None:
    view = world(replica("scaled", "hot", age_s=1), replica("new", "idle", age_s=2))
    history, outcomes = evaluate_after(view, 10)
    assert (outcomes, history.pending_moves[0].replacement_pod) == ([], "default/new")


def test_several_failed_moves_of_a_workload_in_one_round_are_one_failure() -> None:
    moves = [make_move(pod=f"default/web-old{i}", uid=f"old{i}") for i in range(5)]
    history, outcomes = evaluate_after(world(*(replica(f"new{i}", "hot") for i in range(5))), 10, *moves)
    assert outcomes == ["returned"] * 5
    assert history.backoffs[WORKLOAD] == BackoffEntry(NOW_S + 10 + 7200, 1, "returned")


@pytest.mark.parametrize("delay_s", [0.0, 60.0], ids=["one-round", "two-rounds"])
def test_a_waiting_pod_is_the_replacement_of_one_move_only(delay_s: float) -> None:
    waiting, second = world(replica("new", "", phase="Pending")), make_move(pod="default/web-old2", uid="old2")
    moves = make_move(), msgspec.structs.replace(second, planned_at_s=NOW_S + delay_s)
    history, outcomes = evaluate_after(waiting, 601, *moves)
    outcomes += [end.outcome for end in evaluate_moves(waiting, history, LIMITS, NOW_S + 661)[1]]
    assert outcomes == ["not-scheduled", "not-replaced"]


def test_a_move_whose_pod_was_not_evicted_does_not_count() -> None:
    history = add_moves(History(), [make_move()])
    still_there = replica("web-old", "hot", age_s=-1000, uid="old")
    history, ended = evaluate_moves(world(still_there), history, LIMITS, NOW_S + 60)
    assert ended == []
    history, ended = evaluate_moves(world(still_there), history, LIMITS, NOW_S + 121)
    assert [end.outcome for end in ended] == ["not-evicted"]
    assert history == History(), "neither back-off nor budget"


def test_older_siblings_are_no_replacements_and_each_replacement_is_claimed_once() -> None:
    siblings = (short_uid("uid-default-sibling"),)
    first = make_move(sibling_short_uids=siblings)
    second = make_move(pod="default/web-old2", uid="old2", node="idle", sibling_short_uids=siblings)
    new = (replica("new", "idle", age_s=2), replica("newer", "hot", age_s=3))
    history, outcomes = evaluate_after(world(replica("sibling", "hot", age_s=-50), *new), 10, first, second)
    assert outcomes == []
    assert [m.replacement_pod for m in history.pending_moves] == ["default/new", "default/newer"]


def test_the_history_of_moves_of_a_large_workload_fits_into_a_config_map() -> None:
    """It lists only siblings that are young enough to be mistaken for a replacement; older ones are never claimed."""
    ages_s = {"old": -3600.0, "young": -60.0, **{f"old-{i}": -3600.0 for i in range(3000)}}
    pods = [replica(name, "hot" if i < 100 else "elsewhere", age_s) for i, (name, age_s) in enumerate(ages_s.items())]
    usage = {pod.name: to_usage(0.05, 0.01) for pod in pods}
    decision = decide_once(
        make_snapshot(NODES, pods, {"hot": to_usage(4, 1), "idle": to_usage(0.1, 1)}, usage), make_config()
    )
    history = add_moves(History(), decision.pending_moves)
    assert len(history.pending_moves) > 30
    assert len(msgspec.json.encode(history)) < 1 << 17
    moves = [move for move in history.pending_moves if move.move.pod != "default/young"]
    assert evaluate_after(world(*pods[100:]), 10, *moves[:2])[0].pending_moves == tuple(moves[:2])


def test_a_replacement_that_was_pending_for_long_is_evaluated_only_some_time_after_it_is_bound() -> None:
    pending, bound = world(replica("new", "", phase="Pending")), world(replica("new", "idle"))
    history, outcomes = evaluate_after(pending, 400)[0], list[list[str]]()
    for at_s in (401, 700, 701):
        history, ended = evaluate_moves(bound, history, LIMITS, NOW_S + at_s)
        outcomes.append([end.outcome for end in ended])
    assert outcomes == [[], [], ["helped"]]


def test_a_move_of_a_bare_pod_helped_at_once() -> None:
    assert evaluate_after(world(), 10, make_move(workload="default/Pod/web-old"))[1] == ["helped"]


def test_the_history_keeps_a_bounded_number_of_back_offs_and_drops_those_that_end_first() -> None:
    history = History()
    for i in range(MAX_BACKOFFS + 5):
        history = extend_backoff(history, f"default/Deployment/w{i}", "returned", i, NOW_S)
    assert len(history.backoffs) == MAX_BACKOFFS
    assert "default/Deployment/w4" not in history.backoffs
    assert len(msgspec.json.encode(history)) < 1 << 19
    replicas_first = History(backoffs={f"replica{i}": BackoffEntry(NOW_S + HALF_A_DAY_S) for i in range(MAX_BACKOFFS)})
    history, outcomes = evaluate_after(world(replica("new", "hot")), 10, history=replicas_first)
    assert (outcomes, len(history.backoffs)) == (["returned"], MAX_BACKOFFS)


def test_expired_entries_are_dropped_and_failure_counts_outlive_their_back_off() -> None:
    """A workload's for a week, a replica's for as long as a first failure."""
    over = {
        "a/Deployment/over": BackoffEntry(NOW_S - 1),
        "a/Deployment/failed": BackoffEntry(NOW_S - 86_400, 2),
        "replica": BackoffEntry(NOW_S - 60, 1),
    }
    old = {"a/Deployment/long-ago": BackoffEntry(NOW_S - 8 * 86_400, 2), "old-replica": BackoffEntry(NOW_S - 7300, 1)}
    history = History(evictions=(EvictionEntry(NOW_S - 301, "a"), EvictionEntry(NOW_S - 299, "b")), backoffs=over | old)
    kept = drop_expired(history, LIMITS, NOW_S)
    assert [entry.workload for entry in kept.evictions] == ["b"]
    assert list(kept.backoffs) == ["a/Deployment/failed", "replica"]


NEW, TERMINATING = replica("new", "idle"), replica("web-old", "hot", uid="old", deleting=True)


@pytest.mark.parametrize(
    ("view", "after_s", "outcome", "backs_off"),
    [
        (world(NEW), 60, "", False),
        (world(NEW), 306, "helped", True),
        # The clock of the API server may be late.
        (world(replica("new", "idle", age_s=-30)), 306, "helped", True),
        # 90 % before, 30 % used by the pod: 75 % of 4 cores is 3 cores.
        (world(NEW, hot_cpu=2.9), 306, "helped", True),
        (world(NEW, hot_cpu=3.1), 306, "node-still-overutilized", True),
        # 52 % of the new node, and the threshold is 50.
        (world(NEW, hot_cpu=1.0, idle_cpu=2.1), 306, "target-overutilized", True),
        (world(replica("new", "hot")), 10, "returned", True),
        # The usage of a node includes that of the moved pod until it is gone.
        (world(NEW, TERMINATING, hot_cpu=3.1), 306, "", False),
        (world(replica("new", "idle", ready=False)), 306, "not-ready", True),
        (world(replica("new", "", phase="Pending")), 599, "", False),
        (world(replica("new", "", phase="Pending")), 601, "not-scheduled", True),
        # A StatefulSet replaces no pod that a finalizer keeps, which must not count against the limits of evictions for ever.
        (world(TERMINATING), 599, "", False),
        (world(TERMINATING), 601, "unknown", False),
        # A scale-down after the move says nothing about it.
        (world(), 601, "not-replaced", False),
    ],
)
def test_the_outcome_decides_the_back_offs_of_the_workload_and_the_replacement(
    view: DeschedulerSnapshot, after_s: float, outcome: str, *, backs_off: bool
) -> None:
    earlier_failure = BackoffEntry(NOW_S - 1, 1, "returned")
    history, outcomes = evaluate_after(view, after_s, history=History(backoffs={WORKLOAD: earlier_failure}))
    has_helped, is_uncounted = outcome == "helped", outcome in {"", "not-replaced", "unknown"}
    assert outcomes == ([outcome] if outcome else [])
    failure = earlier_failure if is_uncounted else BackoffEntry(NOW_S + after_s + 2 * 7200, 2, outcome)
    assert history.backoffs.get(WORKLOAD) == (None if has_helped else failure)
    replica_backoff_s = HALF_A_DAY_S if has_helped else 2 * HALF_A_DAY_S
    assert replica_backoffs(history) == ({NEW.uid: NOW_S + after_s + replica_backoff_s} if backs_off else {})
    assert [entry.has_helped for entry in history.breaker_entries] == ([] if is_uncounted else [has_helped])


def test_the_successor_of_a_deleted_replacement_is_evaluated() -> None:
    """The kubelet may have evicted the replacement before its evaluation."""
    pending = evaluate_after(world(replica("new", "idle")), 60)[0].pending_moves
    assert evaluate_after(world(), 120, *pending)[0].pending_moves == pending
    history, outcomes = evaluate_after(world(replica("next", "hot", age_s=130)), 140, *pending)
    assert outcomes == ["returned"]
    assert replica_backoffs(history) == {replica("next", "hot").uid: NOW_S + 140 + 2 * HALF_A_DAY_S}


# The breaker


def skips(decision: DescheduleDecision) -> dict[str, str]:
    return {skip.pod.partition("/")[2]: skip.condition for skip in decision.plan.skips}


def results(count: int, good: int, strategy: Any = "LowNodeLoad", age_s: float = 60) -> tuple[BreakerEntry, ...]:
    return tuple(BreakerEntry(NOW_S - age_s, strategy, has_helped=i < good) for i in range(count))


HOT = (NODES, [make_pod_info("p", "hot")], {"hot": to_usage(3, 1), "idle": to_usage(0.1, 1)}, {"p": to_usage(1, 1)})


@pytest.mark.parametrize(
    ("results", "min_success_percent", "moves"),
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
    results: tuple[BreakerEntry, ...], min_success_percent: int, moves: bool
) -> None:
    config, history = make_config(limits={"minSuccessPercent": min_success_percent}), History(breaker_entries=results)
    decision = decide_once(make_snapshot(*HOT), config, history=history)
    assert list_moved_pods(decision) == (["p"] if moves else [])
    (hot,) = (state for state in decision.plan.nodes if state.node == "hot")
    assert hot.is_stuck is not moves
    assert hot.reason == "" if moves else "moves in 24 h helped" in hot.reason
    outside = decide(make_snapshot(*HOT), history, ReasonDurations(), config, NOW_S, assume_lasting=True).decision
    assert outside.plan == decision.plan, "a dry run decides the same"


def test_a_replacement_is_not_moved_again_for_half_a_day() -> None:
    """Before and after the evaluation of its move."""
    config = make_config(protection={"minPodAgeS": 0})
    (pending,) = decide_once(make_snapshot(*HOT), config).pending_moves
    replacement = make_pod_info("q", "idle", uid="q", created_s=NOW_S)
    view = make_snapshot(NODES, [replacement], {"hot": to_usage(0.1, 1), "idle": to_usage(3, 1)}, {"q": to_usage(1, 1)})
    cooled = make_snapshot(NODES, [replacement], {"hot": to_usage(0.1, 1), "idle": to_usage(0.5, 1)})
    history = History(pending_moves=(pending,))
    for at_s in (30.0, 900.0, 40_000.0):
        history, _ = evaluate_moves(cooled, history, config.limits, NOW_S + at_s)
        history = msgspec.structs.replace(history, backoffs={k: v for k, v in history.backoffs.items() if "/" not in k})
        assert skips(decide_once(view, config, history=history, now=NOW_S + at_s))["q"] == "replica-backoff"
    assert list_moved_pods(decide_once(view, config, history=history, now=NOW_S + 46_800)) == ["q"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_pod_that_always_returns_is_evicted_at_most_four_times_in_a_day(*, restarts: bool) -> None:
    """One round a minute. A restart keeps the history, but not the detectors."""
    config, history, state = make_config({"anomalyCondition": {}}), History(), ReasonDurations()
    moves, outcomes, born_s = list[float](), set[str](), NOW_S - 1000
    for minute in range(1440):
        now = NOW_S + 60 * minute
        if restarts and minute % 60 == 0:
            history, state = msgspec.json.decode(msgspec.json.encode(history), type=History), ReasonDurations()
        labels, name = {"pod-template-hash": "5d4f"}, f"web-{len(moves)}"
        web = make_pod_info(name, "hot", owner="ReplicaSet/web-5d4f", labels=labels, uid=name, created_s=born_s)
        usage = {"hot": to_usage(3.8, 1), "idle": to_usage(0.2, 1)}
        view = make_snapshot(NODES, [web], usage, {name: to_usage(1.6, 0.5)})
        decision = decide(view, history, state, config, now).decision
        outcomes |= {end.outcome for end in decision.evaluated_moves}
        history, state = add_moves(decision.history, decision.pending_moves), decision.durations
        for _ in decision.pending_moves:
            moves.append(now)
            born_s = now + 3
    assert 1 <= len(moves) <= 4
    assert outcomes == {"returned"}
    gaps = [later - earlier for earlier, later in pairwise([NOW_S, *moves])]
    assert restarts or all(later > 1.9 * earlier for earlier, later in pairwise(gaps)), gaps
