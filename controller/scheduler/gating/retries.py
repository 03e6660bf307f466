"""Handles pods for which the scheduler found no node: requeues or replaces them. Pure but for its memory.

kube-scheduler does not watch AppGroups and NetworkTopologies; a pod that an extender refused waits for an event of nodes or pods,
or for five minutes. A change of the pod itself requeues it at once, so we annotate it. In affinity mode the placement is fixed in
the pod, so the pod is deleted if its owner replaces it without a penalty. If required terms could not be met, later pods of that
class get preferred terms only.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from controller.cluster.pods import GroupPod, Target, target_of
from controller.scheduler.affinity import NARROWED_ANNOTATION, is_replaceable
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.gating.patches import PodPatch, placement_of_pod, retry_patch
from controller.scheduler.placement.planner import Plan
from controller.scheduler.state import State
from kubekit.owners import controller_of
from kubekit.waiting import backoff_s

OUR_WORDS = "Workload dependencies"
"""In every reason that the extender refuses a node for."""
RETRY_EVERY_S, _LONGEST_RETRY_S, _FREE_TRIES = 1.0, 60.0, 8
"""After some retries, a pod is retried with exponential back-off."""
REPLACE_AFTER_S, _LONGEST_BACKOFF_S = 10.0, 600.0
"""A pod with fixed affinity is replaced after it was unschedulable for so long; doubles with each pod of its owner."""
_REMEMBERED_OWNERS, _REMEMBERED_CLASSES = 1000, 10_000


class Retry(msgspec.Struct, frozen=True):
    """A pod to be tried again.

    Attributes:
        answer: identifies the filter's current answer.
    """

    pod: GroupPod
    patch: PodPatch
    answer: int


class Replace(msgspec.Struct, frozen=True):
    """A pod to delete, so that its owner replaces it."""

    pod: GroupPod
    note: str


class Tell(msgspec.Struct, frozen=True):
    """A pod with fixed affinity that cannot be replaced, to be reported."""

    pod: GroupPod
    note: str


Action = Retry | Replace | Tell


class _Pending(msgspec.Struct):
    """What is known of a pod that found no node: since when, the filter's last answer, its retries, what was done about it."""

    since: float
    answer: int | None = None
    tried_at: float = float("-inf")
    tries: int = 0
    is_reported: bool = False
    is_forbidden: bool = False


class StuckPods:
    """Remembers the filter's answer for each stuck pod, and how often an owner's pods were replaced.

    Attributes:
        may_delete: whether the controller has the right to.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._pending: dict[str, _Pending] = {}
        self._replaced: dict[str, tuple[float, int]] = {}
        self._unmet: dict[str, None] = {}
        self.may_delete = True

    def forget(self, key: str) -> None:
        """A pod is gone."""
        self._pending.pop(key, None)

    def may_require_zones(self, pod: GroupPod) -> bool:
        """Whether zones may be required of a pod: only if it can be replaced, and such terms worked before."""
        return self.may_delete and is_replaceable(pod) and class_of(pod) not in self._unmet

    def on_forbidden(self, pod: GroupPod) -> None:
        """The API server forbade the deletion of this pod."""
        if pod.metadata.key in self._pending:
            self._pending[pod.metadata.key].is_forbidden = True

    def plan(
        self, pods: Sequence[GroupPod], plan: Plan | None, state: State, now: float
    ) -> tuple[list[Action], float | None]:
        """Decide about a group's unschedulable pods, and when to check again.

        Args:
            pods: the group's.
            plan: its plan, in which stuck pods are not held to their old targets.
            state: the cluster.
            now: wall clock.
        """
        actions: list[Action] = []
        waits: list[float] = []
        for pod in pods:
            key = pod.metadata.key
            if not pod.waiting or pod.gated or not pod.found_no_node:
                self.forget(key)
                continue
            self._pending.setdefault(key, _Pending(now))
            target = plan.targets.get(key) if plan is not None else None
            frozen = placement_of_pod(pod, self._config, state) == "affinity"
            action, wait_s = (self._replacement if frozen else self._retry)(pod, target, state, now)
            if action is not None:
                actions.append(action)
            if wait_s is not None:
                waits.append(wait_s)
        return actions, min(waits, default=None)

    def _retry(
        self, pod: GroupPod, target: Target | None, state: State, now: float
    ) -> tuple[Action | None, float | None]:
        pending, before = self._pending[pod.metadata.key], target_of(pod)
        moved = target is not None and (before is None or before.node != target.node)
        answer = _answer(state, pod)
        found = pod.condition("PodScheduled")
        ours = found is not None and OUR_WORDS in found.message
        changed = ours and pending.answer != answer
        # Filter passed only the planned host or zone; from now on it answers by NetworkOverhead's rule.
        narrowed = before is not None and pending.answer is None
        if not moved and not changed and not narrowed:
            return None, None
        left_s = pending.tried_at + backoff_s(pending.tries + 1 - _FREE_TRIES, RETRY_EVERY_S, _LONGEST_RETRY_S) - now
        if left_s > 0:
            return None, left_s
        patch = retry_patch(pod, target if moved else None, f"{now:.3f}")
        return Retry(pod, patch, answer), None

    def on_retried(self, retry: Retry, now: float) -> None:
        """Record a written retry."""
        pending = self._pending.get(retry.pod.metadata.key)
        if pending is not None:
            pending.answer, pending.tried_at, pending.tries = retry.answer, now, pending.tries + 1

    def _replacement(
        self, pod: GroupPod, target: Target | None, state: State, now: float
    ) -> tuple[Action | None, float | None]:
        pending = self._pending[pod.metadata.key]
        if not pod.metadata.annotation(NARROWED_ANNOTATION):
            # No affinity of ours excludes nodes; the scheduler retries it anyway.
            return None, None
        left_s = pending.since + REPLACE_AFTER_S - now
        if left_s > 0:
            return None, left_s
        before = target_of(pod)
        moved = before is not None and target is not None and before.location != target.location
        answer = _answer(state, pod)
        pending.answer = answer if pending.answer is None else pending.answer
        if not self.may_delete or pending.is_forbidden or not is_replaceable(pod):
            return self._give_up(pod), None
        if moved or pending.answer != answer:
            return self._replace(pod, target, now)
        self._remember_unmet(pod)
        return Replace(
            pod, "no node is left where its frozen node affinity allows; its successor gets preferred terms only"
        ), None

    def _replace(self, pod: GroupPod, target: Target | None, now: float) -> tuple[Action | None, float | None]:
        """Replace a pod for which there is another place, with exponential back-off per owner."""
        owner = class_of(pod)
        last, times = self._replaced.get(owner, (float("-inf"), 0))
        left_s = last + backoff_s(times + 1, REPLACE_AFTER_S, _LONGEST_BACKOFF_S) - now
        if left_s > 0:
            return None, left_s
        self._replaced.pop(owner, None)
        self._replaced[owner] = (now, times + 1)
        if len(self._replaced) > _REMEMBERED_OWNERS:
            self._replaced.pop(next(iter(self._replaced)))
        where = f"; zone {target.zone} has room" if target is not None else ""
        note = f"no node is left where its frozen node affinity allows, and the costs have moved{where}"
        return Replace(pod, note), None

    def _give_up(self, pod: GroupPod) -> Tell | None:
        """The pod cannot be replaced: we lack the right, or it has no owner that replaces it."""
        self._remember_unmet(pod)
        pending = self._pending[pod.metadata.key]
        if pending.is_reported:
            return None
        pending.is_reported = True
        who = (
            "the controller has no right to delete it"
            if is_replaceable(pod)
            else "its owner would not replace it without a penalty"
        )
        note = f"no node is left where its frozen node affinity allows, and {who}: delete it to have it placed again"
        return Tell(pod, note)

    def _remember_unmet(self, pod: GroupPod) -> None:
        self._unmet[class_of(pod)] = None
        if len(self._unmet) > _REMEMBERED_CLASSES:
            self._unmet.pop(next(iter(self._unmet)))


def class_of(pod: GroupPod) -> str:
    """The class of equal pods: those of one owner; each of a StatefulSet is its own, because of its volumes."""
    owner = controller_of(pod.metadata)
    if owner is None:
        return pod.metadata.key
    return f"{owner.uid}/{pod.metadata.name}" if owner.kind == "StatefulSet" else owner.uid


def _answer(state: State, pod: GroupPod) -> int:
    """A number that changes when filter's answer for the pod changes."""
    score_table = state.score_table_of(pod)
    if score_table.neutral:
        return hash(score_table.neutral)
    passing = tuple(node_score.passes for node_score in score_table.by_location)
    return hash((passing, frozenset(node for node, node_score in score_table.by_node.items() if node_score.passes)))
