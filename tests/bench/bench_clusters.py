"""Compares plans of random clusters with CP-SAT. Figures for docs/performance.md.

Every second cluster has no pods that CP-SAT cannot place. `NETAWARE_BENCH_CLUSTERS` is the number of clusters, and
`NETAWARE_BENCH_SECONDS` the time limit of CP-SAT for each goal.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from tests.bench.figures import Figures, make_figure
from tests.unit.controller.plan_comparison import Comparison, compare_with_best

CLUSTER_COUNT = int(os.environ.get("NETAWARE_BENCH_CLUSTERS", "500"))
TIME_LIMIT_S = float(os.environ.get("NETAWARE_BENCH_SECONDS", "10"))


def measure() -> Figures:
    with ProcessPoolExecutor(2) as pool:
        comparisons = list(pool.map(_compare, range(CLUSTER_COUNT)))
    worse_placed = sum(c.our_value.unplaced > c.best_value.unplaced for c in comparisons)
    equally_placed = [c for c in comparisons if c.our_value.unplaced == c.best_value.unplaced]
    violating_percent = 100 * sum(c.our_value.limits > c.best_value.limits for c in equally_placed) / len(comparisons)
    proven, unplaceable = sum(c.is_proven for c in comparisons), sum(c.best_value.unplaced > 0 for c in comparisons)
    details = f"{unplaceable} clusters have pods that CP-SAT cannot place; {proven} proven"
    figures = {
        "clusters_unplaced_more": make_figure(worse_placed, "clusters", 0, f"of {len(comparisons)}; {details}"),
        "clusters_violations_more": make_figure(violating_percent, "%", 1),
    }
    for style in ("time", "parity"):
        ratios = np.array([c.cost_ratio for c in equally_placed if c.style == style and c.matches_on_limits])
        median, p95, worst = float(np.median(ratios)), float(np.percentile(ratios, 95)), float(ratios.max())
        figures |= {
            f"clusters_{style}_median": make_figure(round(median, 3), "x", 1),
            f"clusters_{style}_p95": make_figure(p95, "x", 1.03),
            f"clusters_{style}_worst": make_figure(worst, "x", 1.15, f"of {len(ratios)}"),
        }
    return figures


def _compare(seed: int) -> Comparison:
    comparison = compare_with_best(seed, TIME_LIMIT_S, only_fitting=seed % 2 == 1)
    if not comparison.matches_on_limits or (comparison.style != "spread" and comparison.cost_ratio > 1.0001):
        print(f"  {comparison}", file=sys.stderr, flush=True)
    return comparison
