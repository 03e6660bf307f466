"""Chooses the search effort, and the best of the placements found."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from controller.scheduler.placement.native import LIMIT_PRICE, NativeProblem, SearchResult
from controller.scheduler.placement.problem import Ints, Problem

_HOT, _COLD = 8.0, 0.003
"""First and last temperature, as shares of the typical change of the cost by a step. Traffic has heavy tails: at a lower first
temperature the heaviest edges stay where they started.
"""
_HOT_ACROSS_LIMITS = -0.3
"""First temperature, as a negative share of a broken limit, at which whole chains of workloads may cross a limit."""
_TOLERANCE = 1e-9

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
_ROOM_TURNS = 4000
"""Attempts to free capacity for replicas without a place."""
_DESCENTS, _DESCENT_ROOM_TURNS = 4, 200
"""Runs without annealing that start in each zone, for small problems: they take less than a millisecond, and are sometimes better."""


def solve(problem: Problem, hints: Ints | None = None, *, seed: int = 0, deadline_s: float = 60.0) -> Ints:
    """The best placement found: [replica] host, -1 for a replica without a place.

    Args:
        problem: the problem.
        hints: [replica] host of the previous plan, or -1; the hints are kept unless a better placement is found.
        seed: the same problem, hints and seed give the same placement.
        deadline_s: time after which the search ends, seconds.
    """
    replicas = len(problem.class_of)
    nowhere = np.full(replicas, -1, np.int64)
    if not replicas or not len(problem.free):
        return nowhere
    compiled, ends_at = NativeProblem(problem), time.monotonic() + deadline_s
    runs, steps = _runs_and_steps(problem)

    def run(number: int, hot: float, start: Ints, *, steps: int, seconds: float, home: int = -1) -> SearchResult:
        room_turns, run_seed = _ROOM_TURNS if steps else _DESCENT_ROOM_TURNS, seed * 1000 + number
        return compiled.search(
            start, seed=run_seed, steps=steps, room_turns=room_turns, hot=hot, cold=_COLD, deadline_s=seconds, home=home
        )

    def run_each(first: int, hot: float, homes: Sequence[int], steps: int = steps) -> list[SearchResult]:
        """One run per zone to start in, each with its share of the time left."""
        seconds = (ends_at - time.monotonic()) / max(len(homes), 1)
        return [run(first + n, hot, nowhere, steps=steps, seconds=seconds, home=home) for n, home in enumerate(homes)]

    anywhere = [-1] * runs
    results = run_each(1, _HOT, anywhere)
    if min(results, key=_rank).cost >= LIMIT_PRICE and any(table.violates_limit.any() for table in problem.tables):
        results += run_each(runs + 1, _HOT_ACROSS_LIMITS, anywhere)
        results += run_each(2 * runs + 1, _HOT, _zones_by_free_capacity(problem)[:runs])
    if replicas <= _SMALL_REPLICAS and problem.edges:
        results += run_each(3 * runs + 1, _HOT, _zones_by_free_capacity(problem)[:runs] * _DESCENTS, 0)
    best = min(results, key=_rank)
    if hints is not None and (hints >= 0).any():
        kept = run(0, _HOT, hints, steps=0, seconds=ends_at - time.monotonic())
        if _unplaced(kept) <= _unplaced(best) and kept.cost <= best.cost + _TOLERANCE * abs(best.cost):
            best = kept
    return best.host_of


def _runs_and_steps(problem: Problem) -> tuple[int, int]:
    """Number of runs, and of steps of each run."""
    replicas, runs = len(problem.class_of), 1
    if replicas <= _MEDIUM_REPLICAS:
        runs = _SMALL_RUNS if replicas <= _SMALL_REPLICAS else _MEDIUM_RUNS
    wanted = _STEPS_PER_REPLICA * replicas // runs if problem.edges else _STEPS_WITHOUT_CALLS * replicas
    most = _MAX_STEPS if len(problem.free) <= _MANY_HOSTS else _MAX_STEPS_ON_MANY_HOSTS
    return runs, min(max(wanted, _MIN_STEPS), most)


def _zones_by_free_capacity(problem: Problem) -> list[int]:
    """Zones by decreasing free capacity. A chain of workloads that only moves as a whole stays in the zone where it starts."""
    shares = np.maximum(problem.free, 0) / np.maximum(problem.free.max(axis=0, initial=1), 1)
    free = np.bincount(problem.zone_of, weights=shares.sum(axis=1), minlength=len(problem.has_zone_label))
    return [int(zone) for zone in np.argsort(-free, kind="stable")]


def _unplaced(result: SearchResult) -> int:
    return int((result.host_of < 0).sum())


def _rank(result: SearchResult) -> tuple[int, float]:
    return _unplaced(result), result.cost
