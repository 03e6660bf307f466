"""Back-offs and the breaker end loops of evictions."""

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
    EvictionEntry,
    History,
    ReasonDurations,
    add_moves,
    decide_once,
    find_node_state,
    list_moved_pods,
    make_config,
    make_host,
    make_loaded_snapshot,
    make_pod_info,
    make_snapshot,
    to_usage,
)

LIMITS = LimitsConfig()
ONE_POD = make_loaded_snapshot({"hot": 3, "idle": 0.1}, {"p": 1})


def make_breaker_entries(
    count: int, helped: int, strategy: Any = "LowNodeLoad", age_s: float = 60
) -> tuple[BreakerEntry, ...]:
    """The entries of ``count`` moves, of which some helped."""
    return tuple(BreakerEntry(NOW_S - age_s, strategy, has_helped=i < helped) for i in range(count))


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
        "old-replica": BackoffEntry(NOW_S - LIMITS.failure_backoff_s - 100, 1),
    }
    evictions = (EvictionEntry(NOW_S - 301, "a"), EvictionEntry(NOW_S - 299, "b"))
    kept = drop_expired(History(evictions=evictions, backoffs=backoffs), LIMITS, NOW_S)
    assert [entry.workload for entry in kept.evictions] == ["b"]
    assert list(kept.backoffs) == ["a/Deployment/failed", "replica"]


@pytest.mark.parametrize(
    ("entries", "min_success_percent", "is_stopped"),
    [
        pytest.param(make_breaker_entries(3, 0), 50, False, id="fewer than four moves"),
        (make_breaker_entries(4, 1), 50, True),
        (make_breaker_entries(4, 2), 50, False),
        (make_breaker_entries(10, 4), 50, True),
        (make_breaker_entries(10, 4), 40, False),
        (make_breaker_entries(10, 0), 0, False),
        pytest.param(make_breaker_entries(10, 0, age_s=86_401), 50, False, id="more than a day ago"),
        pytest.param(make_breaker_entries(10, 0, "NetworkMisplacement"), 50, False, id="of another strategy"),
    ],
)
def test_the_breaker_stops_a_strategy_if_too_few_moves_helped(
    entries: tuple[BreakerEntry, ...], min_success_percent: int, *, is_stopped: bool
) -> None:
    config, history = make_config(limits={"minSuccessPercent": min_success_percent}), History(breaker_entries=entries)

    decision = decide_once(ONE_POD, config, history=history)
    dry_run = decide_once(ONE_POD, config, history=history, assume_lasting=True)

    assert list_moved_pods(decision) == ([] if is_stopped else ["p"])
    assert find_node_state(decision).is_stuck is is_stopped
    assert ("moves in 24 h helped" in find_node_state(decision).reason) is is_stopped
    assert dry_run.plan == decision.plan


@pytest.mark.parametrize("has_restarts", [False, True])
def test_a_pod_that_always_returns_is_evicted_at_most_four_times_in_a_day(*, has_restarts: bool) -> None:
    """One round a minute. A restart each hour keeps the history, but not the detectors."""
    config, history, durations = make_config({"anomalyCondition": {}}), History(), ReasonDurations()
    evicted_at_s, outcomes, created_after_s = list[float](), set[str](), -1000.0
    for after_s in range(0, 24 * 3600, 60):
        if has_restarts and after_s % 3600 == 0:
            history, durations = msgspec.json.decode(msgspec.json.encode(history), type=History), ReasonDurations()
        pod = make_pod_info(f"web-{len(evicted_at_s)}", "hot", created_s=NOW_S + created_after_s)
        usage = {"hot": to_usage(3.8, 1), "idle": to_usage(0.2, 1)}
        view = make_snapshot(map(make_host, usage), [pod], usage, {pod.name: to_usage(1.6, 0.5)})
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
