"""Decides which gated pods get an event with the reason for their wait. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.cluster.pods import Pod
from controller.scheduler.gating.release import PLAN_PENDING_REASON
from kubekit.wire import parse_time

WAITING_REASON = "WaitingForGroup"
"""Reason of the event."""
REPORT_AFTER_S = 5.0
"""Shorter waits are not reported."""
REPORT_PENDING_PLAN_AFTER_S = 30.0
"""A pending plan needs no action of a person, and events for the pods of many groups would delay the plan."""
MAX_EVENTS = 20
"""Pods of one group that are reported in one reconciliation; the others follow in the next ones."""
_NEXT_BATCH_S = 1.0


class WaitingEvents:
    """Remembers which pods were reported in their present wait."""

    def __init__(self) -> None:
        self._reported_keys: set[str] = set()

    def pop_due(
        self, pods: Sequence[Pod], wait_reasons: Mapping[str, str], now: float
    ) -> tuple[list[tuple[Pod, str]], float | None]:
        """The pods to report now with their notes, and seconds until the next check; None to wait for a change.

        Each pod is returned once in a wait. ``wait_reasons`` is by pod key, ``now`` is the wall clock.
        """
        due: list[tuple[Pod, str]] = []
        checks_in_s: list[float] = []
        for pod in pods:
            key = pod.metadata.key
            reason = wait_reasons.get(key)
            if reason is None:
                self._reported_keys.discard(key)
            if reason is None or key in self._reported_keys:
                continue
            created = pod.metadata.creation_timestamp
            after_s = REPORT_PENDING_PLAN_AFTER_S if reason == PLAN_PENDING_REASON else REPORT_AFTER_S
            due_in_s = parse_time(created) + after_s - now if created else 0.0
            if due_in_s <= 0 and len(due) < MAX_EVENTS:
                self._reported_keys.add(key)
                due.append((pod, f"it waits at its gate: {reason}"))
            else:
                checks_in_s.append(max(due_in_s, _NEXT_BATCH_S))
        return due, min(checks_in_s, default=None)

    def forget_pod(self, key: str) -> None:
        """Forget a deleted pod."""
        self._reported_keys.discard(key)
