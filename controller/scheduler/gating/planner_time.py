"""Shares the planner's time between namespaces."""

from __future__ import annotations

from collections.abc import Callable

MAX_SEARCH_S = 3.0
"""Longest search for a namespace that has used no planner time lately, if no other group waits."""
MAX_CONTENDED_SEARCH_S = 1.0
"""Longest search while other groups wait."""
MIN_SEARCH_S = 0.5
"""Longest search for a namespace that has used much planner time."""
HALF_LIFE_S = 60.0
"""Used planner time counts half after this time."""
FORGET_AFTER_S = 600.0
"""A namespace that has used no planner time for this long is forgotten."""


class PlannerTime:
    """The planner time that each namespace has used lately, with exponential decay."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._used: dict[str, tuple[float, float]] = {}
        """Namespace -> seconds used, and the time up to which they are decayed."""

    def used_s(self, namespace: str) -> float:
        """Seconds that a namespace has used, with decay."""
        used_s, used_at = self._used.get(namespace, (0.0, 0.0))
        return used_s * 0.5 ** ((self._clock() - used_at) / HALF_LIFE_S) if used_s else 0.0

    def record(self, namespace: str, seconds: float) -> None:
        """Record the seconds that a plan for the namespace took."""
        now = self._clock()
        self._used = {name: entry for name, entry in self._used.items() if now - entry[1] < FORGET_AFTER_S}
        self._used[namespace] = (self.used_s(namespace) + seconds, now)

    def search_limit_s(self, namespace: str, *, others_wait: bool) -> float:
        """The longest search for the namespace's next plan: less if it has used much planner time, or if other groups wait."""
        limit_s = MAX_CONTENDED_SEARCH_S if others_wait else MAX_SEARCH_S
        return max(min(MAX_SEARCH_S - self.used_s(namespace), limit_s), MIN_SEARCH_S)
