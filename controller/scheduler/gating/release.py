"""Decides which gates to open, and when: TopologicalSort (docs/contracts.md, section 6). No I/O.

A pod is released when all pods of every earlier workload are bound. Pods that are missing or cannot be placed delay later pods for a
bounded time. Pods without a node in the plan are released together at once, because autoscalers react only to pods that were refused.
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

ReleaseCause = Literal["turn", "no-group", "no-workload", "waited", "unplaced"]
"""``turn``: no earlier workload delays the pod; ``no-group``: the AppGroup does not exist; ``no-workload``: it has no such workload; ``waited``: the
pod has waited for ``maxWaitS``; ``unplaced``: the plan has no node for the pod."""
CAUSES_WITHOUT_PLAN: frozenset[ReleaseCause] = frozenset({"no-group", "no-workload", "waited"})
"""Causes for which a pod does not wait for a pending plan."""

CREATION_PAUSE_S = 0.5
"""After this time without a new pod, no more pods of a group are expected."""
MIN_CHECK_INTERVAL_S = 0.05
"""The next check is made after this time at the earliest, so that several are made together."""
ROLLOUT_STEP_S = 20.0
"""Time in which a rollout takes its next step: the Deployment controller writes 20 times a second, for all rollouts together."""


class PodDecision(NamedTuple):
    """The cause of a pod's release; or None and the reason for its wait."""

    cause: ReleaseCause | None
    wait_reason: str = ""


class ReleaseInputs(msgspec.Struct, frozen=True):
    """A group's pods, and the facts on which their release depends.

    Attributes:
        pods: of the group, also finished pods.
        positions: workload selector -> position in the topological order; None if the AppGroup does not exist.
        declared_replicas: workload selector -> number of declared pods; without workloads for which it is unknown.
        num_members: spec.numMembers of the AppGroup; 0 if it does not exist.
        first_seen_at, other_gates_opened_at: see `GroupPods`.
        is_plan_pending: whether a new plan is being made; pods that are not in ``placed`` wait for it, except for `CAUSES_WITHOUT_PLAN`.
        placed, unplaced: keys of pods for which the plan has a node, and of pods for which it has none.
        awaiting_rollout: keys of pods whose nodes are full until a rollout removes the pods that they replace.
    """

    pods: Sequence[Pod]
    positions: Mapping[str, int] | None = None
    declared_replicas: Mapping[str, int] = {}
    num_members: int = 0
    first_seen_at: Mapping[str, float] = {}
    other_gates_opened_at: Mapping[str, float] = {}
    is_plan_pending: bool = False
    placed: frozenset[str] = frozenset()
    unplaced: frozenset[str] = frozenset()
    awaiting_rollout: frozenset[str] = frozenset()


class Release(msgspec.Struct, frozen=True):
    """A pod whose gate is to be opened."""

    pod: Pod
    cause: ReleaseCause


class ReleaseDecision(msgspec.Struct, frozen=True):
    """The pods to release now, and the pods that wait.

    Attributes:
        releases: in topological order of their workloads.
        wait_reasons: key of each waiting pod -> the reason for its wait.
        awaiting_plan: keys of those that would be released if their group's plan were not pending.
        next_check_s: seconds until the next check; None to wait for a change.
    """

    releases: tuple[Release, ...] = ()
    wait_reasons: Mapping[str, str] = {}
    awaiting_plan: frozenset[str] = frozenset()
    next_check_s: float | None = None


def decide_releases(inputs: ReleaseInputs, now: float, config: GatesConfig) -> ReleaseDecision:
    """Decide which gates of a group to open; ``now`` is the wall clock, unix seconds."""
    return _ReleaseDecider(inputs, now, config).decide()


def seconds_until_complete(inputs: ReleaseInputs, now: float) -> float:
    """Seconds until no more pods of the group are expected; 0 if none are expected now.

    Pods are created one after the other: while pods are missing and the newest pod is young, more are expected.
    """
    active = Counter(pod.workload for pod in inputs.pods if pod.is_active)
    has_all_declared = all(active[selector] >= count for selector, count in inputs.declared_replicas.items())
    if active.total() >= inputs.num_members and has_all_declared:
        return 0.0
    active_keys = (pod.metadata.key for pod in inputs.pods if pod.is_active)
    newest_seen_at = max((inputs.first_seen_at.get(key, 0.0) for key in active_keys), default=0.0)
    return max(newest_seen_at + CREATION_PAUSE_S - now, 0.0)


class _Blocker(NamedTuple):
    """The position of the first workload that delays later workloads, and the reason; by default no workload does."""

    position: float = math.inf
    reason: str = ""


class _ReleaseDecider:
    """Decides for one group. Blockers are computed per workload, because a group may have thousands of pods."""

    def __init__(self, inputs: ReleaseInputs, now: float, config: GatesConfig) -> None:
        self._inputs, self._now, self._config = inputs, now, config
        self._active_by_workload: dict[str, list[Pod]] = defaultdict(list)
        self._positions = inputs.positions or {}
        self._workloads_with_finished: set[str] = set()
        self._workloads_with_bound: set[str] = set()
        for pod in inputs.pods:
            if pod.is_active:
                self._active_by_workload[pod.workload].append(pod)
                if pod.spec.node_name:
                    self._workloads_with_bound.add(pod.workload)
            elif pod.metadata.deletion_timestamp is None:
                self._workloads_with_finished.add(pod.workload)
        self._check_delays_s: list[float] = []
        self._complete_in_s = seconds_until_complete(inputs, now)
        self._unbound_blocker = self._find_blocker(self._unbound_reason)
        self._missing_blocker = self._find_blocker(self._missing_reason)
        self._no_pods_blocker = self._find_blocker(self._no_pods_reason)

    def _find_blocker(self, reason_of: Callable[[str], str]) -> _Blocker:
        """The first workload for which ``reason_of`` returns a reason."""
        in_order = sorted(self._positions.items(), key=lambda entry: entry[1])
        blockers = (_Blocker(position, reason_of(selector)) for selector, position in in_order)
        return next((blocker for blocker in blockers if blocker.reason), _Blocker())

    def decide(self) -> ReleaseDecision:
        releases: list[Release] = []
        wait_reasons: dict[str, str] = {}
        gated = [pod for pods in self._active_by_workload.values() for pod in pods if pod.is_gated]
        ordered = sorted(gated, key=lambda p: (self._positions.get(p.workload, math.inf), p.metadata.key))
        decisions = {pod.metadata.key: self._decide_pod(pod) for pod in ordered}
        cause_by_pod_group = self._causes_by_pod_group([pod for pod in ordered if pod.pod_group], decisions)
        for pod in ordered:
            cause, wait_reason = decisions[pod.metadata.key]
            if pod.pod_group and not pod.other_gates:
                cause = cause_by_pod_group[pod.pod_group]
                wait_reason = wait_reason or "its PodGroup is held by another scheduling gate"
            if cause is not None:
                releases.append(Release(pod, cause))
            else:
                wait_reasons[pod.metadata.key] = wait_reason
        next_check_s = None
        if wait_reasons and self._check_delays_s:
            next_check_s = max(min(self._check_delays_s), MIN_CHECK_INTERVAL_S)
        awaiting_plan = self._keys_awaiting_plan(releases)
        released = tuple(release for release in releases if release.pod.metadata.key not in awaiting_plan)
        wait_reasons |= dict.fromkeys(awaiting_plan, "the plan of its group is being made")
        return ReleaseDecision(released, wait_reasons, awaiting_plan, next_check_s)

    def _keys_awaiting_plan(self, releases: Sequence[Release]) -> frozenset[str]:
        """Keys of the releases that wait for a pending plan, and of the other pods of their PodGroups."""
        if not self._inputs.is_plan_pending:
            return frozenset()
        keys = {r.pod.metadata.key for r in releases if r.cause not in CAUSES_WITHOUT_PLAN} - self._inputs.placed
        pod_groups = {r.pod.pod_group for r in releases if r.pod.metadata.key in keys} - {""}
        return frozenset(keys | {r.pod.metadata.key for r in releases if r.pod.pod_group in pod_groups})

    @staticmethod
    def _causes_by_pod_group(
        pods: Sequence[Pod], decisions: Mapping[str, PodDecision]
    ) -> dict[str, ReleaseCause | None]:
        """PodGroup -> cause of the release of all its pods; None if they wait.

        kube-scheduler binds no pod of a PodGroup before it has all of them. So the first pod that is released releases all. If a pod of the
        PodGroup has another gate, only `CAUSES_WITHOUT_PLAN` do so.
        """
        with_other_gates = {pod.pod_group for pod in pods if pod.other_gates}
        causes: dict[str, ReleaseCause | None] = {}
        for pod in pods:
            cause = decisions[pod.metadata.key].cause
            if pod.pod_group in with_other_gates and cause not in CAUSES_WITHOUT_PLAN:
                cause = None
            causes[pod.pod_group] = causes.get(pod.pod_group) or cause
        return causes

    def _decide_pod(self, pod: Pod) -> PodDecision:
        if pod.other_gates:
            # kube-scheduler does not schedule the pod before its other gates open, so our gate delays nothing.
            return PodDecision(None, f"held by another scheduling gate: {', '.join(pod.other_gates)}")
        other_gates_opened_at = self._inputs.other_gates_opened_at.get(pod.metadata.key, -math.inf)
        waited_s = min(pod.age_s(self._now), self._now - other_gates_opened_at)
        if waited_s >= self._config.max_wait_s:
            return PodDecision("waited")
        self._check_delays_s.append(self._config.max_wait_s - waited_s)
        if pod.workload not in self._positions:
            group_exists = self._inputs.positions is not None
            if waited_s >= self._config.missing_workload_timeout_s:
                return PodDecision("no-workload" if group_exists else "no-group")
            self._check_delays_s.append(self._config.missing_workload_timeout_s - waited_s)
            reason = "its AppGroup has no such workload" if group_exists else "its AppGroup does not exist"
            return PodDecision(None, reason)
        if pod.metadata.key in self._inputs.unplaced and self._complete_in_s <= 0:
            return PodDecision("unplaced")
        reason = self._delay_reason(pod, waited_s)
        if not reason and pod.metadata.key in self._inputs.awaiting_rollout:
            reason = "its node is full until the pods that it replaces are gone"
            self._check_delays_s.append(ROLLOUT_STEP_S)
        return PodDecision(None, reason) if reason else PodDecision("turn")

    def _delay_reason(self, pod: Pod, waited_s: float) -> str:
        """The reason for which a pod waits for other pods; empty if it does not wait for any."""
        if self._complete_in_s > 0:
            self._check_delays_s.append(self._complete_in_s)
            return "the group's pods are still being created"
        position = self._positions[pod.workload]
        if self._unbound_blocker.position < position:
            return self._unbound_blocker.reason
        if waited_s >= self._config.missing_workload_timeout_s:
            return ""
        blocker = self._missing_blocker
        if pod.workload not in self._workloads_with_bound:
            # With bound pods, the workload is scaled out or rolled out: the group has started, so a workload without pods gets none, such
            # as a finished Job that was deleted.
            blocker = min(blocker, self._no_pods_blocker)
        if blocker.position < position:
            self._check_delays_s.append(self._config.missing_workload_timeout_s - waited_s)
            return blocker.reason
        return ""

    def _unbound_reason(self, selector: str) -> str:
        for pod in self._active_by_workload.get(selector, ()):
            delay_s = 0.0 if pod.spec.node_name else self._later_workloads_delay_s(pod)
            if delay_s > 0:
                self._check_delays_s += [delay_s] if delay_s < math.inf else []
                return f"workload {selector} comes first, and its pod {pod.metadata.name} is not bound yet"
        return ""

    def _missing_reason(self, selector: str) -> str:
        missing = self._inputs.declared_replicas.get(selector, 0) - len(self._active_by_workload.get(selector, ()))
        return f"workload {selector} comes first, and {missing} of its pods are missing" if missing > 0 else ""

    def _no_pods_reason(self, selector: str) -> str:
        """Why later workloads wait for one without pods: its number of replicas is unknown, and it has no finished pods."""
        is_declared = selector in self._inputs.declared_replicas
        if is_declared or selector in self._workloads_with_finished or self._active_by_workload.get(selector):
            return ""
        return f"workload {selector} comes first, and its pods do not exist yet"

    def _later_workloads_delay_s(self, pod: Pod) -> float:
        """Seconds for which later workloads still wait for an unbound pod; infinite if until it is bound.

        They wait for ``missingWorkloadTimeoutS`` if the scheduler found no node for the pod; not at all if the plan has no node either,
        if the pod's affinity may require a later pod, if another gate holds the pod, or if the pod waits for a rollout.
        """
        if pod.other_gates or pod.metadata.key in self._inputs.awaiting_rollout:
            return 0.0
        if pod.is_gated or not pod.status.scheduling_failed:
            return math.inf
        pod_affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity else None
        requires_pods = pod_affinity is not None and pod_affinity.required_during_scheduling_ignored_during_execution
        if requires_pods or pod.metadata.key in self._inputs.unplaced:
            return 0.0
        scheduled = pod.condition("PodScheduled")
        failed_since = scheduled.last_transition_time if scheduled is not None else None
        timeout_s = self._config.missing_workload_timeout_s
        return parse_time(failed_since) + timeout_s - self._now if failed_since else 0.0
