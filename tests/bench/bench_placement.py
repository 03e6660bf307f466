"""Measures the placement of a published production cluster, with the deadlines of `simulate`. Figures for docs/performance.md."""

from __future__ import annotations

import statistics
import sys
import time

from controller.scheduler.placement.solve import solve
from tests.bench import m3
from tests.bench.figures import Figures, figure

ZONE_SEEDS = range(20)
DEADLINE_S = 50.0
PUBLISHED = (
    "published: production 7.0 %, ApplSci19 58.2 %, RASA's best 84.9 %; annealing of whole replicas levels at 85.5 %"
)


def measure() -> Figures:
    """All figures."""
    return measure_one_zone() | measure_three_zones()


def measure_one_zone() -> Figures:
    """Machines are hosts, with PreferSameNode and no replica above its fair share."""
    data = m3.read_data()
    problem = m3.build_problem(data)
    production = m3.score_placement(problem, m3.read_production_placement(data))
    started = time.monotonic()
    placement = solve(problem, seed=1, time_limit_s=DEADLINE_S)
    duration_s = time.monotonic() - started
    scores = m3.score_placement(problem, placement)
    return {
        "m3_gained_affinity": figure(scores.gained_affinity * 100, "%", 85, PUBLISHED, at_least=True),
        "m3_gained_affinity_in_production": figure(production.gained_affinity * 100, "%"),
        "m3_unplaced": figure(scores.unplaced, "pods", 0),
        "m3_seconds": figure(duration_s, "s", 60),
    }


def measure_three_zones() -> Figures:
    """Machines are in three zones, with PreferSameZone, and every service must span zones."""
    data, scores = m3.read_data(), []
    for seed in ZONE_SEEDS:
        problem = m3.build_problem(data, seed)
        scores.append(m3.score_placement(problem, solve(problem, seed=seed, time_limit_s=DEADLINE_S)))
        print(f"  seed {seed}: {scores[-1]}", file=sys.stderr, flush=True)
    in_zone_percents, load_ratios = [100 * s.in_zone for s in scores], [s.max_load_ratio for s in scores]
    lowest = f"lowest of {len(scores)}: {min(in_zone_percents):.1f} %"
    highest = f"highest of {len(scores)}: {max(load_ratios):.3f}"
    return {
        "m3_zones_in_zone": figure(statistics.mean(in_zone_percents), "%", 92, lowest, at_least=True),
        "m3_zones_hottest": figure(statistics.mean(load_ratios), "x", 1.15, highest),
        "m3_zones_together": figure(max(s.services_in_one_zone for s in scores), "services", 0),
        "m3_zones_unplaced": figure(max(s.unplaced for s in scores), "pods", 0),
    }
