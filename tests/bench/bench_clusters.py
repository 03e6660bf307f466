"""Plans of random clusters as API servers list them, against CP-SAT. Figures for docs/performance.md.

Of every second cluster those pods are taken away that CP-SAT finds no place for, so that all of the others must get one.
`NETAWARE_BENCH_CLUSTERS` says how many, `NETAWARE_BENCH_SECONDS` how long CP-SAT may look for each of its goals.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from tests.bench.figures import Figures, figure
from tests.unit.controller.plan_comparison import Comparison, compare

CLUSTERS = int(os.environ.get("NETAWARE_BENCH_CLUSTERS", "500"))
SECONDS = float(os.environ.get("NETAWARE_BENCH_SECONDS", "10"))


def measure() -> Figures:
    """All figures."""
    with ProcessPoolExecutor(2) as pool:
        found = list(pool.map(_compare, range(CLUSTERS)))
    more = sum(one.ours.unplaced > one.best.unplaced for one in found)
    same = [one for one in found if one.ours.unplaced == one.best.unplaced]
    broken = (
        100
        * sum(one.limits > (one.best.unplaced, one.best.unspread_workloads, one.best.violations) for one in same)
        / len(found)
    )
    proven = sum(one.proven for one in found)
    waiting = f"{sum(one.best.unplaced > 0 for one in found)} clusters hold pods that nobody can place; {proven} proven"
    figures = {
        "clusters_unplaced_more": figure(more, "clusters", 0, f"of {len(found)}; {waiting}"),
        "clusters_violations_more": figure(broken, "%", 1),
    }
    for style in ("time", "parity"):
        ratios = np.array([one.ratio for one in same if one.style == style and one.matches_on_limits])
        median, p95, worst = float(np.median(ratios)), float(np.percentile(ratios, 95)), float(ratios.max())
        figures |= {
            f"clusters_{style}_median": figure(round(median, 3), "x", 1),
            f"clusters_{style}_p95": figure(p95, "x", 1.03),
            f"clusters_{style}_worst": figure(worst, "x", 1.15, f"of {len(ratios)}"),
        }
    return figures


def _compare(seed: int) -> Comparison:
    found = compare(seed, SECONDS, fitting=seed % 2 == 1)
    if not found.matches_on_limits or (found.style != "spread" and found.ratio > 1.0001):
        print(f"  {found}", file=sys.stderr, flush=True)
    return found
