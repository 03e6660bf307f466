"""Pods that the scheduler found no node for: tried again when what refused them has changed, or replaced. Pure but for memory.

kube-scheduler does not watch AppGroups and NetworkTopologies; a pod that an extender refused waits for some event of nodes or
pods, or for five minutes. A change of the pod itself brings it back at once, so that is what we do. In affinity mode the
answer is frozen in the pod, and only a new pod can get another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from controller.scheduler.affinity import owner_of
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.explain import target_of
from controller.scheduler.patches import ReleasePatch, mode_of, retry_patch
from controller.scheduler.planner import Plan
from controller.scheduler.pods import GroupPod, Target
from controller.scheduler.state import DeletedNodeError, State
from kubekit.wire import parse_time

OUR_WORDS = "Workload dependencies"
"""In every reason that the extender refuses a node for."""
RETRY_EVERY_S = 1.0
_LONGEST_BACKOFF_S = 600.0
_REMEMBERED_OWNERS = 1000


class Retry(msgspec.Struct, frozen=True):
    """A pod to be tried again."""

    pod: GroupPod
    patch: ReleasePatch
    cause: str


class Replace(msgspec.Struct, frozen=True):
    """A pod to be made anew by its owner."""

    pod: GroupPod
    note: str


class StuckPods:
    """Remembers by what answer each pod is stuck, and how often an owner's pods were replaced."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._answers: dict[str, int] = {}
        self._tried_at: dict[str, float] = {}
        self._replaced: dict[str, tuple[float, int]] = {}

    @staticmethod
    def is_stuck(pod: GroupPod) -> bool:
        """Whether the scheduler tried a pod and found no node."""
        return pod.waiting and not pod.gated and pod.found_no_node

    def any(self, pods: Iterable[GroupPod]) -> bool:
        """Whether any of these is stuck."""
        return any(self.is_stuck(pod) for pod in pods)

    @staticmethod
    def target_of(pod: GroupPod) -> Target | None:
        """The target that a pod carries."""
        return target_of(pod)

    def forget(self, key: str) -> None:
        """A pod is gone."""
        self._answers.pop(key, None)
        self._tried_at.pop(key, None)

    def plan(
        self, pods: Sequence[GroupPod], plan: Plan | None, state: State, now: float
    ) -> tuple[list[Retry | Replace], float | None]:
        """What to do about a group's stuck pods, and when to look again.

        Args:
            pods: the group's.
            plan: its plan, in which stuck pods are not held to their old targets.
            state: the cluster.
            now: wall clock.
        """
        actions: list[Retry | Replace] = []
        waits: list[float] = []
        for pod in pods:
            key = pod.metadata.key
            if not self.is_stuck(pod):
                self.forget(key)
                continue
            target = plan.targets.get(key) if plan is not None else None
            frozen = mode_of(pod, self._config) == "affinity"
            action, wait_s = (self._replacement if frozen else self._retry)(pod, target, state, now)
            if action is not None:
                actions.append(action)
            if wait_s is not None:
                waits.append(wait_s)
        return actions, min(waits, default=None)

    def _retry(
        self, pod: GroupPod, target: Target | None, state: State, now: float
    ) -> tuple[Retry | Replace | None, float | None]:
        key, before = pod.metadata.key, target_of(pod)
        moved = target is not None and (before is None or before.node != target.node)
        answer = _answer(state, pod)
        found = pod.condition("PodScheduled")
        ours = found is not None and OUR_WORDS in found.message
        changed = ours and self._answers.get(key) != answer
        # Filter showed the scheduler no more than the planned host or zone; from now on it answers by the rule.
        narrowed = before is not None and key not in self._answers
        if not moved and not changed and not narrowed:
            return None, None
        left_s = self._tried_at.get(key, float("-inf")) + RETRY_EVERY_S - now
        if left_s > 0:
            return None, left_s
        self._answers[key], self._tried_at[key] = answer, now
        patch = retry_patch(pod, target if moved else None, f"{now:.3f}")
        return Retry(pod, patch, "plan" if moved else "costs" if changed else "rule"), None

    def _replacement(
        self, pod: GroupPod, target: Target | None, state: State, now: float
    ) -> tuple[Retry | Replace | None, float | None]:
        before, owner, key = target_of(pod), owner_of(pod), pod.metadata.key
        answer = _answer(state, pod)
        if before is not None and target is not None:
            changed = (before.region, before.zone) != (target.region, target.zone)
        else:
            changed = self._answers.setdefault(key, answer) != answer
        if not changed or not owner:
            return None, None
        since = pod.condition("PodScheduled")
        began = parse_time(since.last_transition_time) if since and since.last_transition_time else now
        last, times = self._replaced.get(owner, (float("-inf"), 0))
        pause_s = min(self._config.gates.replace_after_s * 2**times, _LONGEST_BACKOFF_S)
        left_s = max(began + self._config.gates.replace_after_s, last + pause_s) - now
        if left_s > 0:
            return None, left_s
        self._replaced.pop(owner, None)
        self._replaced[owner] = (now, times + 1)
        if len(self._replaced) > _REMEMBERED_OWNERS:
            self._replaced.pop(next(iter(self._replaced)))
        where = f"; zone {target.zone} has room" if target is not None else ""
        return Replace(
            pod, f"no node is left where its frozen node affinity allows, and the costs have moved{where}"
        ), None


def _answer(state: State, pod: GroupPod) -> int:
    """What the filter says of the cluster for a pod, as a number that changes when any of it does."""
    try:
        weighing = state.weigh(pod.metadata.namespace, pod.group, pod.workload)
    except DeletedNodeError as error:
        return hash(str(error))
    if weighing.neutral:
        return hash(weighing.neutral)
    passing = tuple(tally.passes for tally in weighing.by_class)
    return hash((passing, frozenset(node for node, tally in weighing.by_node.items() if tally.passes)))
