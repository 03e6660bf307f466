"""From runs to a level: what a pair of nodes reads as a rule, whatever a single run says.

A level is the median of the last few runs, so that one odd run among them moves nothing. A run that is far off is not taken
at all at first; when the next one says the same, that is the new level, at once. What is judged is what is priced: the same
percentile. The history is the zone pair's: a pair of nodes that is new starts from what its zones were worth.
"""

from __future__ import annotations

import statistics

import msgspec

WINDOW_RUNS = 5
JUMP_RATIO = 0.15
FLOOR_US = 100.0
"""Below this no distance is a jump: less is the work of schedulers and interrupts."""
DEVIATIONS = 5.0


class Level(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is remembered of the runs of one pair of nodes.

    Attributes:
        estimate_us: the level.
        deviation_us: median distance of the remembered runs from it: the noise.
        recent_us: the runs that it is the median of, oldest first; empty while it is only what the zones were worth.
        pending_us: the newest run, which was too far off to be believed alone.
        runs: how many runs it rests on since it last jumped.
    """

    estimate_us: float
    deviation_us: float = 0.0
    recent_us: tuple[float, ...] = ()
    pending_us: float | None = None
    runs: int = 0


def follow(level: Level | None, value_us: float, expected_us: float | None = None) -> Level:
    """The level after one more run.

    Args:
        level: before; None for a pair of nodes that is new.
        value_us: what the run says.
        expected_us: what the zones are worth, as far as known; a new pair of nodes is measured against it.
    """
    if level is None:
        if expected_us is None:
            return _level((value_us,), 1)
        level = Level(estimate_us=expected_us)
    if not is_far(value_us, level):
        return _level((*level.recent_us, value_us)[-WINDOW_RUNS:], level.runs + 1)
    pending_us = level.pending_us
    if pending_us is not None and not _apart(value_us, pending_us):
        return _level((pending_us, value_us), 2)
    return msgspec.structs.replace(level, pending_us=value_us)


def correct(level: Level, value_us: float) -> Level:
    """The level with its newest run replaced: what is written again within a round is the same run."""
    if is_far(value_us, level):
        return msgspec.structs.replace(level, pending_us=value_us)
    if level.pending_us is not None or not level.recent_us:
        return msgspec.structs.replace(level, pending_us=None)
    return _level((*level.recent_us[:-1], value_us), level.runs)


def is_far(value_us: float, level: Level) -> bool:
    """Whether a run is too far from the level to belong to it."""
    noise_us = DEVIATIONS * level.deviation_us if len(level.recent_us) > 2 else 0.0
    bound_us = max(JUMP_RATIO * level.estimate_us, min(noise_us, level.estimate_us / 2), FLOOR_US)
    return abs(value_us - level.estimate_us) > bound_us


def _apart(value_us: float, other_us: float) -> bool:
    return abs(value_us - other_us) > max(JUMP_RATIO * max(value_us, other_us), FLOOR_US)


def _level(recent_us: tuple[float, ...], runs: int) -> Level:
    estimate_us = statistics.median(recent_us)
    deviation_us = statistics.median(abs(value - estimate_us) for value in recent_us)
    return Level(estimate_us=estimate_us, deviation_us=deviation_us, recent_us=recent_us, runs=runs)
