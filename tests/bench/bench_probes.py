"""Counts probes of a round, and measures size and duration of probe plans, for 2 zones up to 100 zones of 100 nodes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from netperf.pairs import PlanOptions, ProbeNode, plan_probes
from netperf.plans import PLAN_KEY, encode_plan
from tests.bench.figures import Figures, make_figure

NOW_S = 1.7e9
SIZES = ((2, 1), (10, 10), (40, 10), (100, 10), (100, 100))


def measure() -> Figures:
    figures: Figures = {}
    for zones, nodes_per_zone in SIZES:
        plan = plan_probes(_make_nodes(zones, nodes_per_zone), PlanOptions(), {}, NOW_S)
        # Node pairs of index 0 are measured with netperf; the others exchange datagrams all the time.
        probe_count = sum(probe.pair_index == 0 for zone in plan.plan_by_zone.values() for probe in zone.probes)
        figures[f"probes per round, {zones} zones x {nodes_per_zone} nodes"] = make_figure(
            probe_count, "probes", zones * (zones - 1) // 2
        )
    nodes = _make_nodes(*SIZES[-1])
    plan = plan_probes(nodes, PlanOptions(), {}, NOW_S)
    removed_node = plan.plan_by_zone["zone-000"].probes[0].origin.node
    remaining_nodes = [node for node in nodes if node.name != removed_node]
    new_plan = plan_probes(remaining_nodes, PlanOptions(), plan.plan_by_zone, NOW_S)
    changed_zones = affected_zones = 0
    for name, zone_plan in plan.plan_by_zone.items():
        changed_zones += zone_plan.probes != new_plan.plan_by_zone[name].probes
        probed_nodes = {end.node for probe in zone_plan.probes for end in (probe.origin, probe.destination)}
        affected_zones += removed_node in probed_nodes
    largest_bytes = max(len(encode_plan(zone_plan)[PLAN_KEY]) for zone_plan in plan.plan_by_zone.values())
    return figures | {
        "plan, 100 zones x 100 nodes, fresh": make_figure(
            _measure_median_ms(lambda: plan_probes(nodes, PlanOptions(), {}, NOW_S)), "ms"
        ),
        "plan, 100 zones x 100 nodes, one node dies": make_figure(
            _measure_median_ms(lambda: plan_probes(remaining_nodes, PlanOptions(), plan.plan_by_zone, NOW_S)), "ms"
        ),
        "plan objects written when one of 10,000 nodes dies": make_figure(
            changed_zones, "objects", affected_zones, "those with a probe from or to it"
        ),
        "largest plan object, 100 zones": make_figure(largest_bytes, "bytes", 2**20),
    }


def _make_nodes(zones: int, nodes_per_zone: int) -> list[ProbeNode]:
    return [
        ProbeNode(name=f"ip-10-{z}-{i}.example", address=f"10.{z}.0.{i + 1}", zone=f"zone-{z:03}", region=f"r{z // 10}")
        for z in range(zones)
        for i in range(nodes_per_zone)
    ]


def _measure_median_ms(work: Callable[[], object]) -> float:
    durations_ms = []
    for _ in range(3):
        started_s = time.perf_counter()
        work()
        durations_ms.append(1000 * (time.perf_counter() - started_s))
    return statistics.median(durations_ms)
