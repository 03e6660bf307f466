"""Measures the placement of the published production cluster M3 (see `m3`). Figures for docs/performance.md."""

from __future__ import annotations

import statistics
import sys
import time

from controller.scheduler.placement.solve import solve
from tests.bench import m3
from tests.bench.figures import Figures, make_figure

ZONE_SEEDS = range(20)
DEADLINE_S = 50.0  # more than the default of `plan_group`: with it, figures do not depend on the machine
PUBLISHED = "published: production 7.0 %, ApplSci19 58.2 %, RASA's best 84.9 %"


def measure() -> Figures:
    return measure_one_zone() | measure_three_zones()


def measure_one_zone() -> Figures:
    """Figures with all machines in one zone, with PreferSameNode."""
    data = m3.read_data()
    problem = m3.build_problem(data)
    production = m3.score_placement(problem, m3.read_production_placement(data))
    started_s = time.monotonic()
    placement = solve(problem, seed=1, time_limit_s=DEADLINE_S)
    duration_s = time.monotonic() - started_s
    scores = m3.score_placement(problem, placement)
    return {
        "m3_gained_affinity": make_figure(scores.gained_affinity * 100, "%", 85, PUBLISHED, at_least=True),
        "m3_gained_affinity_in_production": make_figure(production.gained_affinity * 100, "%"),
        "m3_unplaced": make_figure(scores.unplaced, "pods", 0),
        "m3_seconds": make_figure(duration_s, "s", 60),
    }


def measure_three_zones() -> Figures:
    """Figures with machines in three zones, with PreferSameZone; every service must span zones."""
    data = m3.read_data()
    scores: list[m3.Scores] = []
    for seed in ZONE_SEEDS:
        problem = m3.build_problem(data, seed)
        scores.append(m3.score_placement(problem, solve(problem, seed=seed, time_limit_s=DEADLINE_S)))
        print(f"  seed {seed}: {scores[-1]}", file=sys.stderr, flush=True)
    in_zone_percents = [100 * score.in_zone_traffic for score in scores]
    load_ratios = [score.max_load_ratio for score in scores]
    lowest = f"lowest of {len(scores)}: {min(in_zone_percents):.1f} %"
    highest = f"highest of {len(scores)}: {max(load_ratios):.3f}"
    return {
        "m3_zones_in_zone_traffic": make_figure(statistics.mean(in_zone_percents), "%", 92, lowest, at_least=True),
        "m3_zones_max_load_ratio": make_figure(statistics.mean(load_ratios), "x", 1.15, highest),
        "m3_zones_services_in_one_zone": make_figure(max(s.services_in_one_zone for s in scores), "services", 0),
        "m3_zones_unplaced": make_figure(max(s.unplaced for s in scores), "pods", 0),
    }
