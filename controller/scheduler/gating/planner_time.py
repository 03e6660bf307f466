"""Shares the planner's time between namespaces."""

from __future__ import annotations

from collections.abc import Callable

SEARCH_S, SHARED_SEARCH_S, LEAST_SEARCH_S = 3.0, 1.0, 0.5
"""Longest search of one plan: for a namespace that has used no planner time lately, while other groups wait, and for a namespace that
has used much."""
HALF_LIFE_S, FORGET_AFTER_S = 60.0, 600.0
"""Recorded planner time counts half after the first, and nothing after the second."""


class PlannerTime:
    """Planner time that each namespace has used lately, with exponential decay."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._used: dict[str, tuple[float, float]] = {}

    def used_s(self, namespace: str) -> float:
        """Seconds used, decayed."""
        used_s, used_at = self._used.get(namespace, (0.0, 0.0))
        return used_s * 0.5 ** ((self._clock() - used_at) / HALF_LIFE_S) if used_s else 0.0

    def add(self, namespace: str, seconds: float) -> None:
        """Record the seconds that a plan for the namespace took."""
        now = self._clock()
        self._used = {name: entry for name, entry in self._used.items() if now - entry[1] < FORGET_AFTER_S}
        self._used[namespace] = (self.used_s(namespace) + seconds, now)

    def search_s(self, namespace: str, *, others_wait: bool) -> float:
        """The longest search for the namespace's next plan."""
        longest_s = SHARED_SEARCH_S if others_wait else SEARCH_S
        return max(min(SEARCH_S - self.used_s(namespace), longest_s), LEAST_SEARCH_S)
