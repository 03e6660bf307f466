"""Evaluation of moves: which pod replaces an evicted one, whether the move helped, and the back-offs that follow."""

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
    DeschedulerSnapshot,
    EvictionEntry,
    History,
    PendingMove,
    PodInfo,
    ReasonDurations,
    add_moves,
    decide_once,
    evaluate_moves,
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
FIRST_BACKOFF_S = LIMITS.failure_backoff_s
HALF_A_DAY_S = 12 * 3600.0
FIRST_EVALUATION_S = 5.0
"""It finds the replacement, which counts as bound then."""
OUTCOME_S = FIRST_EVALUATION_S + LIMITS.evaluate_after_s + 1
"""Time after the move at which its effect is evaluated."""
NODES = [make_host("hot"), make_host("idle")]
UNCOUNTED_OUTCOMES = {"", "not-replaced", "unknown"}


def make_web_move(**fields: Any) -> PendingMove:
    """A move of a pod with 30 % of the cpu of node hot, which used 90 %; the threshold is 50 %."""
    defaults: dict[str, Any] = {"pod": "default/web-old", "uid": "old", "workload": WORKLOAD, "target": "idle"}
    defaults |= {"usage_percent_before": {"cpu": 90.0}, "expected_relief_percent": {"cpu": 30.0}}
    return make_pending_move(**{**defaults, "exceeded_thresholds": {"cpu": 50.0}, **fields})


def make_web_pod(name: str, node_name: str, created_after_s: float = 5, **fields: Any) -> PodInfo:
    """A pod of the moved workload, created so many seconds after the move."""
    labels = {"pod-template-hash": "5d4f"}
    return make_pod_info(
        name, node_name, owner="ReplicaSet/web-5d4f", labels=labels, created_s=NOW_S + created_after_s, **fields
    )


def make_view(*pods: PodInfo, hot_cpu: float = 2.0, idle_cpu: float = 1.0) -> DeschedulerSnapshot:
    """The cluster after the move, with these cores of four in use."""
    return make_snapshot(NODES, pods, {"hot": to_usage(hot_cpu, 1), "idle": to_usage(idle_cpu, 1)})


def read_replica_backoffs(history: History) -> dict[str, float]:
    """End of the back-offs of replicas, by uid."""
    return {key: backoff.until_s for key, backoff in history.backoffs.items() if "/" not in key}


def evaluate_after(
    view: DeschedulerSnapshot, after_s: float, *moves: PendingMove, history: History | None = None
) -> tuple[History, list[str]]:
    """The history and the outcomes ``after_s`` seconds after the moves; there is an earlier evaluation if that is long after."""
    history = msgspec.structs.replace(history or History(), pending_moves=moves or (make_web_move(),))
    outcomes: list[str] = []
    for at_s in (FIRST_EVALUATION_S, after_s) if after_s > LIMITS.evaluate_after_s else (after_s,):
        history, ended = evaluate_moves(view, history, LIMITS, NOW_S + at_s)
        outcomes += [end.outcome for end in ended]
    return history, outcomes


NEW, TERMINATING = make_web_pod("new", "idle"), make_web_pod("web-old", "hot", uid="old", deleting=True)
PENDING = make_web_pod("new", "", phase="Pending")


@pytest.mark.parametrize("known_usage", [{"idle": to_usage(1, 1)}, {"hot": to_usage(2, 1)}, {}])
def test_a_move_is_not_evaluated_while_usage_is_unknown(known_usage: dict[str, dict[str, float]]) -> None:
    """The node may be as loaded as before, so failures must not be cleared."""
    before = History(backoffs={WORKLOAD: BackoffEntry(NOW_S + 100, 3)})
    without_usage = make_snapshot(NODES, [NEW], known_usage)

    history, outcomes = evaluate_after(without_usage, OUTCOME_S, history=before)
    assert outcomes == []
    assert evaluate_after(make_view(NEW), 400, *history.pending_moves)[1] == ["helped"], "once usage is known"

    history, outcomes = evaluate_after(without_usage, OUTCOME_S + LIMITS.start_timeout_s, history=before)
    assert outcomes == ["unknown"]
    assert history.backoffs[WORKLOAD] == before.backoffs[WORKLOAD]
    assert history.breaker_entries == ()
    assert list(read_replica_backoffs(history)) == [NEW.uid]


def test_a_new_pod_on_another_node_is_preferred_as_replacement_to_one_on_the_old_node() -> None:
    view = make_view(make_web_pod("scaled", "hot", created_after_s=1), make_web_pod("new", "idle", created_after_s=2))
    history, outcomes = evaluate_after(view, 10)
    assert outcomes == []
    assert history.pending_moves[0].replacement_pod == "default/new"


@pytest.mark.parametrize("delay_s", [0.0, 60.0], ids=["one-round", "two-rounds"])
def test_a_waiting_pod_is_the_replacement_of_one_move_only(delay_s: float) -> None:
    later_move = make_web_move(pod="default/web-old2", uid="old2", planned_at_s=NOW_S + delay_s)
    history, outcomes = evaluate_after(make_view(PENDING), 601, make_web_move(), later_move)
    outcomes += [end.outcome for end in evaluate_moves(make_view(PENDING), history, LIMITS, NOW_S + 661)[1]]
    assert outcomes == ["not-scheduled", "not-replaced"]


def test_a_move_whose_pod_was_not_evicted_does_not_count() -> None:
    history = add_moves(History(), [make_web_move()])
    unmoved_pod = make_web_pod("web-old", "hot", created_after_s=-1000, uid="old")
    history, ended = evaluate_moves(make_view(unmoved_pod), history, LIMITS, NOW_S + 60)
    assert ended == []
    history, ended = evaluate_moves(make_view(unmoved_pod), history, LIMITS, NOW_S + 121)
    assert [end.outcome for end in ended] == ["not-evicted"]
    assert history == History(), "neither back-off nor budget"


def test_older_siblings_are_no_replacements_and_each_replacement_is_claimed_once() -> None:
    siblings = (short_uid("uid-default-sibling"),)
    moves = [
        make_web_move(sibling_short_uids=siblings),
        make_web_move(pod="default/web-old2", uid="old2", node="idle", sibling_short_uids=siblings),
    ]
    pods = [
        make_web_pod("sibling", "hot", created_after_s=-50),
        make_web_pod("new", "idle", created_after_s=2),
        make_web_pod("newer", "hot", created_after_s=3),
    ]
    history, outcomes = evaluate_after(make_view(*pods), 10, *moves)
    assert outcomes == []
    assert [move.replacement_pod for move in history.pending_moves] == ["default/new", "default/newer"]


def test_the_history_of_moves_of_a_large_workload_fits_into_a_config_map() -> None:
    """It lists only siblings that are young enough to be mistaken for a replacement; older ones are never claimed."""
    pods_on_hot = [make_web_pod("young", "hot", created_after_s=-60)]
    pods_on_hot += [make_web_pod(f"old-{i}", "hot", created_after_s=-3600) for i in range(99)]
    pods_elsewhere = [make_web_pod(f"far-{i}", "elsewhere", created_after_s=-3600) for i in range(2900)]
    node_usage = {"hot": to_usage(4, 1), "idle": to_usage(0.1, 1)}
    pod_usage = {pod.name: to_usage(0.05, 0.01) for pod in pods_on_hot}

    view = make_snapshot(NODES, [*pods_on_hot, *pods_elsewhere], node_usage, pod_usage)
    history = add_moves(History(), decide_once(view, make_config()).pending_moves)

    assert len(history.pending_moves) > 30
    assert len(msgspec.json.encode(history)) < 1 << 17, "an eighth of the largest ConfigMap"
    moves = [move for move in history.pending_moves if move.move.pod != "default/young"][:2]
    history, _ = evaluate_after(make_view(*pods_elsewhere), 10, *moves)
    assert history.pending_moves == tuple(moves), "no older pod is a replacement"


def test_a_replacement_that_was_pending_for_long_is_evaluated_only_some_time_after_it_is_bound() -> None:
    history, _ = evaluate_after(make_view(PENDING), 400)
    outcomes = []
    # Found bound after 401 s, and evaluated 300 s later.
    for after_s in (401, 700, 701):
        history, ended = evaluate_moves(make_view(NEW), history, LIMITS, NOW_S + after_s)
        outcomes.append([end.outcome for end in ended])
    assert outcomes == [[], [], ["helped"]]


def test_a_move_of_a_bare_pod_helped_at_once() -> None:
    assert evaluate_after(make_view(), 10, make_web_move(workload="default/Pod/web-old"))[1] == ["helped"]


@pytest.mark.parametrize(
    ("view", "after_s", "outcome", "backs_off"),
    [
        (make_view(NEW), 60, "", False),
        (make_view(NEW), OUTCOME_S, "helped", True),
        # The clock of the API server may be late.
        (make_view(make_web_pod("new", "idle", created_after_s=-30)), OUTCOME_S, "helped", True),
        # 90 % before, 30 % used by the pod: 75 % of 4 cores is 3 cores.
        (make_view(NEW, hot_cpu=2.9), OUTCOME_S, "helped", True),
        (make_view(NEW, hot_cpu=3.1), OUTCOME_S, "node-still-overutilized", True),
        # 52 % of the new node, and the threshold is 50.
        (make_view(NEW, hot_cpu=1.0, idle_cpu=2.1), OUTCOME_S, "target-overutilized", True),
        (make_view(make_web_pod("new", "hot")), 10, "returned", True),
        # The usage of a node includes that of the moved pod until it is gone.
        (make_view(NEW, TERMINATING, hot_cpu=3.1), OUTCOME_S, "", False),
        (make_view(make_web_pod("new", "idle", ready=False)), OUTCOME_S, "not-ready", True),
        (make_view(PENDING), 599, "", False),
        (make_view(PENDING), 601, "not-scheduled", True),
        # A StatefulSet replaces no pod that a finalizer keeps, which must not count against the limits of evictions for ever.
        (make_view(TERMINATING), 599, "", False),
        (make_view(TERMINATING), 601, "unknown", False),
        # A scale-down after the move says nothing about it.
        (make_view(), 601, "not-replaced", False),
    ],
)
def test_the_outcome_decides_the_back_offs_of_the_workload_and_the_replacement(
    view: DeschedulerSnapshot, after_s: float, outcome: str, *, backs_off: bool
) -> None:
    earlier_failure = BackoffEntry(NOW_S - 1, 1, "returned")
    history, outcomes = evaluate_after(view, after_s, history=History(backoffs={WORKLOAD: earlier_failure}))

    assert outcomes == ([outcome] if outcome else [])
    has_helped = outcome == "helped"
    second_failure = BackoffEntry(NOW_S + after_s + 2 * FIRST_BACKOFF_S, 2, outcome)
    failure = earlier_failure if outcome in UNCOUNTED_OUTCOMES else second_failure
    assert history.backoffs.get(WORKLOAD) == (None if has_helped else failure)
    replica_backoff_s = HALF_A_DAY_S if has_helped else 2 * HALF_A_DAY_S
    assert read_replica_backoffs(history) == ({NEW.uid: NOW_S + after_s + replica_backoff_s} if backs_off else {})
    counted = [] if outcome in UNCOUNTED_OUTCOMES else [has_helped]
    assert [entry.has_helped for entry in history.breaker_entries] == counted


def test_the_successor_of_a_deleted_replacement_is_evaluated() -> None:
    """The kubelet may have evicted the replacement before its evaluation."""
    pending = evaluate_after(make_view(NEW), 60)[0].pending_moves
    assert evaluate_after(make_view(), 120, *pending)[0].pending_moves == pending
    history, outcomes = evaluate_after(make_view(make_web_pod("next", "hot", created_after_s=130)), 140, *pending)
    assert outcomes == ["returned"]
    assert read_replica_backoffs(history) == {make_web_pod("next", "hot").uid: NOW_S + 140 + 2 * HALF_A_DAY_S}


def test_a_move_that_helped_does_not_end_a_running_back_off() -> None:
    before = History(backoffs={WORKLOAD: BackoffEntry(NOW_S + 5000, 3)})
    history, outcomes = evaluate_after(make_view(make_web_pod("new", "idle")), OUTCOME_S, history=before)
    assert outcomes == ["helped"]
    assert history.pending_moves == ()
    assert history.backoffs[WORKLOAD] == before.backoffs[WORKLOAD]


def test_the_back_off_of_a_workload_doubles_with_each_failure_up_to_a_week() -> None:
    history = History()
    for failures, backoff_h in enumerate((2, 4, 8, 16, 32, 64, 128, 168, 168), start=1):
        history, _ = evaluate_after(make_view(make_web_pod(f"new{failures}", "hot")), 10, history=history)
        assert history.backoffs[WORKLOAD] == BackoffEntry(NOW_S + 10 + 3600 * backoff_h, failures, "returned")


def test_several_failed_moves_of_a_workload_in_one_round_are_one_failure() -> None:
    moves = [make_web_move(pod=f"default/web-old{i}", uid=f"old{i}") for i in range(5)]
    replacements = [make_web_pod(f"new{i}", "hot") for i in range(5)]
    history, outcomes = evaluate_after(make_view(*replacements), 10, *moves)
    assert outcomes == ["returned"] * 5
    assert history.backoffs[WORKLOAD] == BackoffEntry(NOW_S + 10 + FIRST_BACKOFF_S, 1, "returned")


def test_the_history_keeps_a_bounded_number_of_back_offs_and_drops_those_that_end_first() -> None:
    history = History()
    for i in range(MAX_BACKOFFS + 5):
        history = extend_backoff(history, f"default/Deployment/w{i}", "returned", i, NOW_S)
    assert len(history.backoffs) == MAX_BACKOFFS
    assert "default/Deployment/w4" not in history.backoffs
    assert len(msgspec.json.encode(history)) < 1 << 19, "half of the largest ConfigMap"


def test_expired_entries_are_dropped_and_failure_counts_outlive_their_back_off() -> None:
    """A workload's for a week, a replica's for as long as a first failure, evictions for 300 s."""
    backoffs = {
        "a/Deployment/no-failure": BackoffEntry(NOW_S - 1),
        "a/Deployment/failed": BackoffEntry(NOW_S - 86_400, 2),
        "a/Deployment/long-ago": BackoffEntry(NOW_S - 8 * 86_400, 2),
        "replica": BackoffEntry(NOW_S - 60, 1),
        "old-replica": BackoffEntry(NOW_S - FIRST_BACKOFF_S - 100, 1),
    }
    evictions = (EvictionEntry(NOW_S - 301, "a"), EvictionEntry(NOW_S - 299, "b"))
    kept = drop_expired(History(evictions=evictions, backoffs=backoffs), LIMITS, NOW_S)
    assert [entry.workload for entry in kept.evictions] == ["b"]
    assert list(kept.backoffs) == ["a/Deployment/failed", "replica"]


@pytest.mark.parametrize("has_restarts", [False, True])
def test_a_pod_that_always_returns_is_evicted_at_most_four_times_in_a_day(*, has_restarts: bool) -> None:
    """One round a minute. A restart each hour keeps the history, but not the detectors."""
    config, history, durations = make_config({"anomalyCondition": {}}), History(), ReasonDurations()
    evicted_at_s, outcomes, created_after_s = list[float](), set[str](), -1000.0
    for after_s in range(0, 24 * 3600, 60):
        if has_restarts and after_s % 3600 == 0:
            history, durations = msgspec.json.decode(msgspec.json.encode(history), type=History), ReasonDurations()
        pod = make_web_pod(f"web-{len(evicted_at_s)}", "hot", created_after_s)
        usage = {"hot": to_usage(3.8, 1), "idle": to_usage(0.2, 1)}
        view = make_snapshot(NODES, [pod], usage, {pod.name: to_usage(1.6, 0.5)})
        decision = decide_once(view, config, history=history, durations=durations, now=NOW_S + after_s)
        outcomes |= {end.outcome for end in decision.evaluated_moves}
        history, durations = add_moves(decision.history, decision.pending_moves), decision.durations
        if decision.pending_moves:
            evicted_at_s.append(after_s)
            created_after_s = after_s + 3

    assert 1 <= len(evicted_at_s) <= 4
    assert outcomes == {"returned"}
    gaps_s = [later - earlier for earlier, later in pairwise([0, *evicted_at_s])]
    # The back-off doubles; a restart adds the rounds until the node is anomalous again.
    assert has_restarts or all(later > 1.9 * earlier for earlier, later in pairwise(gaps_s)), gaps_s
