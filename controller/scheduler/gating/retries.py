"""Decides whether pods for which the scheduler found no node are requeued, replaced or reported.

kube-scheduler does not watch AppGroups and NetworkTopologies: a pod that an extender refused waits for an event of nodes or pods,
or for five minutes. A change of the pod itself requeues the pod at once, so we annotate it. In affinity mode the placement is fixed in
the pod, so the pod is deleted if its owner replaces it without a penalty. If no node met the required terms, later pods of that owner
get preferred terms only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from controller.cluster.pods import Pod, Target, target_of
from controller.scheduler.affinity import NARROWED_ANNOTATION, is_replaceable
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.gating.patches import PodPatch, build_retry_patch, placement_mode_of_pod
from controller.scheduler.placement.planner import Plan
from controller.scheduler.state import State
from kubekit.owners import controller_of
from kubekit.waiting import backoff_delay_s

REFUSAL_TEXT = "Workload dependencies"
"""Part of every reason for which the extender refuses a node."""
MIN_RETRY_S, _MAX_RETRY_S = 1.0, 60.0
"""Shortest and longest time between retries of a pod."""
_RETRIES_WITHOUT_BACKOFF = 8
"""Retries after which the time doubles each time: a few are normal while the other pods of the group are being bound."""
REPLACE_AFTER_S, _MAX_REPLACE_S = 10.0, 600.0
"""A pod with fixed affinity is replaced after this time without a node; between replacements of one owner's pods the time doubles up to the
second value."""
_MAX_REPLACED_OWNERS, _MAX_UNMET_OWNERS = 1000, 10_000
"""Owners of replaced pods, and owners of pods with unmet terms, that are remembered."""


class Retry(msgspec.Struct, frozen=True):
    """A pod to requeue in the scheduler, with the patch for it and a hash of the filter's current answer."""

    pod: Pod
    patch: PodPatch
    answer_hash: int


class PodReplacement(msgspec.Struct, frozen=True):
    """A pod to delete, so that its owner replaces it, and the note of its event."""

    pod: Pod
    note: str


class Report(msgspec.Struct, frozen=True):
    """A pod with fixed affinity that only a person may delete, and the note of its event, which names the reason."""

    pod: Pod
    note: str


Action = Retry | PodReplacement | Report


class _Choice(NamedTuple):
    """The action for a pod, if any, and seconds until the next check; None to wait for a change."""

    action: Action | None = None
    next_check_s: float | None = None


class _History(msgspec.Struct):
    """History of a pod that found no node.

    Attributes:
        first_failed_at: wall clock when the pod was first seen after a failed scheduling attempt.
        answer_hash: hash of the filter's answer at the last retry or, for a fixed affinity, at the first check; None before.
        last_retry_at: wall clock of the last retry; minus infinity before the first.
        retries: number of retries.
        is_reported: whether a `Report` was made.
        is_forbidden: whether the API server forbade its deletion.
    """

    first_failed_at: float
    answer_hash: int | None = None
    last_retry_at: float = float("-inf")
    retries: int = 0
    is_reported: bool = False
    is_forbidden: bool = False


class UnschedulablePods:
    """Chooses actions for pods for which the scheduler found no node, by their histories and their owners' histories.

    Attributes:
        may_delete: whether the controller may delete pods; set by `GatingController`.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._histories: dict[str, _History] = {}
        self._replacements: dict[str, tuple[float, int]] = {}
        """Owner -> wall clock of the last replacement, and number of replacements."""
        self._owners_with_unmet_terms: dict[str, None] = {}
        """A set in the order of insertion."""
        self.may_delete = True

    def forget_pod(self, key: str) -> None:
        """Forget a pod that was deleted or does not wait for a node."""
        self._histories.pop(key, None)

    def may_require_zones(self, pod: Pod) -> bool:
        """Whether required terms may name zones: the pod can be replaced, and every earlier pod of its owner met such terms."""
        return self.may_delete and is_replaceable(pod) and owner_key(pod) not in self._owners_with_unmet_terms

    def on_forbidden(self, pod: Pod) -> None:
        """Record that the API server forbade the deletion of this pod."""
        if pod.metadata.key in self._histories:
            self._histories[pod.metadata.key].is_forbidden = True

    def choose_actions(
        self, pods: Sequence[Pod], plan: Plan | None, state: State, now: float
    ) -> tuple[list[Action], float | None]:
        """Actions for a group's unschedulable pods, and seconds until the next check; None to wait for a change.

        ``plan`` may have new targets for the pods; ``now`` is the wall clock.
        """
        actions: list[Action] = []
        check_delays_s: list[float] = []
        for pod in pods:
            key = pod.metadata.key
            if not pod.is_waiting or pod.is_gated or not pod.status.scheduling_failed:
                self.forget_pod(key)
                continue
            self._histories.setdefault(key, _History(now))
            target = plan.targets.get(key) if plan is not None else None
            has_fixed_affinity = placement_mode_of_pod(pod, self._config, state) == "affinity"
            choose = self._choose_replacement if has_fixed_affinity else self._choose_retry
            action, next_check_s = choose(pod, target, state, now)
            if action is not None:
                actions.append(action)
            if next_check_s is not None:
                check_delays_s.append(next_check_s)
        return actions, min(check_delays_s, default=None)

    def _choose_retry(self, pod: Pod, target: Target | None, state: State, now: float) -> _Choice:
        """Retry a pod with a new target, with a new answer of the filter, or once without its plan."""
        history, old_target = self._histories[pod.metadata.key], target_of(pod)
        has_new_target = target is not None and (old_target is None or old_target.node != target.node)
        answer_hash = _hash_answer(state, pod)
        scheduled = pod.condition("PodScheduled")
        is_refused_by_us = scheduled is not None and REFUSAL_TEXT in scheduled.message
        has_new_answer = is_refused_by_us and history.answer_hash != answer_hash
        # The filter passed only the planned node or zone; after the failed attempt it answers by NetworkOverhead's rule.
        is_first_retry = old_target is not None and history.answer_hash is None
        if not has_new_target and not has_new_answer and not is_first_retry:
            return _Choice()
        delay_s = backoff_delay_s(history.retries + 1 - _RETRIES_WITHOUT_BACKOFF, MIN_RETRY_S, _MAX_RETRY_S)
        remaining_s = history.last_retry_at + delay_s - now
        if remaining_s > 0:
            return _Choice(next_check_s=remaining_s)
        patch = build_retry_patch(pod, target if has_new_target else None, f"{now:.3f}")
        return _Choice(Retry(pod, patch, answer_hash))

    def on_retried(self, retry: Retry, now: float) -> None:
        """Record a written retry."""
        history = self._histories.get(retry.pod.metadata.key)
        if history is not None:
            history.answer_hash, history.last_retry_at, history.retries = retry.answer_hash, now, history.retries + 1

    def _choose_replacement(self, pod: Pod, target: Target | None, state: State, now: float) -> _Choice:
        """Replace a pod whose required terms no node meets, or report the pod if it cannot be replaced."""
        history = self._histories[pod.metadata.key]
        if not pod.metadata.annotation(NARROWED_ANNOTATION):
            # Our affinity excludes no node, and the scheduler retries the pod by itself.
            return _Choice()
        remaining_s = history.first_failed_at + REPLACE_AFTER_S - now
        if remaining_s > 0:
            return _Choice(next_check_s=remaining_s)
        old_target = target_of(pod)
        has_moved = old_target is not None and target is not None and old_target.location != target.location
        answer_hash = _hash_answer(state, pod)
        if history.answer_hash is None:
            history.answer_hash = answer_hash
        if not self.may_delete or history.is_forbidden or not is_replaceable(pod):
            return _Choice(self._report_once(pod))
        if has_moved or history.answer_hash != answer_hash:
            return self._replace_with_backoff(pod, target, now)
        self._record_unmet_terms(pod)
        note = "no node meets the pod's fixed node affinity; its replacement gets preferred terms only"
        return _Choice(PodReplacement(pod, note))

    def _replace_with_backoff(self, pod: Pod, target: Target | None, now: float) -> _Choice:
        """Replace a pod that would find a node elsewhere, with exponential back-off per owner."""
        owner = owner_key(pod)
        last_at, count = self._replacements.get(owner, (float("-inf"), 0))
        remaining_s = last_at + backoff_delay_s(count + 1, REPLACE_AFTER_S, _MAX_REPLACE_S) - now
        if remaining_s > 0:
            return _Choice(next_check_s=remaining_s)
        self._replacements.pop(owner, None)
        self._replacements[owner] = (now, count + 1)
        if len(self._replacements) > _MAX_REPLACED_OWNERS:
            self._replacements.pop(next(iter(self._replacements)))
        suffix = f"; zone {target.zone} has a node for the pod" if target is not None else ""
        note = f"no node meets the pod's fixed node affinity, and costs or the plan have changed{suffix}"
        return _Choice(PodReplacement(pod, note))

    def _report_once(self, pod: Pod) -> Report | None:
        """Report that the pod cannot be replaced: we may not delete it, or its owner would not replace it without a penalty."""
        self._record_unmet_terms(pod)
        history = self._histories[pod.metadata.key]
        if history.is_reported:
            return None
        history.is_reported = True
        cause = "its owner would not replace it without a penalty"
        if is_replaceable(pod):
            cause = "the controller may not delete it"
        note = f"no node meets the pod's fixed node affinity, and {cause}: delete the pod to have it placed again"
        return Report(pod, note)

    def _record_unmet_terms(self, pod: Pod) -> None:
        self._owners_with_unmet_terms[owner_key(pod)] = None
        if len(self._owners_with_unmet_terms) > _MAX_UNMET_OWNERS:
            self._owners_with_unmet_terms.pop(next(iter(self._owners_with_unmet_terms)))


def owner_key(pod: Pod) -> str:
    """Key of interchangeable pods, from their owner; each pod of a StatefulSet has a key of its own, because of its volumes."""
    owner = controller_of(pod.metadata)
    if owner is None:
        return pod.metadata.key
    return f"{owner.uid}/{pod.metadata.name}" if owner.kind == "StatefulSet" else owner.uid


def _hash_answer(state: State, pod: Pod) -> int:
    """Hash of the answer that the extender's filter would give for the pod by the rule."""
    score_table = state.score_table_of(pod)
    if score_table.neutral_reason:
        return hash(score_table.neutral_reason)
    passing = tuple(node_score.passes for node_score in score_table.by_location)
    return hash((passing, frozenset(node for node, node_score in score_table.by_node.items() if node_score.passes)))
