"""Moves of a Deployment's pods from node ``hot`` to node ``idle``, and their evaluation."""

from __future__ import annotations

from typing import Any

import msgspec

from controller.descheduler.config import LimitsConfig
from tests.support.descheduler_builders import (
    NOW_S,
    DeschedulerSnapshot,
    History,
    PendingMove,
    PodInfo,
    evaluate_moves,
    make_host,
    make_pending_move,
    make_pod_info,
    make_snapshot,
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
