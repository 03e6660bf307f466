"""Encodes an overview for the browser: pairs as columns, agents and bandwidth as totals.

100 zones have 9,900 pairs. Columns, one list per quantity in the order of the zones, need a seventh of the bytes of objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from controller.diagnosis.cluster_views import PairView
from controller.views.group_views import Overview

COLUMNS: Mapping[str, Callable[[PairView], object]] = {
    "cost": lambda p: p.cost,
    "basis": lambda p: p.basis,
    "p50": lambda p: _rounded(p.p50_us),
    "p90": lambda p: _rounded(p.p90_us),
    "p99": lambda p: _rounded(p.p99_us),
    "at": lambda p: None if p.measured_at is None else round(p.measured_at, 1),
    "flags": lambda p: " ".join(p.quality_flags),
    "prober": lambda p: p.prober,
    "jitter": lambda p: _rounded(p.jitter_us),
    "loss": lambda p: p.loss_ratio,
    "nodes": lambda p: f"{p.origin_node} {p.destination_node}" if p.origin_node and p.destination_node else "",
}
"""Name of a column of the matrix -> its value for a pair; latencies in whole microseconds, times in unix seconds."""


def encode_overview(overview: Overview) -> dict[str, Any]:
    """The page's data for an overview, without the time. Pure.

    Returns:
        ``network``: `NetworkView` without pairs; ``matrix``: `COLUMNS` over all ordered pairs, by origin and then by destination;
        ``agents`` and ``bandwidth``: totals; ``groups`` and ``findings``: as in the overview.
    """
    network = msgspec.to_builtins(overview.network)
    network.pop("pairs")
    agents, nodes, pods = overview.agents, overview.bandwidth.nodes, overview.bandwidth.pods
    states = Counter[str](agent.state for agent in agents)
    return {
        "network": network,
        "matrix": {name: [value(pair) for pair in overview.network.pairs] for name, value in COLUMNS.items()},
        "agents": {"total": len(agents), "states": {state: states[state] for state in ("up", "down", "excluded")}},
        "groups": overview.groups,
        "bandwidth": {
            "totalNodes": len(nodes),
            "totalPods": len(pods),
            "known": sum(n.allocatable_bps is not None for n in nodes),
            "capacityBps": sum(n.allocatable_bps or 0 for n in nodes),
            "allocatedBps": sum(n.allocated_bps for n in nodes),
        },
        "findings": overview.findings,
    }


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
