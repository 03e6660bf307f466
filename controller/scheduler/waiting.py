"""What is told of pods that wait at their gates: once they have waited for a few seconds, and for whom. Pure but for its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.cluster.pods import GroupPod
from kubekit.wire import parse_time

WAITING = "WaitingForGroup"
"""Reason of the event."""
PATIENCE_S, AGAIN_S = 5.0, 60.0
"""Before this nobody asks why; what a pod waits for may change with every pod that is bound, so it is told again this much later."""
PENDING, PLAN_PATIENCE_S = "the plan of its group is being made", 30.0
"""A plan comes by itself. Where many groups come at once, a write for each of their pods would only make it come later."""
MOST_AT_ONCE = 20
"""Pods of one group that are told of in one look; the others' turn comes with the next."""


class WaitingNews:
    """Remembers what was told of whom."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, str]] = {}

    def of(
        self, pods: Sequence[GroupPod], waiting: Mapping[str, str], now: float
    ) -> tuple[list[tuple[GroupPod, str]], float | None]:
        """Whom to tell of, with the words, and in how many seconds to look again; None when only a change can bring news.

        Args:
            pods: of the group.
            waiting: pod key -> what it waits for.
            now: wall clock, seconds since 1970.
        """
        news: list[tuple[GroupPod, str]] = []
        again: list[float] = []
        for pod in pods:
            key = pod.metadata.key
            reason = waiting.get(key)
            if reason is None:
                self._told.pop(key, None)
                continue
            due_in_s = self._due(pod, reason, now)
            if due_in_s is None:
                continue
            if due_in_s <= 0 and len(news) < MOST_AT_ONCE:
                self._told[key] = (now, reason)
                news.append((pod, f"it waits at its gate: {reason}"))
            else:
                again.append(max(due_in_s, 1.0))
        return news, min(again, default=None)

    def _due(self, pod: GroupPod, reason: str, now: float) -> float | None:
        told = self._told.get(pod.metadata.key)
        if told is not None:
            return None if told[1] == reason else told[0] + AGAIN_S - now
        created, patience_s = pod.metadata.creation_timestamp, PLAN_PATIENCE_S if reason == PENDING else PATIENCE_S
        return parse_time(created) + patience_s - now if created else 0.0

    def forget(self, key: str) -> None:
        """A pod is gone."""
        self._told.pop(key, None)
