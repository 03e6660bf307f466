"""Evaluates moves some time after their replacements were bound, by readiness, and usage of nodes, network cost or zone.

After a move that did not help, its workload has a back-off, which doubles each time up to a week. This ends loops of evictions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from controller.cluster.pod_info import PodInfo
from controller.descheduler.config import LimitsConfig, StrategyName
from controller.descheduler.history import (
    MAX_BREAKER_ENTRIES,
    MIN_OLD_POD_AGE_S,
    BackoffEntry,
    BreakerEntry,
    History,
    MoveOutcome,
    PendingMove,
    drop_expired,
    extend_backoff,
    remove_move,
    set_backoff,
    short_uid,
)
from controller.descheduler.snapshot import DeschedulerSnapshot
from controller.descheduler.usage import find_exceeded_resources, to_percents

REPLICA_BACKOFF_S = 12 * 3600.0
"""Back-off of a replacement after its move, twice as long if that did not help. So no replica is evicted more than twice a day."""
MIN_BREAKER_ENTRIES = 4
"""A strategy's breaker opens only if at least this many of its moves of the last day were evaluated."""
INEFFECTIVE_OUTCOMES: Mapping[MoveOutcome, str] = {
    "returned": "its replacement is on the same node, or in the zone that it should leave",
    "node-still-overutilized": "the node is still overutilized",
    "target-overutilized": "its new node is overutilized too",
    "cost-not-fallen": "its network cost rose, or is the same and no violation ended",
    "not-ready": "its replacement is not ready",
    "not-scheduled": "its replacement has no node",
}
"""Outcomes of moves that did not help, each with a text for users."""


class EvaluatedMove(NamedTuple):
    """A move with its outcome; ``backoff_s`` is the time until its workload may be moved again, 0 if it helped or has no back-off."""

    pending: PendingMove
    outcome: MoveOutcome
    backoff_s: float


def find_stopped_strategies(history: History, limits: LimitsConfig) -> dict[StrategyName, str]:
    """The strategies whose breaker is open, each with the reason; ``history`` has no expired entries."""
    helped = Counter(entry.strategy for entry in history.breaker_entries if entry.has_helped)
    return {
        strategy: f"{strategy} is stopped: {helped[strategy]} of {total} moves in 24 h helped"
        for strategy, total in Counter(entry.strategy for entry in history.breaker_entries).items()
        if total >= MIN_BREAKER_ENTRIES and 100 * helped[strategy] < limits.min_success_percent * total
    }


def evaluate_moves(
    snapshot: DeschedulerSnapshot, history: History, limits: LimitsConfig, now: float
) -> tuple[History, list[EvaluatedMove]]:
    """Evaluate pending moves; returns the history with the results, and the moves whose outcome is known now."""
    # A pod with a back-off is the replacement of an earlier move.
    claimed_uids = {*history.backoffs, *(pending.replacement_uid for pending in history.pending_moves)}
    still_pending: list[PendingMove] = []
    evaluated_moves: list[EvaluatedMove] = []
    failed_workloads: set[str] = set()
    for pending in sorted(history.pending_moves, key=lambda pending: pending.planned_at_s):
        pending = _claim_bound_replacement(pending, snapshot, claimed_uids, now)
        outcome = _find_outcome(pending, snapshot, limits, claimed_uids, now)
        if outcome is None:
            still_pending.append(pending)
            continue
        workload, is_ineffective = pending.move.workload, outcome in INEFFECTIVE_OUTCOMES
        if outcome == "not-evicted":
            history = remove_move(history, pending)
        elif uid := _claim_replacement_uid(pending, snapshot, claimed_uids):
            history = _back_off_replica(history, uid, outcome, now)
        # A move without a replacement, or with an unknown outcome, says nothing about the strategy.
        if outcome == "not-scheduled" or (pending.replacement_node and outcome != "unknown"):
            entry = BreakerEntry(now, pending.move.strategy, outcome == "helped")
            entries = (*history.breaker_entries, entry)[-MAX_BREAKER_ENTRIES:]
            history = msgspec.structs.replace(history, breaker_entries=entries)
        # Several moves of one workload that fail in one round count as one failure.
        if is_ineffective and workload not in failed_workloads:
            history = extend_backoff(history, workload, outcome, limits.failure_backoff_s, now)
            failed_workloads.add(workload)
        elif outcome == "helped":
            history = _clear_failures(history, workload, now)
        # The workload has no back-off if `MAX_BACKOFFS` was exceeded.
        backoff = history.active_backoff(workload, now) if is_ineffective else None
        evaluated_moves.append(EvaluatedMove(pending, outcome, backoff.until_s - now if backoff else 0.0))
    history = msgspec.structs.replace(history, pending_moves=tuple(still_pending))
    return drop_expired(history, limits, now), evaluated_moves


def _clear_failures(history: History, workload: str, now: float) -> History:
    """Clear the failure count of a workload, unless a back-off is still running."""
    if history.active_backoff(workload, now):
        return history
    backoffs = {key: backoff for key, backoff in history.backoffs.items() if key != workload}
    return msgspec.structs.replace(history, backoffs=backoffs)


def _back_off_replica(history: History, uid: str, outcome: MoveOutcome, now: float) -> History:
    """Set the back-off of the replacement with this uid, twice as long if its move did not help."""
    failures = 1 if outcome in INEFFECTIVE_OUTCOMES else 0
    until_s = now + REPLICA_BACKOFF_S * (1 + failures)
    reason = f"it is the replacement of a moved pod ({outcome})"
    return set_backoff(history, uid, BackoffEntry(until_s, failures, reason))


def _claim_replacement_uid(pending: PendingMove, snapshot: DeschedulerSnapshot, claimed_uids: set[str]) -> str:
    """The uid of the replacement; if none is bound, claim the oldest new pod, which waits for a node. Empty if there is no new pod."""
    uid = pending.replacement_uid
    if not uid and (waiting_pods := _new_pods(pending, snapshot, claimed_uids)):
        uid = min(waiting_pods, key=lambda pod: pod.created_s).uid
        claimed_uids.add(uid)
    return uid


def _claim_bound_replacement(
    pending: PendingMove, snapshot: DeschedulerSnapshot, claimed_uids: set[str], now: float
) -> PendingMove:
    """Claim a bound pod that no other move has claimed as the replacement, and add it to the move.

    If a replacement is deleted before the evaluation, its successor is claimed, because it needs a back-off too.
    """
    claimed_pod = snapshot.pods.by_key.get(pending.replacement_pod)
    if claimed_pod is not None and claimed_pod.is_active and claimed_pod.uid == pending.replacement_uid:
        return pending
    node, target = pending.move.node, pending.move.target
    bound_pods = [pod for pod in _new_pods(pending, snapshot, claimed_uids) if pod.node]
    # A scale-out may add new pods as well: prefer the one on the target, then one on another node.
    replacement = min(bound_pods, key=lambda p: (p.node != target, p.node == node, p.created_s, p.key), default=None)
    if replacement is None:
        return pending
    claimed_uids.add(replacement.uid)
    return msgspec.structs.replace(
        pending,
        replacement_node=replacement.node,
        replacement_pod=replacement.key,
        replacement_uid=replacement.uid,
        replacement_bound_at_s=now,
    )


def _new_pods(pending: PendingMove, snapshot: DeschedulerSnapshot, claimed_uids: set[str]) -> list[PodInfo]:
    """Active pods of the workload that did not exist before the move and that no move has claimed. Clocks differ, uids do not."""
    pods = snapshot.pods.where("workload", pending.move.workload).values()
    older_short_uids = {short_uid(pending.move.uid), *pending.sibling_short_uids}
    young = (p for p in pods if p.is_active and p.created_s > pending.planned_at_s - MIN_OLD_POD_AGE_S)
    return [p for p in young if p.uid not in claimed_uids and short_uid(p.uid) not in older_short_uids]


def _find_outcome(
    pending: PendingMove, snapshot: DeschedulerSnapshot, limits: LimitsConfig, claimed_uids: set[str], now: float
) -> MoveOutcome | None:
    """The outcome of a move; None while it is awaited."""
    move = pending.move
    if not pending.replacement_node:
        return _find_outcome_without_replacement(pending, snapshot, limits, claimed_uids, now)
    age_s, has_returned = now - pending.replacement_bound_at_s, pending.replacement_node == move.node
    if has_returned or age_s < limits.evaluate_after_s:
        return "returned" if has_returned else None
    pod = snapshot.pods.by_key.get(pending.replacement_pod)
    if pod is not None and pod.uid == pending.replacement_uid and not pod.is_ready:
        return "not-ready"
    if move.strategy == "LowNodeLoad":
        may_wait = age_s < limits.evaluate_after_s + limits.start_timeout_s
        return _find_load_outcome(pending, snapshot, may_wait=may_wait)
    if move.strategy == "ZoneSurvival":
        return "helped" if _is_in_other_zone(pending, snapshot) else "returned"
    return "helped" if _is_better_placed(pending, snapshot) else "cost-not-fallen"


def _find_load_outcome(pending: PendingMove, snapshot: DeschedulerSnapshot, *, may_wait: bool) -> MoveOutcome | None:
    """The outcome of a move of LowNodeLoad; None while usage is missing or the pod terminates, if the evaluation may still wait."""
    node_names = [name for name in (pending.move.node, pending.replacement_node) if name in snapshot.nodes]
    usages = [snapshot.usage.by_node.get(name, {}) for name in node_names]
    is_missing = any(resource not in usage for usage in usages for resource in pending.usage_percent_before)
    if is_missing or snapshot.has_unfinished_pod(pending.move.pod, pending.move.uid):
        return None if may_wait else "unknown"
    if not _is_relieved(pending, snapshot):
        return "node-still-overutilized"
    target_percents = _usage_percents(pending.replacement_node, snapshot)
    return "target-overutilized" if find_exceeded_resources(target_percents, pending.exceeded_thresholds) else "helped"


def _find_outcome_without_replacement(
    pending: PendingMove, snapshot: DeschedulerSnapshot, limits: LimitsConfig, claimed_uids: set[str], now: float
) -> MoveOutcome | None:
    pod, age_s = snapshot.pods.by_key.get(pending.move.pod), now - pending.planned_at_s
    if pod is not None and pod.uid == pending.move.uid:
        if pod.is_active:  # The eviction was not sent, or its response was lost.
            return "not-evicted" if age_s > limits.usage_lag_s else None
        return "unknown" if age_s > limits.start_timeout_s else None
    if "/Pod/" in pending.move.workload:  # Nothing replaces a bare pod.
        return "helped"
    if age_s <= limits.start_timeout_s:
        return None
    has_unscheduled = any(not pod.node for pod in _new_pods(pending, snapshot, claimed_uids))
    return "not-scheduled" if has_unscheduled else "not-replaced"


def _is_in_other_zone(pending: PendingMove, snapshot: DeschedulerSnapshot) -> bool:
    """Whether the replacement is in another zone than the move's old node; also true if a node is gone."""
    location_index, node = snapshot.network.location_index, pending.move.node
    return node not in location_index or location_index[node] != location_index.get(pending.replacement_node)


def _usage_percents(name: str, snapshot: DeschedulerSnapshot) -> Mapping[str, float]:
    """A node's usage in percent of allocatable, without unknown resources; empty if the node is gone."""
    node = snapshot.nodes.get(name)
    return to_percents(snapshot.usage.by_node.get(name, {}), node.allocatable) if node is not None else {}


def _is_relieved(pending: PendingMove, snapshot: DeschedulerSnapshot) -> bool:
    """Whether each exceeded resource of the old node is within its threshold now, or fell by half of what the pod used."""
    percents = _usage_percents(pending.move.node, snapshot)
    return all(
        # A deleted node does not count against the move.
        resource not in percents
        or percents[resource] <= pending.exceeded_thresholds.get(resource, 100.0)
        or percents[resource] <= before - pending.expected_relief_percent.get(resource, 0.0) / 2
        for resource, before in pending.usage_percent_before.items()
    )


def _is_better_placed(pending: PendingMove, snapshot: DeschedulerSnapshot) -> bool:
    """Whether the replacement has a lower network cost, or violates fewer dependencies at the same cost; True if its cost is unknown."""
    pod, location_index = snapshot.pods.by_key.get(pending.replacement_pod), snapshot.network.location_index
    if pod is None or pod.node not in location_index:
        return True
    score_table, move = snapshot.score_table_of(pod), pending.move
    score = score_table.node_score(pod.node, location_index[pod.node])
    is_better = (score.cost, score.violated) < (move.cost_before, move.violated_before)
    return bool(score_table.neutral_reason) or is_better
