"""Decides which gates to open, and when: TopologicalSort (docs/contracts, section 6). Pure.

A pod is released when the pods of every earlier workload are bound. Pods that are missing or cannot be placed delay later pods for a
bounded time. Pods that the plan places on no node are released at once and all together, since an autoscaler reacts only to pods that the
scheduler has refused.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from controller.cluster.pods import Pod
from controller.scheduler.config import GatesConfig
from kubekit.wire import parse_time

Cause = Literal["turn", "no-group", "no-workload", "waited", "unplaced"]
"""Cause of a release: it is the pod's turn; its AppGroup does not exist; the group has no such workload; the pod has waited for
``maxWaitS``; the plan has no node for it."""

DEBOUNCE_S = 0.5
"""Pods of a group are created one by one; the plan should know all of them."""
MIN_CHECK_S = 0.05
"""Checks that are due sooner are made together."""
ROLLOUT_PAUSE_S = 20.0
"""Time in which a rollout takes its next step: the Deployment controller writes 20 times a second, for all rollouts together."""
PLAN_PENDING = "the plan of its group is being made"

PodDecision = tuple[Cause | None, str]
"""The cause of a pod's release; or None and the reason of its wait."""
FORCED_CAUSES: frozenset[Cause] = frozenset({"no-group", "no-workload", "waited"})
"""Causes that do not wait for a plan."""


class GroupQueue(msgspec.Struct, frozen=True):
    """A group's pods, and what the release depends on.

    Attributes:
        pods: its pods, finished ones included.
        order: workload selector -> position in the order; None if the AppGroup does not exist.
        replicas: workload selector -> number of declared pods; absent if unknown.
        members: the group's numMembers.
        seen_at, others_opened_at: see `GroupPods`.
        unplaced: keys of pods that the plan places on no node.
        planned: while a new plan is being made, keys of pods that the current plan places, and which need not wait for it; else None.
        awaiting_rollout: keys of pods whose node is full until a rollout removes the pods that they replace.
    """

    pods: Sequence[Pod]
    order: Mapping[str, int] | None = None
    replicas: Mapping[str, int] = {}
    members: int = 0
    seen_at: Mapping[str, float] = {}
    others_opened_at: Mapping[str, float] = {}
    unplaced: frozenset[str] = frozenset()
    planned: frozenset[str] | None = None
    awaiting_rollout: frozenset[str] = frozenset()


class Release(msgspec.Struct, frozen=True):
    """A pod whose gate is to be opened."""

    pod: Pod
    cause: Cause


class ReleaseDecision(msgspec.Struct, frozen=True):
    """The pods to release now, and the pods that wait.

    Attributes:
        releases: in the order of their workloads.
        waiting: pod key -> reason of its wait.
        next_check_s: seconds until the next check; None to wait for a change.
    """

    releases: tuple[Release, ...] = ()
    waiting: Mapping[str, str] = {}
    next_check_s: float | None = None


def plan_release(queue: GroupQueue, now: float, config: GatesConfig) -> ReleaseDecision:
    """Decide which gates of a group to open; ``now`` is the wall clock, seconds since 1970."""
    return _Decider(queue, now, config).decide()


def settles_in_s(queue: GroupQueue, now: float) -> float:
    """Seconds until the group's pods count as complete; 0 if they do now.

    Pods are created one after the other: while pods are missing and the newest is young, more are expected.
    """
    active = Counter(pod.workload for pod in queue.pods if pod.is_active)
    if active.total() >= queue.members and all(active[selector] >= count for selector, count in queue.replicas.items()):
        return 0.0
    newest = max((queue.seen_at.get(p.metadata.key, 0.0) for p in queue.pods if p.is_active), default=0.0)
    return max(newest + DEBOUNCE_S - now, 0.0)


class _Blocker(NamedTuple):
    """The first workload in the order that delays later workloads, and the reason; the default delays none."""

    position: float = math.inf
    reason: str = ""


class _Decider:
    """Decides for one group; computes blockers per workload, not per pod, since a group may have thousands."""

    def __init__(self, queue: GroupQueue, now: float, config: GatesConfig) -> None:
        self._queue, self._now, self._config = queue, now, config
        self._active: dict[str, list[Pod]] = defaultdict(list)
        self._order = queue.order or {}
        self._workloads_with_finished: set[str] = set()
        self._workloads_with_bound: set[str] = set()
        for pod in queue.pods:
            if pod.is_active:
                self._active[pod.workload].append(pod)
                if pod.spec.node_name:
                    self._workloads_with_bound.add(pod.workload)
            elif pod.metadata.deletion_timestamp is None:
                self._workloads_with_finished.add(pod.workload)
        self._checks_in_s: list[float] = []
        self._settles_s = settles_in_s(queue, now)
        sequence = sorted(self._order.items(), key=lambda entry: entry[1])
        self._first_unbound = self._first(sequence, self._unbound_reason)
        self._first_short = self._first(sequence, self._short_reason)
        self._first_absent = self._first(sequence, self._absent_reason)

    @staticmethod
    def _first(sequence: Sequence[tuple[str, int]], reason_of: Callable[[str], str]) -> _Blocker:
        blockers = (_Blocker(position, reason_of(selector)) for selector, position in sequence)
        return next((blocker for blocker in blockers if blocker.reason), _Blocker())

    def decide(self) -> ReleaseDecision:
        releases: list[Release] = []
        waiting: dict[str, str] = {}
        gated = [pod for pods in self._active.values() for pod in pods if pod.is_gated]
        ordered = sorted(gated, key=lambda p: (self._order.get(p.workload, math.inf), p.metadata.key))
        decided = {pod.metadata.key: self._decide_pod(pod) for pod in ordered}
        cause_of_pod_group = self._decide_pod_groups(ordered, decided)
        for pod in ordered:
            cause, reason = decided[pod.metadata.key]
            if pod.pod_group and not pod.other_gates:
                cause = cause_of_pod_group[pod.pod_group]
                reason = reason or "its PodGroup is held by another scheduling gate"
            if cause is not None:
                releases.append(Release(pod, cause))
            else:
                waiting[pod.metadata.key] = reason
        unplanned = self._unplanned(releases)
        next_check_s = max(min(self._checks_in_s), MIN_CHECK_S) if waiting and self._checks_in_s else None
        planned = tuple(release for release in releases if release.pod.metadata.key not in unplanned)
        return ReleaseDecision(planned, waiting | dict.fromkeys(unplanned, PLAN_PENDING), next_check_s)

    def _unplanned(self, releases: Sequence[Release]) -> set[str]:
        """Keys of the releases that wait for the plan that is being made, and of the other pods of their PodGroups."""
        if self._queue.planned is None:
            return set()
        unplanned = {r.pod.metadata.key for r in releases if r.cause not in FORCED_CAUSES} - self._queue.planned
        pod_groups = {r.pod.pod_group for r in releases if r.pod.metadata.key in unplanned} - {""}
        return unplanned | {r.pod.metadata.key for r in releases if r.pod.pod_group in pod_groups}

    @staticmethod
    def _decide_pod_groups(ordered: Sequence[Pod], decided: Mapping[str, PodDecision]) -> dict[str, Cause | None]:
        """PodGroup -> cause of the release of all its pods; None if they wait.

        kube-scheduler binds no pod of a PodGroup before it has all of them. So the first pod whose turn it is releases all, unless a pod
        of the PodGroup has another gate.
        """
        with_other_gates = {pod.pod_group for pod in ordered if pod.other_gates}
        causes: dict[str, Cause | None] = {}
        for pod in ordered:
            cause, _ = decided[pod.metadata.key]
            if pod.pod_group in with_other_gates and cause not in FORCED_CAUSES:
                cause = None
            causes[pod.pod_group] = causes.get(pod.pod_group) or cause
        return causes

    def _decide_pod(self, pod: Pod) -> PodDecision:
        if pod.other_gates:
            # The pod is not scheduled before these open, so our gate delays nothing.
            return None, f"held by another scheduling gate: {', '.join(pod.other_gates)}"
        age_s = min(pod.age_s(self._now), self._now - self._queue.others_opened_at.get(pod.metadata.key, -math.inf))
        if age_s >= self._config.max_wait_s:
            return "waited", ""
        self._checks_in_s.append(self._config.max_wait_s - age_s)
        if pod.workload not in self._order:
            group_exists = self._queue.order is not None
            if age_s >= self._config.missing_workload_timeout_s:
                return ("no-workload" if group_exists else "no-group"), ""
            self._checks_in_s.append(self._config.missing_workload_timeout_s - age_s)
            return None, "its AppGroup has no such workload" if group_exists else "its AppGroup does not exist"
        if pod.metadata.key in self._queue.unplaced and self._settles_s <= 0:
            return "unplaced", ""
        reason = self._delay_reason(pod, age_s)
        if not reason and pod.metadata.key in self._queue.awaiting_rollout:
            reason = "its node is full until the pods that it replaces are gone"
            self._checks_in_s.append(ROLLOUT_PAUSE_S)
        return (None, reason) if reason else ("turn", "")

    def _delay_reason(self, pod: Pod, age_s: float) -> str:
        """Reason for which a pod waits for other pods; empty if it does not."""
        if self._settles_s > 0:
            self._checks_in_s.append(self._settles_s)
            return "the group's pods are still being created"
        position = self._order[pod.workload]
        if self._first_unbound.position < position:
            return self._first_unbound.reason
        if age_s >= self._config.missing_workload_timeout_s:
            return ""
        blocker = self._first_short
        if pod.workload not in self._workloads_with_bound:
            # After the first bound pod, a pod comes from a scale-out or a rollout: workloads without pods, such as a Job that was deleted
            # after it finished, are not expected any more.
            blocker = min(blocker, self._first_absent)
        if blocker.position < position:
            self._checks_in_s.append(self._config.missing_workload_timeout_s - age_s)
            return blocker.reason
        return ""

    def _unbound_reason(self, selector: str) -> str:
        for pod in self._active.get(selector, ()):
            if not pod.spec.node_name and not self._may_be_overtaken(pod):
                return f"workload {selector} comes first, and its pod {pod.metadata.name} is not bound yet"
        return ""

    def _short_reason(self, selector: str) -> str:
        missing = self._queue.replicas.get(selector, 0) - len(self._active.get(selector, ()))
        return f"workload {selector} comes first, and {missing} of its pods are missing" if missing > 0 else ""

    def _absent_reason(self, selector: str) -> str:
        """If the number of replicas is unknown, one pod is expected, unless the workload has finished pods."""
        if selector in self._queue.replicas or selector in self._workloads_with_finished or self._active.get(selector):
            return ""
        return f"workload {selector} comes first, and its pods do not exist yet"

    def _may_be_overtaken(self, pod: Pod) -> bool:
        """Whether later workloads do not wait for an unbound pod.

        They wait for a pod for which the scheduler found no node until ``missingWorkloadTimeoutS`` is over, but not if the plan has no
        node for it either, or its pod affinity may require a later pod.
        """
        if pod.other_gates or pod.metadata.key in self._queue.awaiting_rollout:
            return True
        if pod.is_gated or not pod.status.scheduling_failed:
            return False
        pod_affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity else None
        requires_pods = pod_affinity is not None and pod_affinity.required_during_scheduling_ignored_during_execution
        if requires_pods or pod.metadata.key in self._queue.unplaced:
            return True
        scheduled = pod.condition("PodScheduled")
        since = scheduled.last_transition_time if scheduled is not None else None
        left_s = parse_time(since) + self._config.missing_workload_timeout_s - self._now if since else 0.0
        if left_s > 0:
            self._checks_in_s.append(left_s)
        return left_s <= 0
