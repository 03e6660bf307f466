"""What became of each move: where the replacement landed, and whether the node cooled or the cost fell.

A move that did not help is not repeated soon: its workload rests, for twice as long each time, and that is remembered across
restarts. This is what ends the loop of evict, reschedule, evict again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from controller.descheduler.amounts import percents
from controller.descheduler.config import LimitsConfig
from controller.descheduler.memory import Followed, Memory, Outcome, Rest, forget_old, put_to_rest, take_back
from controller.descheduler.objects import PodInfo
from controller.descheduler.snapshot import Snapshot
from controller.resources import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.scheduler.state import DeletedNodeError

FAILED: frozenset[Outcome] = frozenset(("returned", "not-cooled", "cost-not-fallen", "lost"))


class Ended(NamedTuple):
    """A move whose end is known.

    Attributes:
        rest_s: how long its workload rests now, seconds; 0 when the move helped.
    """

    move: Followed
    outcome: Outcome
    rest_s: float


def follow(snapshot: Snapshot, memory: Memory, limits: LimitsConfig, now: float) -> tuple[Memory, list[Ended]]:
    """Look at every move that is followed.

    Returns:
        The memory after this look, and the moves that ended with it.
    """
    claimed = {move.landed_uid for move in memory.follows if move.landed_uid}
    kept: list[Followed] = []
    ends: list[tuple[Followed, Outcome]] = []
    for move in sorted(memory.follows, key=lambda move: move.at_s):
        move = _land(move, snapshot, claimed)
        outcome = _outcome(move, snapshot, limits, now)
        if outcome is None:
            kept.append(move)
        else:
            ends.append((move, outcome))
    if tuple(kept) != memory.follows:
        memory = msgspec.structs.replace(memory, follows=tuple(kept))
    ended = []
    for move, outcome in ends:
        memory, rest_s = _conclude(memory, move, outcome, limits, now)
        ended.append(Ended(move, outcome, rest_s))
    return forget_old(memory, limits.workload_backoff_s, limits.longest_backoff_s, now), ended


def _land(move: Followed, snapshot: Snapshot, claimed: set[str]) -> Followed:
    """The move with its replacement, if one is bound that no other move has claimed."""
    if move.landed:
        return move
    found = _replacement(move, snapshot.pods.of_workload(move.workload).values(), claimed)
    if found is None:
        return move
    claimed.add(found.uid)
    return msgspec.structs.replace(
        move, landed=found.node, landed_pod=found.key, landed_uid=found.uid, landed_s=max(found.created_s, move.at_s)
    )


def _replacement(move: Followed, pods: Iterable[PodInfo], claimed: set[str]) -> PodInfo | None:
    # The API server's times are whole seconds.
    young = [
        pod
        for pod in pods
        if pod.node and not pod.going and pod.uid not in claimed and pod.created_s >= math.floor(move.at_s)
    ]
    young = [pod for pod in young if pod.uid != move.uid]
    return min(young, key=lambda pod: (pod.created_s, pod.key), default=None)


def _outcome(move: Followed, snapshot: Snapshot, limits: LimitsConfig, now: float) -> Outcome | None:
    if not move.landed:
        return _outcome_before_landing(move, snapshot, limits, now)
    if move.landed == move.node:
        return "returned"
    if now - move.landed_s < limits.judge_s:
        return None
    if move.strategy == "NetworkMisplacement":
        cost = _cost_of(move, snapshot)
        return "cost-not-fallen" if cost is not None and cost >= move.cost_before else "helped"
    return "helped" if _cooled(move, snapshot) else "not-cooled"


def _outcome_before_landing(move: Followed, snapshot: Snapshot, limits: LimitsConfig, now: float) -> Outcome | None:
    pod = snapshot.pods.by_key.get(move.pod)
    if pod is not None and pod.uid == move.uid:
        # An eviction whose answer was lost, or that we had no time to send. A pod may take its time to terminate.
        return "not-evicted" if not pod.going and now - move.at_s > limits.settle_s else None
    if "/Pod/" in move.workload:  # bare: nobody makes it anew, so there is nothing to wait for
        return "helped"
    return "lost" if now - move.at_s > limits.lost_s else None


def _cooled(move: Followed, snapshot: Snapshot) -> bool:
    """Whether every resource that was exceeded is within its threshold, or fell by half of what the pod used."""
    node = snapshot.nodes.get(move.node)
    share: Mapping[str, float] = {}
    if node is not None:
        share = percents(snapshot.usage.nodes.get(move.node, {}), node.allocatable)
    return all(
        # A node whose usage nobody knows any more cannot be held against the pod.
        resource not in share
        or share[resource] <= move.high.get(resource, 100.0)
        or share[resource] <= before - move.relief.get(resource, 0.0) / 2
        for resource, before in move.share_before.items()
    )


def _cost_of(move: Followed, snapshot: Snapshot) -> int | None:
    """Network cost of the replacement where it is; None when it cannot be told."""
    pod = snapshot.pods.by_key.get(move.landed_pod)
    network = snapshot.network
    if pod is None or network is None or pod.node not in network.place_of:
        return None
    try:
        weighing = network.weigh(pod.namespace, pod.labels.get(APPGROUP_LABEL, ""), pod.labels.get(WORKLOAD_LABEL, ""))
    except DeletedNodeError:
        return None
    return None if weighing.neutral else weighing.tally(pod.node, network.place_of[pod.node]).cost


def _conclude(
    memory: Memory, move: Followed, outcome: Outcome, limits: LimitsConfig, now: float
) -> tuple[Memory, float]:
    if outcome == "not-evicted":
        return take_back(memory, move), 0.0
    if outcome not in FAILED:
        rests = {name: rest for name, rest in memory.rests.items() if name != move.workload}
        return msgspec.structs.replace(memory, rests=rests), 0.0
    before = memory.rests.get(move.workload)
    failures = (before.failures if before else 0) + 1
    # The exponent is bounded, because 2.0 ** 1100 overflows.
    rest_s = min(limits.longest_backoff_s, limits.failure_backoff_s * 2.0 ** min(failures - 1, 32))
    return put_to_rest(memory, move.workload, Rest(now + rest_s, failures, outcome)), rest_s
