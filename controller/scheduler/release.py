"""TopologicalSort by gates (docs/contracts, section 6): whose turn it is, and for how long anybody waits. Pure.

A pod is released when every workload that comes before its own has its pods bound. What does not come, or cannot be placed,
holds nobody up for longer than a stated time; so no pod is ever held for good, whatever is wrong with its group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from controller.scheduler.config import GatesConfig
from controller.scheduler.pods import GroupPod
from kubekit.wire import parse_time

Cause = Literal["turn", "no-group", "no-workload", "waited"]
"""Why a pod is released: its turn; no such AppGroup; the group has no such workload; it waited for the longest time."""


class GroupQueue(msgspec.Struct, frozen=True):
    """A group's pods in the eyes of the queue.

    Attributes:
        order: workload selector -> place in the order; empty for a group that does not exist.
        exists: whether the AppGroup does.
        pods: its pods, finished ones included.
        replicas: workload selector -> how many pods it declares; absent where that is not known.
        members: numMembers of the group.
        seen_at: pod key -> when we first saw it, on the clock of ``now``.
    """

    order: Mapping[str, int]
    exists: bool
    pods: Sequence[GroupPod]
    replicas: Mapping[str, int] = {}
    members: int = 0
    seen_at: Mapping[str, float] = {}


class Release(msgspec.Struct, frozen=True):
    """A pod whose gate is to be opened."""

    pod: GroupPod
    cause: Cause


class Turns(msgspec.Struct, frozen=True):
    """Who goes now.

    Attributes:
        releases: in the order of their workloads.
        waiting: pod key -> what it waits for.
        again_s: when to look again though nothing changes; None when only a change can help.
    """

    releases: tuple[Release, ...] = ()
    waiting: Mapping[str, str] = {}
    again_s: float | None = None


def plan_release(queue: GroupQueue, now: float, config: GatesConfig) -> Turns:
    """Decide whose gates to open.

    Args:
        queue: the group.
        now: wall clock, seconds since 1970.
        config: how long to wait for what.
    """
    return _Turns(queue, now, config).decide()


class _Turns:
    def __init__(self, queue: GroupQueue, now: float, config: GatesConfig) -> None:
        self._queue, self._now, self._config = queue, now, config
        self._live: dict[str, list[GroupPod]] = defaultdict(list)
        for pod in queue.pods:
            if not pod.over:
                self._live[pod.workload].append(pod)
        self._wakes: list[float] = []

    def decide(self) -> Turns:
        releases: list[Release] = []
        waiting: dict[str, str] = {}
        gated = [pod for pods in self._live.values() for pod in pods if pod.gated]
        last = len(self._queue.order) + 1
        for pod in sorted(gated, key=lambda p: (self._queue.order.get(p.workload, last), p.metadata.key)):
            cause, reason = self._judge(pod)
            if cause is not None:
                releases.append(Release(pod, cause))
            else:
                waiting[pod.metadata.key] = reason
        again_s = max(min(self._wakes), 0.05) if waiting and self._wakes else None
        return Turns(tuple(releases), waiting, again_s)

    def _judge(self, pod: GroupPod) -> tuple[Cause | None, str]:
        age_s = self._age_s(pod)
        if age_s >= self._config.max_wait_s:
            return "waited", ""
        self._wakes.append(self._config.max_wait_s - age_s)
        patient = age_s < self._config.absent_wait_s
        if not self._queue.exists or pod.workload not in self._queue.order:
            if not patient:
                return ("no-workload" if self._queue.exists else "no-group"), ""
            self._wakes.append(self._config.absent_wait_s - age_s)
            return None, "its AppGroup has no such workload" if self._queue.exists else "its AppGroup does not exist"
        if self._unsettled():
            return None, "the group's pods are still being created"
        place = self._queue.order[pod.workload]
        for selector, index in sorted(self._queue.order.items(), key=lambda entry: entry[1]):
            if index >= place:
                break
            reason = self._blocks(selector, patient=patient, age_s=age_s)
            if reason:
                return None, reason
        return "turn", ""

    def _age_s(self, pod: GroupPod) -> float:
        created = pod.metadata.creation_timestamp
        return max(self._now - parse_time(created), 0.0) if created else 0.0

    def _unsettled(self) -> bool:
        """Whether pods are missing and one came just now: the plan should know them all."""
        live = sum(map(len, self._live.values()))
        if live >= self._queue.members and all(
            len(self._live[selector]) >= count for selector, count in self._queue.replicas.items()
        ):
            return False
        seen = self._queue.seen_at
        newest = max((seen.get(p.metadata.key, 0.0) for pods in self._live.values() for p in pods), default=0.0)
        left_s = newest + self._config.settle_s - self._now
        if left_s > 0:
            self._wakes.append(left_s)
        return left_s > 0

    def _blocks(self, selector: str, *, patient: bool, age_s: float) -> str:
        """Why a workload holds up those after it; empty when it does not."""
        for pod in self._live[selector]:
            if not pod.spec.node_name and not self._given_up(pod):
                return f"workload {selector} comes first, and its pod {pod.metadata.name} is not bound yet"
        missing = self._queue.replicas.get(selector, 1) - len(self._live[selector])
        if missing > 0 and patient:
            self._wakes.append(self._config.absent_wait_s - age_s)
            return f"workload {selector} comes first, and {missing} of its pods do not exist yet"
        return ""

    def _given_up(self, pod: GroupPod) -> bool:
        """Whether the scheduler found no place for a pod for so long that others go first."""
        if pod.gated:
            return False
        found = pod.condition("PodScheduled")
        if (
            found is None
            or found.status != "False"
            or found.reason != "Unschedulable"
            or not found.last_transition_time
        ):
            return False
        left_s = parse_time(found.last_transition_time) + self._config.absent_wait_s - self._now
        if left_s > 0:
            self._wakes.append(left_s)
        return left_s <= 0
