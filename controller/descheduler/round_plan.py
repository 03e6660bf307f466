"""The decision of a round: moves, skipped pods, and nodes that cannot be relieved."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.descheduler.config import Strategy

MAX_SKIPS = 2000


class Answer(msgspec.Struct, frozen=True, rename="camel"):
    """Base of what `kubectl netaware deschedule` prints."""


class Move(Answer, frozen=True):
    """A pod that should go.

    Attributes:
        pod: ``namespace/name``.
        reason: as users know it, with the values at the moment of this move.
        target: where it is expected to land; empty when nodeFit is off.
        used: amounts that leave with it: millicores, bytes, bits per second.
        node_before, node_after: percent of the node's allocatable by resource, around this move.
        cost_before, cost_after: network cost at the node and at the target, -1 for LowNodeLoad.
    """

    pod: str
    uid: str
    workload: str
    node: str
    target: str
    strategy: Strategy
    reason: str
    used: Mapping[str, float] = {}
    node_before: Mapping[str, float] = {}
    node_after: Mapping[str, float] = {}
    cost_before: int = -1
    cost_after: int = -1
    group: str = ""


class Skip(Answer, frozen=True):
    """A pod that should go and stays.

    Attributes:
        condition: name of the first condition that does not hold.
        why: for people.
    """

    pod: str
    node: str
    condition: str
    why: str


class NodeState(Answer, frozen=True):
    """The classification of a node.

    Attributes:
        kind: over, under, normal or unknown.
        share: percent of allocatable by resource.
        stuck: hot for long enough, and this round could not plan all that is needed.
        why: what keeps a hot node from being relieved now, or why its load is not known; empty otherwise.
    """

    node: str
    pool: str
    kind: str
    share: Mapping[str, float]
    low: Mapping[str, float]
    high: Mapping[str, float]
    stuck: bool = False
    why: str = ""


class RoundPlan(Answer, frozen=True):
    """The answer of one round.

    Attributes:
        notes: why the round or a part of it stopped.
        skipped: how many pods stay, by condition; `skips` is cut at `MAX_SKIPS`.
    """

    moves: tuple[Move, ...] = ()
    skips: tuple[Skip, ...] = ()
    nodes: tuple[NodeState, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: Mapping[str, int] = {}
