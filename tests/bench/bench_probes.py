"""Counts probes of a round, and measures size and duration of probe plans, for 2 zones up to 100 zones of 100 nodes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from netperf.pairs import PlanOptions, ProbeNode, plan_probes
from netperf.plans import PLAN_KEY, encode_plan
from tests.bench.figures import Figures, figure

NOW_S = 1.7e9
SIZES = ((2, 1), (10, 10), (40, 10), (100, 10), (100, 100))


def measure() -> Figures:
    """All figures, by name."""
    figures: Figures = {}
    for zones, nodes_per_zone in SIZES:
        plan = plan_probes(_nodes(zones, nodes_per_zone), PlanOptions(), {}, NOW_S)
        # Only node pairs with this index are measured with netperf; the others exchange datagrams all the time.
        probes = sum(probe.pair_index == 0 for zone in plan.plan_by_zone.values() for probe in zone.probes)
        figures[f"probes per round, {zones} zones x {nodes_per_zone} nodes"] = figure(
            probes, "probes", zones * (zones - 1) // 2
        )
    nodes = _nodes(*SIZES[-1])
    plan = plan_probes(nodes, PlanOptions(), {}, NOW_S)
    removed = plan.plan_by_zone["zone-000"].probes[0].origin.node
    remaining = [node for node in nodes if node.name != removed]
    changed = plan_probes(remaining, PlanOptions(), plan.plan_by_zone, NOW_S)
    changed_zones = sum(old.probes != changed.plan_by_zone[zone].probes for zone, old in plan.plan_by_zone.items())
    zones_of_removed = sum(
        any(removed in (probe.origin.node, probe.destination.node) for probe in zone.probes)
        for zone in plan.plan_by_zone.values()
    )
    largest = max(len(encode_plan(zone)[PLAN_KEY]) for zone in plan.plan_by_zone.values())
    return figures | {
        "plan, 100 zones x 100 nodes, fresh": figure(
            _median_ms(lambda: plan_probes(nodes, PlanOptions(), {}, NOW_S)), "ms"
        ),
        "plan, 100 zones x 100 nodes, one node dies": figure(
            _median_ms(lambda: plan_probes(remaining, PlanOptions(), plan.plan_by_zone, NOW_S)), "ms"
        ),
        "plan objects written when one of 10,000 nodes dies": figure(
            changed_zones, "objects", zones_of_removed, "those with a probe from or to it"
        ),
        "largest plan object, 100 zones": figure(largest, "bytes", 2**20),
    }


def _nodes(zones: int, nodes_per_zone: int) -> list[ProbeNode]:
    return [
        ProbeNode(name=f"ip-10-{z}-{i}.example", address=f"10.{z}.0.{i + 1}", zone=f"zone-{z:03}", region=f"r{z // 10}")
        for z in range(zones)
        for i in range(nodes_per_zone)
    ]


def _median_ms(work: Callable[[], object]) -> float:
    durations_ms = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        durations_ms.append(1000 * (time.perf_counter() - started))
    return statistics.median(durations_ms)
