"""The decision of a round: moves, skipped pods, and nodes that cannot be relieved."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.descheduler.config import Strategy
from controller.descheduler.node_load import Class

MAX_SKIPS = 2000


class DescheduleOutput(msgspec.Struct, frozen=True, rename="camel"):
    """Base of what `kubectl netaware deschedule` prints."""


class Move(DescheduleOutput, frozen=True):
    """A pod that should go.

    Attributes:
        pod: ``namespace/name``.
        reason: in koord-descheduler's wording, with usage after the moves before this one.
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


class Skip(DescheduleOutput, frozen=True):
    """A pod that qualifies for a move but fails a condition.

    Attributes:
        condition: name of the first condition that does not hold.
        why: for people.
    """

    pod: str
    node: str
    condition: str
    why: str


class NodeState(DescheduleOutput, frozen=True):
    """The classification of a node.

    Attributes:
        share: percent of allocatable by resource.
        stuck: hot for long enough, and this round could not plan all that is needed.
        why: what keeps a hot node from being relieved now, or why its load is not known; empty otherwise.
    """

    node: str
    pool: str
    kind: Class
    share: Mapping[str, float]
    low: Mapping[str, float]
    high: Mapping[str, float]
    stuck: bool = False
    why: str = ""


class RoundPlan(DescheduleOutput, frozen=True):
    """The result of one round.

    Attributes:
        notes: why the round or a part of it stopped.
        skip_counts: how many pods stay, by condition; `skips` is cut at `MAX_SKIPS`.
    """

    moves: tuple[Move, ...] = ()
    skips: tuple[Skip, ...] = ()
    nodes: tuple[NodeState, ...] = ()
    notes: tuple[str, ...] = ()
    skip_counts: Mapping[str, int] = {}
