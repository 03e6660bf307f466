"""Decides about pods for which the scheduler found no node: requeues or replaces them.

kube-scheduler does not watch AppGroups and NetworkTopologies; a pod that an extender refused waits for an event of nodes or pods,
or for five minutes. A change of the pod itself requeues it at once, so we annotate it. In affinity mode the placement is fixed in
the pod, so the pod is deleted if its owner replaces it without a penalty. If no node met the required terms, later pods of that owner
get preferred terms only.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from controller.cluster.pods import Pod, Target, target_of
from controller.scheduler.affinity import NARROWED_ANNOTATION, is_replaceable
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.gating.patches import PodPatch, placement_of_pod, retry_patch
from controller.scheduler.placement.planner import Plan
from controller.scheduler.state import State
from kubekit.owners import controller_of
from kubekit.waiting import backoff_delay_s

REFUSAL_TEXT = "Workload dependencies"
"""Part of every reason for which the extender refuses a node."""
RETRY_EVERY_S, _MAX_RETRY_S, _QUICK_TRIES = 1.0, 60.0, 8
"""After the quick tries, a pod is retried with exponential back-off."""
REPLACE_AFTER_S, _MAX_REPLACE_S = 10.0, 600.0
"""A pod with fixed affinity is replaced after this time without a node; doubles with each replaced pod of its owner."""
_MAX_REPLACEMENTS, _MAX_UNMET = 1000, 10_000
"""Numbers of owners that are remembered."""


class Retry(msgspec.Struct, frozen=True):
    """A pod to requeue in the scheduler, with the patch for it and a hash of the filter's current answer."""

    pod: Pod
    patch: PodPatch
    answer: int


class Replace(msgspec.Struct, frozen=True):
    """A pod to delete, so that its owner replaces it; the note is for its event."""

    pod: Pod
    note: str


class Report(msgspec.Struct, frozen=True):
    """A pod with fixed affinity that a person must delete, because we cannot; the note is for its event."""

    pod: Pod
    note: str


Action = Retry | Replace | Report


class _History(msgspec.Struct):
    """History of a pod that found no node.

    Attributes:
        since: when it was first seen without a node.
        answer: hash of the filter's answer at the last retry or, for a fixed affinity, at the first decision.
        last_try_at, tries: time and number of retries.
        is_reported: whether a `Report` was made.
        is_forbidden: whether the API server forbade its deletion.
    """

    since: float
    answer: int | None = None
    last_try_at: float = float("-inf")
    tries: int = 0
    is_reported: bool = False
    is_forbidden: bool = False


class StuckPods:
    """Remembers the filter's answer for each stuck pod, and how often an owner's pods were replaced.

    Attributes:
        may_delete: whether the controller may delete pods.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._histories: dict[str, _History] = {}
        self._replacements: dict[str, tuple[float, int]] = {}
        """Owner -> time of the last replacement, and number of replacements."""
        self._owners_with_unmet_terms: dict[str, None] = {}
        """In the order of the first such pod, without values."""
        self.may_delete = True

    def forget(self, key: str) -> None:
        """Forget a pod that was deleted or does not wait for a node."""
        self._histories.pop(key, None)

    def may_require_zones(self, pod: Pod) -> bool:
        """Whether required terms may name zones: only if the pod can be replaced, and no earlier pod of its owner failed with them."""
        return self.may_delete and is_replaceable(pod) and owner_key(pod) not in self._owners_with_unmet_terms

    def on_forbidden(self, pod: Pod) -> None:
        """Record that the API server forbade the deletion of this pod."""
        if pod.metadata.key in self._histories:
            self._histories[pod.metadata.key].is_forbidden = True

    def decide(
        self, pods: Sequence[Pod], plan: Plan | None, state: State, now: float
    ) -> tuple[list[Action], float | None]:
        """Actions for a group's unschedulable pods, and seconds until the next check; None to wait for a change.

        Args:
            pods: of the group.
            plan: of the group, which may have new targets for stuck pods.
            state: the cluster.
            now: wall clock.
        """
        actions: list[Action] = []
        waits: list[float] = []
        for pod in pods:
            key = pod.metadata.key
            if not pod.is_waiting or pod.is_gated or not pod.status.scheduling_failed:
                self.forget(key)
                continue
            self._histories.setdefault(key, _History(now))
            target = plan.targets.get(key) if plan is not None else None
            has_fixed_affinity = placement_of_pod(pod, self._config, state) == "affinity"
            decide = self._decide_replacement if has_fixed_affinity else self._decide_retry
            action, wait_s = decide(pod, target, state, now)
            if action is not None:
                actions.append(action)
            if wait_s is not None:
                waits.append(wait_s)
        return actions, min(waits, default=None)

    def _decide_retry(
        self, pod: Pod, target: Target | None, state: State, now: float
    ) -> tuple[Action | None, float | None]:
        history, old_target = self._histories[pod.metadata.key], target_of(pod)
        has_new_target = target is not None and (old_target is None or old_target.node != target.node)
        answer = _hash_of_answer(state, pod)
        scheduled = pod.condition("PodScheduled")
        is_refused_by_us = scheduled is not None and REFUSAL_TEXT in scheduled.message
        has_new_answer = is_refused_by_us and history.answer != answer
        # So far the filter passed only the planned host or zone; from now on it answers by NetworkOverhead's rule.
        is_first_retry = old_target is not None and history.answer is None
        if not has_new_target and not has_new_answer and not is_first_retry:
            return None, None
        wait_s = backoff_delay_s(history.tries + 1 - _QUICK_TRIES, RETRY_EVERY_S, _MAX_RETRY_S)
        left_s = history.last_try_at + wait_s - now
        if left_s > 0:
            return None, left_s
        patch = retry_patch(pod, target if has_new_target else None, f"{now:.3f}")
        return Retry(pod, patch, answer), None

    def on_retried(self, retry: Retry, now: float) -> None:
        """Record a written retry."""
        history = self._histories.get(retry.pod.metadata.key)
        if history is not None:
            history.answer, history.last_try_at, history.tries = retry.answer, now, history.tries + 1

    def _decide_replacement(
        self, pod: Pod, target: Target | None, state: State, now: float
    ) -> tuple[Action | None, float | None]:
        history = self._histories[pod.metadata.key]
        if not pod.metadata.annotation(NARROWED_ANNOTATION):
            # Our affinity excludes no node, and the scheduler retries the pod by itself.
            return None, None
        left_s = history.since + REPLACE_AFTER_S - now
        if left_s > 0:
            return None, left_s
        old_target = target_of(pod)
        has_moved = old_target is not None and target is not None and old_target.location != target.location
        answer = _hash_of_answer(state, pod)
        if history.answer is None:
            history.answer = answer
        if not self.may_delete or history.is_forbidden or not is_replaceable(pod):
            return self._give_up(pod), None
        if has_moved or history.answer != answer:
            return self._replace(pod, target, now)
        self._remember_unmet(pod)
        note = "no node is left where its frozen node affinity allows; its successor gets preferred terms only"
        return Replace(pod, note), None

    def _replace(self, pod: Pod, target: Target | None, now: float) -> tuple[Action | None, float | None]:
        """Replace a pod that would find a node elsewhere, with exponential back-off per owner."""
        owner = owner_key(pod)
        last_at, count = self._replacements.get(owner, (float("-inf"), 0))
        left_s = last_at + backoff_delay_s(count + 1, REPLACE_AFTER_S, _MAX_REPLACE_S) - now
        if left_s > 0:
            return None, left_s
        self._replacements.pop(owner, None)
        self._replacements[owner] = (now, count + 1)
        if len(self._replacements) > _MAX_REPLACEMENTS:
            self._replacements.pop(next(iter(self._replacements)))
        suffix = f"; zone {target.zone} has a node for it" if target is not None else ""
        note = f"no node is left where its frozen node affinity allows, and costs or the plan have changed{suffix}"
        return Replace(pod, note), None

    def _give_up(self, pod: Pod) -> Report | None:
        """Report once that the pod cannot be replaced: we lack the right, or its owner would not replace it without a penalty."""
        self._remember_unmet(pod)
        history = self._histories[pod.metadata.key]
        if history.is_reported:
            return None
        history.is_reported = True
        cause = "its owner would not replace it without a penalty"
        if is_replaceable(pod):
            cause = "the controller has no right to delete it"
        note = f"no node is left where its frozen node affinity allows, and {cause}: delete it to have it placed again"
        return Report(pod, note)

    def _remember_unmet(self, pod: Pod) -> None:
        self._owners_with_unmet_terms[owner_key(pod)] = None
        if len(self._owners_with_unmet_terms) > _MAX_UNMET:
            self._owners_with_unmet_terms.pop(next(iter(self._owners_with_unmet_terms)))


def owner_key(pod: Pod) -> str:
    """Key of the pods that are alike, from their owner; each pod of a StatefulSet has its own, because of its volumes."""
    owner = controller_of(pod.metadata)
    if owner is None:
        return pod.metadata.key
    return f"{owner.uid}/{pod.metadata.name}" if owner.kind == "StatefulSet" else owner.uid


def _hash_of_answer(state: State, pod: Pod) -> int:
    """Hash of the filter's answer for the pod."""
    score_table = state.score_table_of(pod)
    if score_table.neutral_reason:
        return hash(score_table.neutral_reason)
    passing = tuple(node_score.passes for node_score in score_table.by_location)
    return hash((passing, frozenset(node for node, node_score in score_table.by_node.items() if node_score.passes)))
