"""Runs the compiled search several times, and chooses the best placement found."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from controller.scheduler.placement.native_search import LIMIT_PRICE, NativeProblem, SearchResult
from controller.scheduler.placement.problem import Ints, Problem

_ANY_ZONE = -1
_RELATIVE_TOLERANCE = 1e-9
"""Costs that differ by less are equal: sums of the same costs in another order are rounded differently."""
# Effort is a number of annealing steps, not a time, so that a busy machine finds the same plan.
_STEPS_PER_REPLICA = 4000  # of all runs together
_STEPS_PER_REPLICA_WITHOUT_CALLS = 200  # of one run for workloads without dependencies
_MIN_STEPS, _MAX_STEPS = 5000, 14_000_000  # of one run
# Steps take longer on many hosts: no CPU cache holds their state.
_MANY_HOSTS, _MAX_STEPS_ON_MANY_HOSTS = 1000, 2_000_000
# Small and medium problems have several runs, because many short runs find more than few long runs; larger problems have one.
_MAX_SMALL_REPLICAS, _SMALL_RUNS = 60, 20
_MAX_MEDIUM_REPLICAS, _MEDIUM_RUNS = 300, 6
_DESCENTS_PER_ZONE = 4
"""Short runs without annealing, for small problems with dependencies: they sometimes find a better placement."""


def solve(problem: Problem, hints: Ints | None = None, *, seed: int = 0, time_limit_s: float = 60.0) -> Ints:
    """The best placement found within ``time_limit_s`` seconds: [replica] host, -1 for a replica without a place.

    Hints are [replica] preferred host, or -1; they are kept unless a better placement is found. The same problem, hints and seed give
    the same placement, unless the time limit shortens a run. Each group of runs below may use all time that is left.
    """
    replica_count = len(problem.class_of)
    if not replica_count or not len(problem.free):
        return np.full(replica_count, -1, np.int64)
    native_problem = NativeProblem(problem)
    ends_at = time.monotonic() + time_limit_s
    seed *= 1000  # Reserves 1000 seeds for the searches below.
    runs, steps = _runs_and_steps(problem)
    # A chain of workloads that only moves as a whole stays in the zone where it starts, so some runs start in one zone each: in as many
    # zones as a group has runs, those with most free capacity first.
    start_zones, any_zones = _zones_by_free_capacity(problem)[:runs], [_ANY_ZONE] * runs
    search = partial(_search_from_zones, native_problem, ends_at=ends_at)
    results = search(any_zones, steps, seed + 1)
    has_limits = any(table.violates_limit.any() for table in problem.tables)
    if has_limits and min(results, key=_rank).cost >= LIMIT_PRICE:
        # No placement keeps all limits yet: search also through placements that violate them, and from single zones.
        results += search(any_zones, steps, seed + runs + 1, may_violate_limits=True)
        results += search(start_zones, steps, seed + 2 * runs + 1)
    if replica_count <= _MAX_SMALL_REPLICAS and problem.edges:
        results += search(start_zones * _DESCENTS_PER_ZONE, 0, seed + 3 * runs + 1)
    best = min(results, key=_rank)
    if hints is not None and (hints >= 0).any():
        from_hints = native_problem.search(hints, seed=seed, steps=0, time_limit_s=ends_at - time.monotonic())
        max_cost = best.cost + _RELATIVE_TOLERANCE * abs(best.cost)
        if _count_unplaced(from_hints) <= _count_unplaced(best) and from_hints.cost <= max_cost:
            best = from_hints
    return best.host_of


def _search_from_zones(
    native_problem: NativeProblem,
    zones: Sequence[int],
    steps: int,
    first_seed: int,
    *,
    ends_at: float,
    may_violate_limits: bool = False,
) -> list[SearchResult]:
    """One search from each of these zones, with its share of the time left and the next seed; `_ANY_ZONE` starts in any zone."""
    share_s = (ends_at - time.monotonic()) / max(len(zones), 1)
    return [
        native_problem.search(
            None, seed=seed, steps=steps, time_limit_s=share_s, start_zone=zone, may_violate_limits=may_violate_limits
        )
        for seed, zone in enumerate(zones, first_seed)
    ]


def _runs_and_steps(problem: Problem) -> tuple[int, int]:
    """Number of runs, and of steps of each run."""
    count = len(problem.class_of)
    runs = 1
    if count <= _MAX_MEDIUM_REPLICAS:
        runs = _SMALL_RUNS if count <= _MAX_SMALL_REPLICAS else _MEDIUM_RUNS
    steps = _STEPS_PER_REPLICA * count // runs if problem.edges else _STEPS_PER_REPLICA_WITHOUT_CALLS * count
    max_steps = _MAX_STEPS if len(problem.free) <= _MANY_HOSTS else _MAX_STEPS_ON_MANY_HOSTS
    return runs, min(max(steps, _MIN_STEPS), max_steps)


def _zones_by_free_capacity(problem: Problem) -> list[int]:
    """Zones by decreasing free capacity."""
    shares = np.maximum(problem.free, 0) / np.maximum(problem.free.max(axis=0, initial=1), 1)
    free = np.bincount(problem.zone_of, weights=shares.sum(axis=1), minlength=len(problem.has_zone_label))
    return [int(zone) for zone in np.argsort(-free, kind="stable")]


def _count_unplaced(result: SearchResult) -> int:
    return int((result.host_of < 0).sum())


def _rank(result: SearchResult) -> tuple[int, float]:
    """Sort key, best first."""
    return _count_unplaced(result), result.cost
