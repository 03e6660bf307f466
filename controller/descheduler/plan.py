"""The plan of one round, in the form in which `kubectl netaware deschedule -o json` prints it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.descheduler.config import StrategyName
from controller.descheduler.node_load import LoadClass

MAX_SKIPS = 2000
"""Skipped pods that a plan lists; all are counted."""


class DescheduleOutput(msgspec.Struct, frozen=True, rename="camel"):
    """Base of the structs that `kubectl netaware deschedule -o json` prints."""


class Move(DescheduleOutput, frozen=True):
    """A pod to evict, and where its replacement should run.

    Attributes:
        pod: ``namespace/name``.
        workload: ``namespace/Kind/name``; the kind of a bare pod is Pod.
        node, target: names of its node and of the node for the replacement; empty if nodeFit is off and no plan placed the pod.
        reason: text for users, in koord-descheduler's wording.
        usage: the pod's usage by resource: millicores, bytes, bits per second. Not for LowNodeLoad: its requests where that is unknown.
        node_before, node_after: the node's usage before and after this move, percent of allocatable by resource; both count the
            round's moves before this one. Only for LowNodeLoad.
        cost_before, cost_after: network cost on the node and on the target; -1 for LowNodeLoad.
        violated_before: number of dependencies of the pod that its node violates; 0 for LowNodeLoad.
        group: key of the AppGroup that the pod's label names, even if it does not exist; empty without the label.
    """

    pod: str
    uid: str
    workload: str
    node: str
    target: str
    strategy: StrategyName
    reason: str
    usage: Mapping[str, float] = {}
    node_before: Mapping[str, float] = {}
    node_after: Mapping[str, float] = {}
    cost_before: int = -1
    cost_after: int = -1
    violated_before: int = 0
    group: str = ""


class Skip(DescheduleOutput, frozen=True):
    """A pod (``namespace/name``) that should move, the first condition that it fails, and the reason, for users."""

    pod: str
    node: str
    condition: str
    reason: str


class NodeState(DescheduleOutput, frozen=True):
    """The load of a node.

    Attributes:
        usage_percent, low_thresholds, high_thresholds: percent of allocatable by resource.
        is_stuck: the conditions allow too few moves to bring the node within its thresholds; not so while moves wait for usage.
        reason: why the node is not relieved although it is overutilized, or why its load is unknown; empty otherwise.
    """

    node: str
    pool: str
    kind: LoadClass
    usage_percent: Mapping[str, float]
    low_thresholds: Mapping[str, float]
    high_thresholds: Mapping[str, float]
    is_stuck: bool = False
    reason: str = ""


class DeschedulePlan(DescheduleOutput, frozen=True):
    """The moves of one round, and why other pods stay.

    Attributes:
        skips: the first `MAX_SKIPS` skipped pods.
        nodes: all nodes of LowNodeLoad's pools.
        notes: settings of the policy without effect, and why the whole round, or a strategy, moves no more pods.
        skip_counts: number of all skipped pods by condition.
    """

    moves: tuple[Move, ...] = ()
    skips: tuple[Skip, ...] = ()
    nodes: tuple[NodeState, ...] = ()
    notes: tuple[str, ...] = ()
    skip_counts: Mapping[str, int] = {}
