"""Events on gated pods, with the reason of their wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.cluster.pods import Pod
from controller.scheduler.gating.release import PLAN_PENDING
from kubekit.wire import parse_time

WAITING = "WaitingForGroup"
"""Reason of the event."""
REPORT_AFTER_S = 5.0
"""Shorter waits are not reported."""
REPORT_PENDING_PLAN_AFTER_S = 30.0
"""A pending plan needs no action of a person, and an event for each pod of many groups would delay it."""
MAX_EVENTS = 20
"""Pods of one group that are reported in one reconciliation; the others follow in the next."""
_NEXT_REPORT_S = 1.0


class WaitingEvents:
    """Remembers which waiting pods were reported."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def pop_due(
        self, pods: Sequence[Pod], waiting: Mapping[str, str], now: float
    ) -> tuple[list[tuple[Pod, str]], float | None]:
        """The pods to report now with their messages, and seconds until the next check; None to wait for a change.

        Each pod is returned once in a wait.

        Args:
            pods: of the group.
            waiting: pod key -> reason of its wait.
            now: wall clock, seconds since 1970.
        """
        due: list[tuple[Pod, str]] = []
        next_checks_s: list[float] = []
        for pod in pods:
            key = pod.metadata.key
            reason = waiting.get(key)
            if reason is None:
                self._reported.discard(key)
            if reason is None or key in self._reported:
                continue
            created = pod.metadata.creation_timestamp
            after_s = REPORT_PENDING_PLAN_AFTER_S if reason == PLAN_PENDING else REPORT_AFTER_S
            due_in_s = parse_time(created) + after_s - now if created else 0.0
            if due_in_s <= 0 and len(due) < MAX_EVENTS:
                self._reported.add(key)
                due.append((pod, f"it waits at its gate: {reason}"))
            else:
                next_checks_s.append(max(due_in_s, _NEXT_REPORT_S))
        return due, min(next_checks_s, default=None)

    def forget(self, key: str) -> None:
        """Forget a deleted pod."""
        self._reported.discard(key)
