"""Runs the compiled search several times, and chooses the best placement found."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from controller.scheduler.placement.native import LIMIT_PRICE, NativeProblem, SearchResult
from controller.scheduler.placement.problem import Ints, Problem

_RELATIVE_TOLERANCE = 1e-9

# Effort is a number of steps, so that a busy machine finds the same plan.
_STEPS_PER_REPLICA, _MIN_STEPS, _MAX_STEPS = 4000, 5000, 14_000_000
"""Steps of annealing: per replica in all runs together, and bounds for one run."""
_STEPS_WITHOUT_CALLS = 200
"""Steps per replica of a run for workloads without dependencies."""
_MANY_HOSTS, _MAX_STEPS_ON_MANY_HOSTS = 1000, 2_000_000
"""Bound for one run on many hosts, whose state no CPU cache holds."""
_SMALL_REPLICAS, _MEDIUM_REPLICAS = 60, 300
_SMALL_RUNS, _MEDIUM_RUNS = 20, 6
"""Runs of small and medium problems; larger problems have one run. Many short runs find more than few long runs."""
_DESCENTS_PER_ZONE = 4
"""Runs without annealing, for small problems: they take less than a millisecond, and sometimes find a better placement."""


def solve(problem: Problem, hints: Ints | None = None, *, seed: int = 0, deadline_s: float = 60.0) -> Ints:
    """The best placement found: [replica] host, -1 for a replica without a place.

    Args:
        problem: the problem.
        hints: [replica] host of the previous plan, or -1; the hints are kept unless a better placement is found.
        seed: the same problem, hints and seed give the same placement, unless the deadline cuts the search short.
        deadline_s: time after which the search ends, seconds.
    """
    replicas = len(problem.class_of)
    if not replicas or not len(problem.free):
        return np.full(replicas, -1, np.int64)
    searches, (runs, steps) = _Searches(problem, seed, deadline_s), _runs_and_steps(problem)
    any_zone, zones = [-1] * runs, _zones_by_free_capacity(problem)[:runs]
    results = searches.from_zones(any_zone, 1, steps)
    has_limits = any(table.violates_limit.any() for table in problem.tables)
    if has_limits and min(results, key=_rank).cost >= LIMIT_PRICE:
        results += searches.from_zones(any_zone, runs + 1, steps, crosses_limits=True)
        results += searches.from_zones(zones, 2 * runs + 1, steps)
    if replicas <= _SMALL_REPLICAS and problem.edges:
        results += searches.from_zones(zones * _DESCENTS_PER_ZONE, 3 * runs + 1, steps=0)
    best = min(results, key=_rank)
    if hints is not None and (hints >= 0).any():
        from_hints = searches.from_hints(hints)
        max_cost = best.cost + _RELATIVE_TOLERANCE * abs(best.cost)
        if _count_unplaced(from_hints) <= _count_unplaced(best) and from_hints.cost <= max_cost:
            best = from_hints
    return best.host_of


class _Searches:
    """Runs of the compiled search on one problem; the number of a run decides its random seed."""

    def __init__(self, problem: Problem, seed: int, deadline_s: float) -> None:
        self._native_problem, self._seed, self._ends_at = (
            NativeProblem(problem),
            seed * 1000,
            time.monotonic() + deadline_s,
        )
        self._no_hints = np.full(len(problem.class_of), -1, np.int64)

    def from_zones(
        self, zones: Sequence[int], first_run: int, steps: int, *, crosses_limits: bool = False
    ) -> list[SearchResult]:
        """One run from each of these zones, with its share of the time left; -1 starts in any zone."""
        run_s = (self._ends_at - time.monotonic()) / max(len(zones), 1)
        return [
            self._native_problem.search(
                self._no_hints,
                seed=self._seed + run,
                steps=steps,
                deadline_s=run_s,
                start_zone=zone,
                crosses_limits=crosses_limits,
            )
            for run, zone in enumerate(zones, first_run)
        ]

    def from_hints(self, hints: Ints) -> SearchResult:
        """The local optimum near the hints."""
        left_s = self._ends_at - time.monotonic()
        return self._native_problem.search(hints, seed=self._seed, steps=0, deadline_s=left_s)


def _runs_and_steps(problem: Problem) -> tuple[int, int]:
    """Number of runs, and of steps of each run."""
    replicas, runs = len(problem.class_of), 1
    if replicas <= _MEDIUM_REPLICAS:
        runs = _SMALL_RUNS if replicas <= _SMALL_REPLICAS else _MEDIUM_RUNS
    steps = _STEPS_PER_REPLICA * replicas // runs if problem.edges else _STEPS_WITHOUT_CALLS * replicas
    max_steps = _MAX_STEPS if len(problem.free) <= _MANY_HOSTS else _MAX_STEPS_ON_MANY_HOSTS
    return runs, min(max(steps, _MIN_STEPS), max_steps)


def _zones_by_free_capacity(problem: Problem) -> list[int]:
    """Zones by decreasing free capacity. A chain of workloads that only moves as a whole stays in the zone where it starts."""
    shares = np.maximum(problem.free, 0) / np.maximum(problem.free.max(axis=0, initial=1), 1)
    free = np.bincount(problem.zone_of, weights=shares.sum(axis=1), minlength=len(problem.has_zone_label))
    return [int(zone) for zone in np.argsort(-free, kind="stable")]


def _count_unplaced(result: SearchResult) -> int:
    return int((result.host_of < 0).sum())


def _rank(result: SearchResult) -> tuple[int, float]:
    """Sort key, best first."""
    return _count_unplaced(result), result.cost
