"""Evaluates earlier moves: where the replacement runs, and whether the node cooled or the cost fell.

A workload whose move did not help backs off, for twice as long each time, and that is remembered across restarts. This is what
ends the loop of evict, reschedule, evict again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from controller.cluster.pod_info import PodInfo
from controller.descheduler.config import LimitsConfig
from controller.descheduler.history import (
    BackOff,
    History,
    MoveResult,
    Outcome,
    PendingMove,
    add_result,
    back_off,
    forget_old,
    remove_move,
    set_backoff,
    short_uid,
)
from controller.descheduler.snapshot import LoadSnapshot
from controller.descheduler.usage import above, percents

REPLICA_BACKOFF_S = 12 * 3600.0
"""From the evaluation of its move; so none is evicted more than twice a day."""

INEFFECTIVE: frozenset[Outcome] = frozenset(
    ("returned", "node-still-hot", "target-overloaded", "cost-not-fallen", "not-running", "lost")
)


class EndedMove(NamedTuple):
    """A move whose outcome is known.

    Attributes:
        backoff_s: for how long its workload backs off now, seconds; 0 when the move helped.
    """

    pending: PendingMove
    outcome: Outcome
    backoff_s: float


def follow_up(
    snapshot: LoadSnapshot, history: History, limits: LimitsConfig, now: float
) -> tuple[History, list[EndedMove]]:
    """Look at every pending move; the history after this look, and the moves that ended with it."""
    claimed = {pending.replacement_uid for pending in history.pending if pending.replacement_uid}
    kept: list[PendingMove] = []
    ends: list[tuple[PendingMove, Outcome]] = []
    for pending in sorted(history.pending, key=lambda pending: pending.at_s):
        pending = _find_replacement(pending, snapshot, claimed, now)
        outcome = _outcome(pending, snapshot, limits, now)
        if outcome is None:
            kept.append(pending)
        else:
            ends.append((pending, outcome))
    if tuple(kept) != history.pending:
        history = msgspec.structs.replace(history, pending=tuple(kept))
    ended = []
    backed_off: set[str] = set()
    for pending, outcome in ends:
        workload = pending.move.workload
        if outcome == "not-evicted":
            history = remove_move(history, pending)
        elif uid := _replacement_of(pending, snapshot, claimed):
            history = _back_off_replica(history, uid, outcome, now)
        if outcome == "lost" or (pending.replacement_node and outcome != "unknown"):
            history = add_result(history, MoveResult(now, pending.move.strategy, outcome == "helped"))
        # Several moves of one workload that end in one round are one lesson, not several.
        if outcome in INEFFECTIVE and workload not in backed_off:
            history = back_off(history, workload, outcome, limits.failure_backoff_s, now)
            backed_off.add(workload)
        elif outcome == "helped" and not history.backoff(workload, now):
            # A running back-off holds, regardless of earlier moves of the workload.
            backoffs = {key: found for key, found in history.backoffs.items() if key != workload}
            history = msgspec.structs.replace(history, backoffs=backoffs)
        # A back-off beyond MAX_BACKOFFS is dropped already.
        running = history.backoff(workload, now) if outcome in INEFFECTIVE else None
        ended.append(EndedMove(pending, outcome, running.until_s - now if running else 0.0))
    return forget_old(history, limits, now), ended


def _back_off_replica(history: History, uid: str, outcome: Outcome, now: float) -> History:
    """A replacement is not moved for a while, and for twice as long where its move did not help."""
    failures = int(outcome in INEFFECTIVE)
    until_s = now + REPLICA_BACKOFF_S * (1 + failures)
    reason = f"it is the replacement of a moved pod ({outcome})"
    return set_backoff(history, short_uid(uid), BackOff(until_s, failures, reason))


def _replacement_of(pending: PendingMove, snapshot: LoadSnapshot, claimed: set[str]) -> str:
    """Uid of the replacement; of one that waits for a node yet, where none is bound; empty where there is none."""
    if pending.replacement_uid:
        return pending.replacement_uid
    waiting = min(_new_pods(pending, snapshot, claimed), key=lambda pod: pod.created_s, default=None)
    if waiting is None:
        return ""
    claimed.add(waiting.uid)
    return waiting.uid


def _find_replacement(pending: PendingMove, snapshot: LoadSnapshot, claimed: set[str], now: float) -> PendingMove:
    """The move with its replacement, if one is bound that no other move has claimed.

    Where the replacement was replaced before its move was evaluated, its successor counts: otherwise it might be moved as one
    that were not moved yet.
    """
    if pending.replacement_node and not _is_replaced(pending, snapshot):
        return pending
    node, target = pending.move.node, pending.move.target
    bound = [pod for pod in _new_pods(pending, snapshot, claimed) if pod.node]
    # Of several new pods, which a scale-out at the same time may have made, the one that went as planned, or at least away.
    found = min(bound, key=lambda p: (p.node != target, p.node == node, p.created_s, p.key), default=None)
    if found is None:
        return pending
    claimed.add(found.uid)
    replacement_bound_s = min(now, max(found.created_s, pending.at_s))
    return msgspec.structs.replace(
        pending,
        replacement_node=found.node,
        replacement_pod=found.key,
        replacement_uid=found.uid,
        replacement_bound_s=replacement_bound_s,
    )


def _is_replaced(pending: PendingMove, snapshot: LoadSnapshot) -> bool:
    """Whether the replacement has gone itself."""
    pod = snapshot.pods.by_key.get(pending.replacement_pod)
    return pod is None or not pod.is_active or pod.uid != pending.replacement_uid


def _new_pods(pending: PendingMove, snapshot: LoadSnapshot, claimed: set[str]) -> list[PodInfo]:
    """Pods of the workload that were not there when the move was made: told by uids, since clocks of machines differ."""
    pods = snapshot.pods.where("workload", pending.move.workload).values()
    known = {short_uid(pending.move.uid), *pending.other_pod_marks}
    return [p for p in pods if p.is_active and p.uid not in claimed and short_uid(p.uid) not in known]


def _outcome(pending: PendingMove, snapshot: LoadSnapshot, limits: LimitsConfig, now: float) -> Outcome | None:
    move = pending.move
    if not pending.replacement_node:
        return _outcome_without_replacement(pending, snapshot, limits, now)
    age_s = now - pending.replacement_bound_s
    if pending.replacement_node == move.node or age_s < limits.evaluate_after_s:
        return "returned" if pending.replacement_node == move.node else None
    pod = snapshot.pods.by_key.get(pending.replacement_pod)
    if pod is not None and pod.uid == pending.replacement_uid and not pod.ready:
        return "not-running"
    if move.strategy == "ZoneSurvival":
        return "helped" if _left_zone(pending, snapshot) else "returned"
    if move.strategy == "LowNodeLoad":
        waits = age_s < limits.evaluate_after_s + limits.start_timeout_s
        return _outcome_of_load(pending, snapshot, waits=waits)
    cost = _cost_of(pending, snapshot)
    return "cost-not-fallen" if cost is not None and cost >= move.cost_before else "helped"


def _outcome_of_load(pending: PendingMove, snapshot: LoadSnapshot, *, waits: bool) -> Outcome | None:
    if _is_usage_missing(pending, snapshot):
        # What is not seen is no success: it would end a back-off, and make up for moves that came to nothing.
        return None if waits else "unknown"
    if not _has_cooled(pending, snapshot):
        return "node-still-hot"
    return (
        "target-overloaded"
        if above(_share_of(pending.replacement_node, snapshot), pending.exceeded_thresholds)
        else "helped"
    )


def _outcome_without_replacement(
    pending: PendingMove, snapshot: LoadSnapshot, limits: LimitsConfig, now: float
) -> Outcome | None:
    pod, age_s = snapshot.pods.by_key.get(pending.move.pod), now - pending.at_s
    if pod is not None and pod.uid == pending.move.uid:
        # An eviction whose answer was lost, or that we had no time to send. A pod may take its time to terminate.
        return "not-evicted" if pod.is_active and age_s > limits.usage_lag_s else None
    if "/Pod/" in pending.move.workload:  # A bare pod has no replacement to wait for.
        return "helped"
    if age_s <= limits.start_timeout_s:
        return None
    waits = any(not pod.node for pod in _new_pods(pending, snapshot, set()))
    return "lost" if waits else "not-replaced"


def _is_usage_missing(pending: PendingMove, snapshot: LoadSnapshot) -> bool:
    """Whether the load of a node that is still there is not known."""
    used = snapshot.usage.nodes
    present = (name for name in (pending.move.node, pending.replacement_node) if name in snapshot.nodes)
    return any(resource not in used.get(name, {}) for name in present for resource in pending.usage_percent_before)


def _left_zone(pending: PendingMove, snapshot: LoadSnapshot) -> bool:
    """Whether the replacement is in another zone; also true if a node is gone."""
    index, node = snapshot.network.location_index, pending.move.node
    return node not in index or index[node] != index.get(pending.replacement_node)


def _share_of(name: str, snapshot: LoadSnapshot) -> Mapping[str, float]:
    """Percent of allocatable in use on a node, as far as it is known."""
    node = snapshot.nodes.get(name)
    return percents(snapshot.usage.nodes.get(name, {}), node.allocatable) if node is not None else {}


def _has_cooled(pending: PendingMove, snapshot: LoadSnapshot) -> bool:
    """Whether every resource that was exceeded is within its threshold, or fell by half of what the pod used."""
    share = _share_of(pending.move.node, snapshot)
    return all(
        # If a node's usage is no longer known, the move is not counted against the pod.
        resource not in share
        or share[resource] <= pending.exceeded_thresholds.get(resource, 100.0)
        or share[resource] <= before - pending.expected_relief_percent.get(resource, 0.0) / 2
        for resource, before in pending.usage_percent_before.items()
    )


def _cost_of(pending: PendingMove, snapshot: LoadSnapshot) -> int | None:
    """Network cost of the replacement where it is; None if it is unknown."""
    pod, location_index = snapshot.pods.by_key.get(pending.replacement_pod), snapshot.network.location_index
    if pod is None or pod.node not in location_index:
        return None
    score_table = snapshot.score_table_of(pod)
    return None if score_table.neutral else score_table.node_score(pod.node, location_index[pod.node]).cost
