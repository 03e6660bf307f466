"""What became of each move: where the replacement landed, and whether the node cooled or the cost fell.

A move that did not help is not repeated soon: its workload rests, for twice as long each time, and that is remembered across
restarts. This is what ends the loop of evict, reschedule, evict again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from controller.cluster.pod_info import PodInfo
from controller.descheduler.config import LimitsConfig
from controller.descheduler.memory import (
    Followed,
    Heir,
    Memory,
    Outcome,
    Rest,
    Tried,
    add_heir,
    add_tried,
    forget_old,
    mark_of,
    put_to_rest,
    take_back,
)
from controller.descheduler.snapshot import LoadSnapshot
from controller.descheduler.usage import above, percents

FAILED: frozenset[Outcome] = frozenset(
    ("returned", "not-cooled", "moved-heat", "cost-not-fallen", "not-running", "lost")
)
NEUTRAL: frozenset[Outcome] = frozenset(("not-replaced", "not-known"))
"""Says nothing about the move: whoever made the pod wants fewer of them now, or nobody knows the load of its nodes."""


class Ended(NamedTuple):
    """A move whose end is known.

    Attributes:
        rest_s: how long its workload rests now, seconds; 0 when the move helped.
        came_true: whether the replacement landed where it was expected; None when there is nothing to judge.
    """

    move: Followed
    outcome: Outcome
    rest_s: float
    came_true: bool | None = None


def follow(snapshot: LoadSnapshot, memory: Memory, limits: LimitsConfig, now: float) -> tuple[Memory, list[Ended]]:
    """Look at every move that is followed.

    Returns:
        The memory after this look, and the moves that ended with it.
    """
    claimed = {move.landed_uid for move in memory.follows if move.landed_uid}
    kept: list[Followed] = []
    ends: list[tuple[Followed, Outcome]] = []
    for move in sorted(memory.follows, key=lambda move: move.at_s):
        move = _land(move, snapshot, claimed, now)
        outcome = _outcome(move, snapshot, limits, now)
        if outcome is None:
            kept.append(move)
        else:
            ends.append((move, outcome))
    if tuple(kept) != memory.follows:
        memory = msgspec.structs.replace(memory, follows=tuple(kept))
    ended = []
    rested: dict[str, float] = {}
    for move, outcome in ends:
        came_true = _came_true(move, outcome)
        if came_true is not None:
            memory = add_tried(memory, Tried(now, move.pool, move.workload, came_true, outcome == "helped"))
        if outcome != "not-evicted" and (uid := _heir_of(move, snapshot, claimed)):
            memory = add_heir(memory, mark_of(uid), Heir(now, vain=outcome in FAILED))
        if outcome in FAILED and move.workload in rested:
            # Several moves of one workload that end in one round are one lesson, not several.
            ended.append(Ended(move, outcome, rested[move.workload], came_true))
            continue
        memory, rest_s = _conclude(memory, move, outcome, limits, now)
        if outcome in FAILED:
            rested[move.workload] = rest_s
        ended.append(Ended(move, outcome, rest_s, came_true))
    return forget_old(memory, limits, now), ended


def _heir_of(move: Followed, snapshot: LoadSnapshot, claimed: set[str]) -> str:
    """Uid of the replacement; of one that waits for a node yet, where none is bound; empty where there is none."""
    if move.landed_uid:
        return move.landed_uid
    waiting = min(_young(move, snapshot, claimed), key=lambda pod: pod.created_s, default=None)
    if waiting is None:
        return ""
    claimed.add(waiting.uid)
    return waiting.uid


def _came_true(move: Followed, outcome: Outcome) -> bool | None:
    """Whether it landed where it was expected; None for what says nothing about the forecast."""
    if not move.landed:
        return False if outcome == "lost" else None
    if outcome == "not-known":
        return None
    return mark_of(move.landed) in move.expected if move.expected else move.landed != move.node


def _land(move: Followed, snapshot: LoadSnapshot, claimed: set[str], now: float) -> Followed:
    """The move with its replacement, if one is bound that no other move has claimed.

    Where the replacement was replaced before it was judged, its successor is judged: otherwise it might be moved as one whom
    nobody has moved yet.
    """
    if move.landed and not _is_replaced(move, snapshot):
        return move
    young = [pod for pod in _young(move, snapshot, claimed) if pod.node]
    # Of several new pods, which a scale-out at the same time may have made, the one that went as planned, or at least away.
    found = min(young, key=lambda p: (p.node != move.target, p.node == move.node, p.created_s, p.key), default=None)
    if found is None:
        return move
    claimed.add(found.uid)
    landed_s = min(now, max(found.created_s, move.at_s))
    return msgspec.structs.replace(
        move, landed=found.node, landed_pod=found.key, landed_uid=found.uid, landed_s=landed_s
    )


def _is_replaced(move: Followed, snapshot: LoadSnapshot) -> bool:
    """Whether the replacement has gone itself."""
    pod = snapshot.pods.by_key.get(move.landed_pod)
    return pod is None or pod.going or pod.uid != move.landed_uid


def _young(move: Followed, snapshot: LoadSnapshot, claimed: set[str]) -> list[PodInfo]:
    """Pods of the workload that were not there when the move was made: told by uids, since clocks of machines differ."""
    pods = snapshot.pods.of_workload(move.workload).values()
    known = {mark_of(move.uid), *move.known}
    return [p for p in pods if not p.going and p.uid not in claimed and mark_of(p.uid) not in known]


def _outcome(move: Followed, snapshot: LoadSnapshot, limits: LimitsConfig, now: float) -> Outcome | None:
    if not move.landed:
        return _outcome_before_landing(move, snapshot, limits, now)
    if move.landed == move.node or now - move.landed_s < limits.judge_s:
        return "returned" if move.landed == move.node else None
    pod = snapshot.pods.by_key.get(move.landed_pod)
    if pod is not None and pod.uid == move.landed_uid and not pod.ready:
        return "not-running"
    if move.strategy == "LowNodeLoad" and _is_blind(move, snapshot):
        # What is not seen is no success: it would end a rest, and make up for moves that came to nothing.
        return None if now - move.landed_s < limits.judge_s + limits.lost_s else "not-known"
    return _outcome_of_load(move, snapshot) if move.strategy == "LowNodeLoad" else _outcome_of_network(move, snapshot)


def _is_blind(move: Followed, snapshot: LoadSnapshot) -> bool:
    """Whether the load of a node that is still there is not known."""
    used = snapshot.usage.nodes
    there = (name for name in (move.node, move.landed) if name in snapshot.nodes)
    return any(resource not in used.get(name, {}) for name in there for resource in move.share_before)


def _outcome_of_network(move: Followed, snapshot: LoadSnapshot) -> Outcome:
    if move.strategy == "ZoneSurvival":
        return "helped" if _left_zone(move, snapshot) else "returned"
    cost = _cost_of(move, snapshot)
    return "cost-not-fallen" if cost is not None and cost >= move.cost_before else "helped"


def _left_zone(move: Followed, snapshot: LoadSnapshot) -> bool:
    """Whether the replacement is in another zone; of nodes that are gone nothing can be held against the move."""
    places = snapshot.network.place_of if snapshot.network is not None else {}
    return move.node not in places or places[move.node] != places.get(move.landed)


def _outcome_of_load(move: Followed, snapshot: LoadSnapshot) -> Outcome:
    if not _cooled(move, snapshot):
        return "not-cooled"
    return "moved-heat" if _is_hot(move.landed, move, snapshot) else "helped"


def _outcome_before_landing(move: Followed, snapshot: LoadSnapshot, limits: LimitsConfig, now: float) -> Outcome | None:
    pod = snapshot.pods.by_key.get(move.pod)
    if pod is not None and pod.uid == move.uid:
        # An eviction whose answer was lost, or that we had no time to send. A pod may take its time to terminate.
        return "not-evicted" if not pod.going and now - move.at_s > limits.settle_s else None
    if "/Pod/" in move.workload:  # bare: nobody makes it anew, so there is nothing to wait for
        return "helped"
    if now - move.at_s <= limits.lost_s:
        return None
    waits = any(not pod.node for pod in _young(move, snapshot, set()))
    return "lost" if waits else "not-replaced"


def _is_hot(name: str, move: Followed, snapshot: LoadSnapshot) -> bool:
    """Whether a node is above a threshold that the move was made for: heat that was only carried elsewhere."""
    return bool(above(_share_of(name, snapshot), move.high))


def _share_of(name: str, snapshot: LoadSnapshot) -> Mapping[str, float]:
    """Percent of allocatable in use on a node, as far as it is known."""
    node = snapshot.nodes.get(name)
    return percents(snapshot.usage.nodes.get(name, {}), node.allocatable) if node is not None else {}


def _cooled(move: Followed, snapshot: LoadSnapshot) -> bool:
    """Whether every resource that was exceeded is within its threshold, or fell by half of what the pod used."""
    share = _share_of(move.node, snapshot)
    return all(
        # A node whose usage nobody knows any more cannot be held against the pod.
        resource not in share
        or share[resource] <= move.high.get(resource, 100.0)
        or share[resource] <= before - move.relief.get(resource, 0.0) / 2
        for resource, before in move.share_before.items()
    )


def _cost_of(move: Followed, snapshot: LoadSnapshot) -> int | None:
    """Network cost of the replacement where it is; None when it cannot be told."""
    pod = snapshot.pods.by_key.get(move.landed_pod)
    network = snapshot.network
    if pod is None or network is None or pod.node not in network.place_of:
        return None
    score_table = snapshot.score_table_of(pod)
    return (
        None
        if score_table is None or score_table.neutral
        else score_table.place_score(pod.node, network.place_of[pod.node]).cost
    )


def rest_refused(memory: Memory, workload: str, limits: LimitsConfig, now: float) -> Memory:
    """Leave a workload alone whose pod's eviction was refused, longer each time, so that others have their turn."""
    return _rest_longer(memory, workload, "refused", limits, now)[0]


def _rest_longer(memory: Memory, workload: str, why: Outcome, limits: LimitsConfig, now: float) -> tuple[Memory, float]:
    before = memory.rests.get(workload)
    failures = (before.failures if before else 0) + 1
    # The exponent is bounded, because 2.0 ** 1100 overflows.
    rest_s = min(limits.longest_backoff_s, limits.failure_backoff_s * 2.0 ** min(failures - 1, 32))
    return put_to_rest(memory, workload, Rest(now + rest_s, failures, why)), rest_s


def _conclude(
    memory: Memory, move: Followed, outcome: Outcome, limits: LimitsConfig, now: float
) -> tuple[Memory, float]:
    if outcome == "not-evicted":
        return take_back(memory, move), 0.0
    before = memory.rests.get(move.workload)
    if outcome not in FAILED:
        if outcome in NEUTRAL or (before is not None and before.until_s > now):
            # A rest that was imposed is served, whatever an earlier move of the same workload came to.
            return memory, 0.0
        rests = {name: rest for name, rest in memory.rests.items() if name != move.workload}
        return msgspec.structs.replace(memory, rests=rests), 0.0
    return _rest_longer(memory, move.workload, outcome, limits, now)
