"""Nodes and plans for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from netperf.pairs import PairPlan, PlanOptions, ProbeNode, plan_pairs

NOW_S = 1_700_000_000.0


def plan_of(zones: Iterable[tuple[str, str]], **options: Any) -> PairPlan:
    """The first plan of nodes, each with its zone."""
    nodes = [
        ProbeNode(name=node, address=f"10.0.0.{i + 1}", zone=zone, region="r") for i, (node, zone) in enumerate(zones)
    ]
    return plan_pairs(nodes, PlanOptions(**options), None, NOW_S)


def one_each(count: int) -> list[tuple[str, str]]:
    """Zones of one node."""
    return [(f"n{z}", f"z{z}") for z in range(count)]
