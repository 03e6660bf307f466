"""Builds nodes and probe plans for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from netperf.pairs import PlanOptions, ProbeNode, ProbePlan, plan_probes

NOW_S = 1_700_000_000.0


def make_nodes(sizes: Iterable[int]) -> list[ProbeNode]:
    """The nodes of zones with these numbers of nodes."""
    return [
        ProbeNode(name=f"n{z}-{i}", address=f"10.{z // 200}.{z % 200}.{i + 1}", zone=f"z{z:03}", region=f"r{z % 3}")
        for z, size in enumerate(sizes)
        for i in range(size)
    ]


def make_plan(sizes: Iterable[int], **options: Any) -> ProbePlan:
    """The first plan of zones with these numbers of nodes."""
    return plan_probes(make_nodes(sizes), PlanOptions(**options), {}, NOW_S)
