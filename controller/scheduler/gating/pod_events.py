"""Decides which gated pods get an event with the reason for their wait, and remembers which pods had one."""

from __future__ import annotations

from collections.abc import Sequence

from controller.cluster.pods import Pod
from controller.scheduler.gating.release import ReleaseDecision
from kubekit.wire import parse_time

WAITING_EVENT_REASON = "WaitingForGroup"
REPORT_AFTER_S = 5.0
"""A pod that waits is reported at this age at the earliest."""
REPORT_PENDING_PLAN_AFTER_S = 30.0
"""The same for a pod that waits for a pending plan: that needs no action of a person, and events for many pods would delay the plan."""
MAX_EVENTS = 20
"""Pods of one group that are reported in one reconciliation; the others follow in the next ones."""
_NEXT_BATCH_S = 1.0
"""Shortest time until the next check."""


class WaitingEvents:
    """Remembers which pods were reported in their present wait."""

    def __init__(self) -> None:
        self._reported_keys: set[str] = set()

    def pop_due(
        self, pods: Sequence[Pod], decision: ReleaseDecision, now: float
    ) -> tuple[list[tuple[Pod, str]], float | None]:
        """The pods to report now with their notes, and seconds until the next check; None if only a change can make a pod due.

        Each pod is returned once in a wait. ``now`` is the wall clock, unix seconds.
        """
        due: list[tuple[Pod, str]] = []
        check_delays_s: list[float] = []
        for pod in pods:
            key = pod.metadata.key
            reason = decision.wait_reasons.get(key)
            if reason is None:
                self._reported_keys.discard(key)
            if reason is None or key in self._reported_keys:
                continue
            created = pod.metadata.creation_timestamp
            due_age_s = REPORT_PENDING_PLAN_AFTER_S if key in decision.awaiting_plan else REPORT_AFTER_S
            due_in_s = parse_time(created) + due_age_s - now if created else 0.0
            if due_in_s <= 0 and len(due) < MAX_EVENTS:
                self._reported_keys.add(key)
                due.append((pod, f"it waits at its gate: {reason}"))
            else:
                check_delays_s.append(max(due_in_s, _NEXT_BATCH_S))
        return due, min(check_delays_s, default=None)

    def forget_pod(self, key: str) -> None:
        """Forget a deleted pod."""
        self._reported_keys.discard(key)
