"""What outlives a round, and a restart: moves being followed, workloads at rest, what was spent of the hourly budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

Strategy = Literal["LowNodeLoad", "NetworkMisplacement"]
Outcome = Literal["helped", "returned", "not-cooled", "cost-not-fallen", "lost", "not-evicted"]
HOUR_S = 3600.0
MOST_RESTS = 2000
"""Workloads at rest that are remembered; about 150 bytes each in a ConfigMap of at most 1 MiB."""


class Remembered(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of what is written into the ConfigMap."""


class Followed(Remembered, frozen=True):
    """A move whose end is not known yet.

    Attributes:
        pod, uid: who was evicted.
        node: from where.
        target: where the plan expected it to go; empty when it had no expectation.
        at_s: when, unix seconds.
        used: amounts that leave the node.
        share_before: percent of the exceeded resources on the node, before any move of that round.
        relief: percent points of them that this move was to take off.
        high: the thresholds that were exceeded.
        cost_before: network cost at the node, for NetworkMisplacement.
        weight: what it costs of the hourly budget.
        landed, landed_pod, landed_uid, landed_s: the replacement, once it is bound.
    """

    pod: str
    uid: str
    workload: str
    node: str
    at_s: float
    strategy: Strategy = "LowNodeLoad"
    target: str = ""
    group: str = ""
    used: dict[str, float] = {}
    share_before: dict[str, float] = {}
    relief: dict[str, float] = {}
    high: dict[str, float] = {}
    cost_before: int = 0
    weight: int = 1
    landed: str = ""
    landed_pod: str = ""
    landed_uid: str = ""
    landed_s: float = 0.0


class Rest(Remembered, frozen=True):
    """A workload that is left alone.

    Attributes:
        until_s: unix seconds.
        failures: moves in a row that did not help.
        why: outcome of the newest one.
    """

    until_s: float
    failures: int = 0
    why: str = ""


class Spent(Remembered, frozen=True):
    """An eviction that counts against limits over time."""

    at_s: float
    workload: str
    weight: int = 1


class Memory(Remembered, frozen=True):
    """Everything that is remembered.

    Attributes:
        hold_until_s: the API server asked for patience until then.
    """

    follows: tuple[Followed, ...] = ()
    rests: dict[str, Rest] = {}
    spent: tuple[Spent, ...] = ()
    hold_until_s: float = 0.0

    def resting(self, workload: str, now: float) -> Rest | None:
        """The workload's rest, if it is not over."""
        rest = self.rests.get(workload)
        return rest if rest is not None and rest.until_s > now else None

    def spent_since(self, start_s: float) -> int:
        """Weight of all evictions after ``start_s``."""
        return sum(entry.weight for entry in self.spent if entry.at_s > start_s)

    def moves_since(self, workload: str, start_s: float) -> int:
        """Evictions of one workload after ``start_s``."""
        return sum(1 for entry in self.spent if entry.workload == workload and entry.at_s > start_s)


def add_moves(memory: Memory, moves: Iterable[Followed]) -> Memory:
    """Remember moves about to be made: follow them, and count them against the budgets."""
    moves = tuple(moves)
    spent = tuple(Spent(move.at_s, move.workload, move.weight) for move in moves)
    return msgspec.structs.replace(memory, follows=memory.follows + moves, spent=memory.spent + spent)


def take_back(memory: Memory, move: Followed) -> Memory:
    """Forget a move that was not made after all, and give its budget back."""
    spent = list(memory.spent)
    for i, entry in enumerate(spent):
        if entry.at_s == move.at_s and entry.workload == move.workload:
            del spent[i]
            break
    follows = tuple(known for known in memory.follows if known.uid != move.uid)
    return msgspec.structs.replace(memory, follows=follows, spent=tuple(spent))


def put_to_rest(memory: Memory, workload: str, rest: Rest) -> Memory:
    """Leave a workload alone for a while; of too many, those whose rest ends first are forgotten."""
    rests = {**memory.rests, workload: rest}
    if len(rests) > MOST_RESTS:
        latest = sorted(rests, key=lambda name: rests[name].until_s)[-MOST_RESTS:]
        rests = {name: rests[name] for name in latest}
    return msgspec.structs.replace(memory, rests=rests)


def forget_old(memory: Memory, keep_s: float, failure_memory_s: float, now: float) -> Memory:
    """Drop what no rule asks for any more.

    Args:
        memory: as it is.
        keep_s: how far back any limit looks, at least an hour.
        failure_memory_s: how long after the end of its rest a workload's failures still count.
        now: unix seconds.
    """
    spent = tuple(entry for entry in memory.spent if now - entry.at_s < max(keep_s, HOUR_S))
    rests: Mapping[str, Rest] = {
        name: rest
        for name, rest in memory.rests.items()
        if rest.until_s + (failure_memory_s if rest.failures else 0.0) > now
    }
    if len(spent) == len(memory.spent) and len(rests) == len(memory.rests):
        return memory
    return msgspec.structs.replace(memory, spent=spent, rests=dict(rests))
