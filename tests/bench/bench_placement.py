"""Measures the placement of a published production cluster, with the deadlines of `simulate`. Figures for docs/performance.md."""

from __future__ import annotations

import statistics
import sys
import time

from controller.scheduler.placement.solve import solve
from tests.bench import m3
from tests.bench.figures import Figures, figure

DEALS = 20
PUBLISHED = (
    "published: production 7.0 %, ApplSci19 58.2 %, RASA's best 84.9 %; annealing of whole replicas levels at 85.5 %"
)


def measure() -> Figures:
    """All figures."""
    return measure_m3() | measure_zones()


def measure_m3() -> Figures:
    """Machines are hosts, with PreferSameNode and no replica above its fair share."""
    data = m3.read()
    problem = m3.problem_of(data)
    before = m3.scores(problem, m3.production(data))
    began = time.monotonic()
    found = m3.scores(problem, solve(problem, seed=1, deadline_s=50.0))
    took = time.monotonic() - began
    gained = found.gained_affinity * 100
    return {
        "m3_gained_affinity": figure(gained, "%", 85, PUBLISHED, at_least=True),
        "m3_gained_affinity_in_production": figure(before.gained_affinity * 100, "%"),
        "m3_unplaced": figure(found.unplaced, "pods", 0),
        "m3_seconds": figure(took, "s", 60),
    }


def measure_zones() -> Figures:
    """Machines are dealt to three zones, with PreferSameZone, and every service must span zones."""
    data = m3.read()
    found = []
    for deal in range(DEALS):
        problem = m3.problem_of(data, deal)
        found.append(m3.scores(problem, solve(problem, seed=deal, deadline_s=50.0)))
        print(f"  deal {deal}: {found[-1]}", file=sys.stderr, flush=True)
    in_zone_percent = 100 * statistics.mean(one.in_zone for one in found)
    max_load_ratio = statistics.mean(one.max_load_ratio for one in found)
    together, unplaced = max(one.together for one in found), max(one.unplaced for one in found)
    return {
        "m3_zones_in_zone": figure(
            in_zone_percent, "%", 92, f"least of {DEALS}: {100 * min(f.in_zone for f in found):.1f} %", at_least=True
        ),
        "m3_zones_hottest": figure(
            max_load_ratio, "x", 1.15, f"worst of {DEALS}: {max(f.max_load_ratio for f in found):.3f}"
        ),
        "m3_zones_together": figure(together, "services", 0),
        "m3_zones_unplaced": figure(unplaced, "pods", 0),
    }
