"""Encodes an overview for the browser: pairs of zones as columns, agents and bandwidth as totals.

100 zones have 9,900 pairs. Columns, one list per quantity in the order of the pairs, need a seventh of the bytes of objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec

from controller.diagnosis.cluster_views import AgentState, PairView
from controller.views.overview import Overview

COLUMNS: Mapping[str, Callable[[PairView], object]] = {
    "cost": lambda pair: pair.cost,
    "basis": lambda pair: pair.basis,
    "p50Us": lambda pair: _round_or_none(pair.p50_us),
    "p90Us": lambda pair: _round_or_none(pair.p90_us),
    "p99Us": lambda pair: _round_or_none(pair.p99_us),
    "jitterUs": lambda pair: _round_or_none(pair.jitter_us),
    "lossRatio": lambda pair: pair.loss_ratio,
    "measuredAt": lambda pair: _round_or_none(pair.measured_at),
    "qualityFlags": lambda pair: " ".join(pair.quality_flags),
    "prober": lambda pair: pair.prober,
    "originNode": lambda pair: pair.origin_node,
    "destinationNode": lambda pair: pair.destination_node,
}
"""Name of a column of the matrix -> its value for a pair: fields of `PairView`, with times rounded to whole microseconds and seconds."""


def encode_overview(overview: Overview) -> dict[str, Any]:
    """The page's data for an overview, without `read_at`, so that equal data have equal bytes and one ETag.

    Returns:
        ``network``: `NetworkView` without pairs; ``matrix``: `COLUMNS` over all ordered pairs, by origin and then by destination;
        ``agents``: their number by state; ``bandwidth``: totals; ``groups`` and ``findings``: as in the overview.
    """
    network = msgspec.to_builtins(msgspec.structs.replace(overview.network, pairs=()))
    del network["pairs"]
    nodes_with_capacity = overview.bandwidth.nodes_with_capacity
    agent_counts = Counter[str](agent.state for agent in overview.agents)
    return {
        "network": network,
        "matrix": {name: [value_of(pair) for pair in overview.network.pairs] for name, value_of in COLUMNS.items()},
        "agents": {state: agent_counts[state] for state in get_args(AgentState)},
        "groups": overview.groups,
        "bandwidth": {
            "totalNodes": len(overview.bandwidth.nodes),
            "nodesWithCapacity": len(nodes_with_capacity),
            "allocatableBps": sum(node.allocatable_bps or 0 for node in nodes_with_capacity),
            "allocatedBps": sum(node.allocated_bps for node in nodes_with_capacity),
        },
        "findings": overview.findings,
    }


def _round_or_none(value: float | None) -> int | None:
    return None if value is None else round(value)
