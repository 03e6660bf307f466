"""PodDisruptionBudgets, booked as evictions are planned, so that two pods of one budget are not both promised its last place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.descheduler.objects import PodInfo
from controller.descheduler.snapshot import Guard


class Ledger:
    """What is left of every budget.

    The eviction subresource keeps the same rule and has the last word; this is its forecast, and what a dry-run goes by.
    """

    def __init__(self, guards: Mapping[str, Iterable[Guard]]) -> None:
        self._guards = guards
        self._booked: dict[str, int] = {}

    def refusal(self, pod: PodInfo) -> str:
        """Why the pod must not be evicted now; empty when it may."""
        guards = self._of(pod)
        if len(guards) > 1:
            # The API server refuses these, since it cannot take from two budgets at once.
            return f"several PodDisruptionBudgets cover it: {', '.join(guard.key for guard in guards)}"
        for guard in guards:
            if guard.allowed - self._booked.get(guard.key, 0) <= 0:
                return f"PodDisruptionBudget {guard.key} allows no disruption now"
        return ""

    def book(self, pod: PodInfo) -> None:
        """Take the pod's place in its budget."""
        for guard in self._of(pod):
            self._booked[guard.key] = self._booked.get(guard.key, 0) + 1

    def _of(self, pod: PodInfo) -> list[Guard]:
        return [guard for guard in self._guards.get(pod.namespace, ()) if guard.selector.matches(pod.labels)]
