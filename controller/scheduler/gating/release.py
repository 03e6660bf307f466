"""Decides which gates to open, and when: TopologicalSort (docs/contracts, section 6). Pure.

A pod is released when every workload that comes before its own has its pods bound. Pods that do not come or cannot be placed delay
others for a bounded time. Pods for which the plan found no place are released at once and all together, since an autoscaler sees only
what the scheduler has refused.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from controller.cluster.pods import GroupPod
from controller.scheduler.config import GatesConfig
from kubekit.wire import parse_time

Cause = Literal["turn", "no-group", "no-workload", "waited", "unplaced"]
"""Why a pod is released: its turn; no such AppGroup; the group has no such workload; it waited for the longest time; the plan
found no place for it."""

DEBOUNCE_S = 0.5
"""Pods of a group are created one by one; the plan should know all of them."""
ROLLOUT_PAUSE_S = 20.0
"""Time in which a rollout takes its next step: the Deployment controller writes 20 times a second, for all rollouts together."""
PLAN_PENDING = "the plan of its group is being made"

FORCED_CAUSES: frozenset[Cause] = frozenset({"no-group", "no-workload", "waited"})
"""Causes that do not wait for a plan."""


class GroupQueue(msgspec.Struct, frozen=True):
    """A group's pods, and what the release depends on.

    Attributes:
        pods: its pods, finished ones included.
        order: workload selector -> position in the order; None when the AppGroup does not exist.
        replicas: workload selector -> how many pods it declares; absent where that is not known.
        members: the group's numMembers.
        seen_at: pod key -> when we first saw it, on the clock of ``now``.
        unplaced: keys of pods for which the plan found no place.
        others_opened_at: see `GroupPods`.
        planned: keys of pods that the current plan places while a new plan is being made, and others wait for it; None if none is.
        awaiting_rollout: keys of pods whose node is full until a rollout removes the pods that they replace.
    """

    pods: Sequence[GroupPod]
    order: Mapping[str, int] | None = None
    replicas: Mapping[str, int] = {}
    members: int = 0
    seen_at: Mapping[str, float] = {}
    unplaced: frozenset[str] = frozenset()
    others_opened_at: Mapping[str, float] = {}
    planned: frozenset[str] | None = None
    awaiting_rollout: frozenset[str] = frozenset()


class Release(msgspec.Struct, frozen=True):
    """A pod whose gate is to be opened."""

    pod: GroupPod
    cause: Cause


class ReleaseDecision(msgspec.Struct, frozen=True):
    """The pods to release now.

    Attributes:
        releases: in the order of their workloads.
        waiting: pod key -> what it waits for.
        next_check_s: seconds until the next check; None to wait for a change.
    """

    releases: tuple[Release, ...] = ()
    waiting: Mapping[str, str] = {}
    next_check_s: float | None = None


def plan_release(queue: GroupQueue, now: float, config: GatesConfig) -> ReleaseDecision:
    """Decide which gates to open.

    Args:
        queue: the group.
        now: wall clock, seconds since 1970.
        config: the longest waits.
    """
    return _Decider(queue, now, config).decide()


def settles_in_s(queue: GroupQueue, now: float) -> float:
    """Seconds until the group's pods count as complete; 0 if they do now.

    Pods are created one after the other: while some are missing and one came just now, more will come.
    """
    live: Counter[str] = Counter(pod.workload for pod in queue.pods if pod.is_active)
    if live.total() >= queue.members and all(live[selector] >= count for selector, count in queue.replicas.items()):
        return 0.0
    newest = max((queue.seen_at.get(p.metadata.key, 0.0) for p in queue.pods if p.is_active), default=0.0)
    return max(newest + DEBOUNCE_S - now, 0.0)


class _Blocker(NamedTuple):
    """The first workload in the order that delays later ones, and why; an infinite position stands for no workload."""

    position: float = math.inf
    reason: str = ""


class _Decider:
    """Decides for one group; computes blockers per workload, not per pod, since a group may have thousands."""

    def __init__(self, queue: GroupQueue, now: float, config: GatesConfig) -> None:
        self._queue, self._now, self._config = queue, now, config
        self._live: dict[str, list[GroupPod]] = defaultdict(list)
        self._order = queue.order or {}
        self._finished: set[str] = set()
        self._has_bound: set[str] = set()
        for pod in queue.pods:
            if pod.is_active:
                self._live[pod.workload].append(pod)
                if pod.spec.node_name:
                    self._has_bound.add(pod.workload)
            elif pod.metadata.deletion_timestamp is None:
                self._finished.add(pod.workload)
        self._wakes: list[float] = []
        self._settles_s = settles_in_s(queue, now)
        sequence = sorted(self._order.items(), key=lambda entry: entry[1])
        self._unbound = self._first(sequence, self._unbound_reason)
        self._short = self._first(sequence, self._short_reason)
        self._absent = self._first(sequence, self._absent_reason)

    @staticmethod
    def _first(sequence: Sequence[tuple[str, int]], reason_of: Callable[[str], str]) -> _Blocker:
        found = (_Blocker(position, reason_of(selector)) for selector, position in sequence)
        return next((blocker for blocker in found if blocker.reason), _Blocker())

    def decide(self) -> ReleaseDecision:
        releases: list[Release] = []
        waiting: dict[str, str] = {}
        gated = [pod for pods in self._live.values() for pod in pods if pod.is_gated]
        ordered = sorted(gated, key=lambda p: (self._order.get(p.workload, math.inf), p.metadata.key))
        decided = {pod.metadata.key: self._decide_pod(pod) for pod in ordered}
        cause_of_pod_group = self._decide_pod_groups(ordered, decided)
        for pod in ordered:
            cause, reason = decided[pod.metadata.key]
            if pod.pod_group and not pod.other_gates:
                cause, reason = (
                    cause_of_pod_group[pod.pod_group],
                    reason or "its PodGroup is held by another scheduling gate",
                )
            if cause is not None:
                releases.append(Release(pod, cause))
            else:
                waiting[pod.metadata.key] = reason
        unplanned = self._unplanned(releases)
        next_check_s = max(min(self._wakes), 0.05) if waiting and self._wakes else None
        planned = tuple(release for release in releases if release.pod.metadata.key not in unplanned)
        return ReleaseDecision(planned, waiting | dict.fromkeys(unplanned, PLAN_PENDING), next_check_s)

    def _unplanned(self, releases: Sequence[Release]) -> set[str]:
        """Keys of pods that wait for the plan that is being made, and of the other pods of their PodGroups."""
        if self._queue.planned is None:
            return set()
        unplanned = {r.pod.metadata.key for r in releases if r.cause not in FORCED_CAUSES} - self._queue.planned
        groups = {r.pod.pod_group for r in releases if r.pod.metadata.key in unplanned} - {""}
        return unplanned | {r.pod.metadata.key for r in releases if r.pod.pod_group in groups}

    @staticmethod
    def _decide_pod_groups(
        ordered: Sequence[GroupPod], decided: Mapping[str, tuple[Cause | None, str]]
    ) -> dict[str, Cause | None]:
        """PodGroup -> why all of its pods are released; None where they wait.

        kube-scheduler binds no pod of a PodGroup before it has all of them. So the first whose turn it is releases all, unless one
        has another gate.
        """
        held = {pod.pod_group for pod in ordered if pod.other_gates}
        causes: dict[str, Cause | None] = {}
        for pod in ordered:
            cause, _ = decided[pod.metadata.key]
            may_go = pod.pod_group not in held or cause in FORCED_CAUSES
            causes[pod.pod_group] = causes.get(pod.pod_group) or (cause if may_go else None)
        return causes

    def _decide_pod(self, pod: GroupPod) -> tuple[Cause | None, str]:
        if pod.other_gates:
            # Until those open the pod is not scheduled, so that our gate delays nothing.
            return None, f"held by another scheduling gate: {', '.join(pod.other_gates)}"
        age_s = min(pod.age_s(self._now), self._now - self._queue.others_opened_at.get(pod.metadata.key, -math.inf))
        if age_s >= self._config.max_wait_s:
            return "waited", ""
        self._wakes.append(self._config.max_wait_s - age_s)
        if pod.workload not in self._order:
            exists = self._queue.order is not None
            if age_s >= self._config.missing_workload_timeout_s:
                return ("no-workload" if exists else "no-group"), ""
            self._wakes.append(self._config.missing_workload_timeout_s - age_s)
            return None, "its AppGroup has no such workload" if exists else "its AppGroup does not exist"
        if pod.metadata.key in self._queue.unplaced and self._settles_s <= 0:
            return "unplaced", ""
        reason = self._delay_reason(pod, age_s)
        if not reason and pod.metadata.key in self._queue.awaiting_rollout:
            reason = "its node has no room until the pods that it replaces are gone"
            self._wakes.append(ROLLOUT_PAUSE_S)
        return (None, reason) if reason else ("turn", "")

    def _delay_reason(self, pod: GroupPod, age_s: float) -> str:
        """Why a pod has to wait for other pods; empty when it does not."""
        if self._settles_s > 0:
            self._wakes.append(self._settles_s)
            return "the group's pods are still being created"
        position = self._order[pod.workload]
        if self._unbound.position < position:
            return self._unbound.reason
        if age_s >= self._config.missing_workload_timeout_s:
            return ""
        # If its workload has bound pods, this one comes from a scale-out or a rollout. Workloads that have no pods by then, such as
        # a Job that was deleted after it finished, are not expected.
        first = self._short if pod.workload in self._has_bound else min(self._short, self._absent)
        if first.position < position:
            self._wakes.append(self._config.missing_workload_timeout_s - age_s)
            return first.reason
        return ""

    def _unbound_reason(self, selector: str) -> str:
        for pod in self._live.get(selector, ()):
            skipped = pod.other_gates or pod.metadata.key in self._queue.awaiting_rollout or self._is_given_up(pod)
            if not pod.spec.node_name and not skipped:
                return f"workload {selector} comes first, and its pod {pod.metadata.name} is not bound yet"
        return ""

    def _short_reason(self, selector: str) -> str:
        missing = self._queue.replicas.get(selector, 0) - len(self._live.get(selector, ()))
        return f"workload {selector} comes first, and {missing} of its pods are missing" if missing > 0 else ""

    def _absent_reason(self, selector: str) -> str:
        """Where the number of replicas is unknown, one pod is expected, unless the workload had pods that have finished."""
        known = selector in self._queue.replicas or selector in self._finished or self._live.get(selector)
        return "" if known else f"workload {selector} comes first, and its pods do not exist yet"

    def _is_given_up(self, pod: GroupPod) -> bool:
        """Whether later workloads no longer wait for a pod for which the scheduler found no node.

        So it is if the plan has no node for it either, if its pod affinity may require a pod that comes later, or after a time.
        """
        if pod.is_gated or not pod.found_no_node:
            return False
        near = pod.spec.affinity.pod_affinity if pod.spec.affinity else None
        if pod.metadata.key in self._queue.unplaced or (
            near is not None and near.required_during_scheduling_ignored_during_execution
        ):
            return True
        scheduled = pod.condition("PodScheduled")
        since = scheduled.last_transition_time if scheduled is not None else None
        left_s = parse_time(since) + self._config.missing_workload_timeout_s - self._now if since else 0.0
        if left_s > 0:
            self._wakes.append(left_s)
        return left_s <= 0
