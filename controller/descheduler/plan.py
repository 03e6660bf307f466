"""The plan of a round, which `kubectl netaware deschedule -o json` prints too."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.descheduler.config import StrategyName
from controller.descheduler.node_load import LoadClass

MAX_SKIPS = 2000


class DescheduleOutput(msgspec.Struct, frozen=True, rename="camel"):
    """Base of what `kubectl netaware deschedule` prints."""


class Move(DescheduleOutput, frozen=True):
    """A pod to evict, and where its replacement should run.

    Attributes:
        pod: ``namespace/name``.
        workload: ``namespace/Kind/name``; of the kind Pod for a bare pod.
        node, target: names of its node and of the node for the replacement; the target is empty if nodeFit is off.
        reason: text for users, in koord-descheduler's wording.
        used: the pod's usage by resource: millicores, bytes, bits per second.
        node_before, node_after: the node's usage before and after this move, percent of allocatable by resource. Earlier moves of
            the round are counted.
        cost_before, cost_after: network cost on the node and on the target; -1 for LowNodeLoad.
        group: key of the pod's AppGroup; empty without one.
    """

    pod: str
    uid: str
    workload: str
    node: str
    target: str
    strategy: StrategyName
    reason: str
    used: Mapping[str, float] = {}
    node_before: Mapping[str, float] = {}
    node_after: Mapping[str, float] = {}
    cost_before: int = -1
    cost_after: int = -1
    group: str = ""


class Skip(DescheduleOutput, frozen=True):
    """A pod that has a reason to move, but does not meet a condition.

    Attributes:
        pod: ``namespace/name``.
        condition: name of the first condition that it does not meet.
        why: text for users.
    """

    pod: str
    node: str
    condition: str
    why: str


class NodeState(DescheduleOutput, frozen=True):
    """The load of a node.

    Attributes:
        usage_percent: percent of allocatable by resource.
        low, high: thresholds, percent by resource.
        stuck: hot for long enough, but still above a threshold after the planned moves.
        why: why an overutilized node is not relieved, or its load is not known; empty otherwise.
    """

    node: str
    pool: str
    kind: LoadClass
    usage_percent: Mapping[str, float]
    low: Mapping[str, float]
    high: Mapping[str, float]
    stuck: bool = False
    why: str = ""


class DeschedulePlan(DescheduleOutput, frozen=True):
    """The result of one round.

    Attributes:
        skips: at most `MAX_SKIPS`.
        notes: why the round or a part of it stopped.
        skip_counts: number of all skipped pods by condition.
    """

    moves: tuple[Move, ...] = ()
    skips: tuple[Skip, ...] = ()
    nodes: tuple[NodeState, ...] = ()
    notes: tuple[str, ...] = ()
    skip_counts: Mapping[str, int] = {}
