"""Chooses the search effort, and the best of the placements found."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from controller.scheduler.placement.native import LIMIT_PRICE, CompiledProblem, SearchResult
from controller.scheduler.placement.problem import Ints, Problem

_HOT, _COLD = 8.0, 0.003
"""Temperatures as shares of what a step typically changes. Traffic has heavy tails: cooler beginnings leave the heaviest edges of
M3 (547 services, 96 machines) where they happened to start, and seeds then differ by 4 % of the traffic instead of 1 %. The gain of
M3 grows by 0.7 % with the second half of the steps."""
_OVER_LIMITS = -0.3
"""Temperature, as a share of a broken limit, at which whole chains cross a limit to get to the other side of it."""
_TOLERANCE = 1e-9


_STEPS_PER_REPLICA, _LEAST_STEPS, _MOST_STEPS, _STEPS_WITHOUT_CALLS = 4000, 5000, 14_000_000, 200
_MANY_HOSTS, _MOST_STEPS_OVER_MANY = 1000, 2_000_000
"""Steps of annealing. They are counts, so that a busy machine gives the same plan. Per replica for all runs together, of one run,
and of one run where nothing calls anything. 1,000,000 take 0.15 to 0.3 s, and twice that over many hosts, which no cache holds.
"""
_RUNS, _RUNS_OF_MANY = 20, 6
"""Runs for small and for medium problems; large ones have one. Many short runs find more than few long ones."""
_ROOM_TURNS = 4000
"""Attempts to free capacity for replicas without a place."""
_DESCENTS, _DESCENT_SHARE = 4, 20
"""Runs without annealing that begin in each zone, for small problems: some hundred microseconds each, and sometimes better. Each
has a share of the attempts to free capacity.
"""
_SMALL_REPLICAS, _MIDDLING_REPLICAS = 60, 300


def solve(
    problem: Problem,
    hints: Ints | None = None,
    *,
    seed: int = 0,
    deadline_s: float = 60.0,
) -> Ints:
    """[replica] host, or -1 where none was found.

    Args:
        problem: what to place.
        hints: [replica] host of an earlier plan, or -1; it is kept when nothing better is found.
        seed: the same problem, hints and seed give the same answer.
        deadline_s: the best placement by then is the answer, seconds.
    """
    replicas = len(problem.class_of)
    nowhere = np.full(replicas, -1, np.int64)
    if not replicas or not len(problem.free):
        return nowhere
    compiled, ends_at = CompiledProblem(problem), time.monotonic() + deadline_s
    runs = _RUNS if replicas <= _SMALL_REPLICAS else _RUNS_OF_MANY if replicas <= _MIDDLING_REPLICAS else 1
    wanted = _STEPS_PER_REPLICA * replicas // runs if problem.edges else _STEPS_WITHOUT_CALLS * replicas
    most_steps = _MOST_STEPS if len(problem.free) <= _MANY_HOSTS else _MOST_STEPS_OVER_MANY
    steps = min(max(wanted, _LEAST_STEPS), most_steps)

    def run(turn: int, hot: float, begin: Ints, *, turns: int, seconds: float, home: int = -1) -> SearchResult:
        return compiled.search(
            begin,
            seed=seed * 1000 + turn,
            steps=turns,
            room_turns=_ROOM_TURNS if turns else _ROOM_TURNS // _DESCENT_SHARE,
            hot=hot,
            cold=_COLD,
            deadline_s=seconds,
            home=home,
        )

    def batch(first: int, hot: float, homes: Sequence[int], turns: int = steps) -> list[SearchResult]:
        """A run for each zone to begin in, each with its share of the time that is left."""
        seconds = (ends_at - time.monotonic()) / max(len(homes), 1)
        return [run(first + n, hot, nowhere, turns=turns, seconds=seconds, home=home) for n, home in enumerate(homes)]

    anywhere = [-1] * runs
    found = batch(1, _HOT, anywhere)
    if min(found, key=_rank).cost >= LIMIT_PRICE and any(table.violates_limit.any() for table in problem.tables):
        found += batch(runs + 1, _OVER_LIMITS, anywhere)
        found += batch(2 * runs + 1, _HOT, _zones_by_free_capacity(problem)[:runs])
    if replicas <= _SMALL_REPLICAS and problem.edges:
        found += batch(3 * runs + 1, _HOT, _zones_by_free_capacity(problem)[:runs] * _DESCENTS, 0)
    best = min(found, key=_rank)
    if hints is not None and (hints >= 0).any():
        kept = run(0, _HOT, hints, turns=0, seconds=ends_at - time.monotonic())
        if _unplaced(kept) <= _unplaced(best) and kept.cost <= best.cost + _TOLERANCE * abs(best.cost):
            best = kept
    return best.at


def _zones_by_free_capacity(problem: Problem) -> list[int]:
    """Zones, those with most free capacity first. A chain of workloads that only moves as a whole stays in the zone where it begins."""
    shares = np.maximum(problem.free, 0) / np.maximum(problem.free.max(axis=0, initial=1), 1)
    room = np.bincount(problem.zone_of, weights=shares.sum(axis=1), minlength=len(problem.zoned))
    return [int(zone) for zone in np.argsort(-room, kind="stable")]


def _unplaced(found: SearchResult) -> int:
    return int((found.at < 0).sum())


def _rank(found: SearchResult) -> tuple[int, float]:
    return _unplaced(found), found.cost
