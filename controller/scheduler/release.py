"""TopologicalSort by gates (docs/contracts, section 6): whose turn it is, and for how long anybody waits. Pure.

A pod is released when every workload that comes before its own has its pods bound. What does not come, or cannot be placed,
holds nobody up for longer than a stated time; so no pod is ever held for good, whatever is wrong with its group. Pods for which
the plan found no place are released at once and all together, since an autoscaler sees only what the scheduler has refused.
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

FORCED: frozenset[Cause] = frozenset({"no-group", "no-workload", "waited"})
"""Causes that wait for no plan."""


class GroupQueue(msgspec.Struct, frozen=True):
    """A group's pods in the eyes of the queue.

    Attributes:
        order: workload selector -> place in the order; empty for a group that does not exist.
        exists: whether the AppGroup does.
        pods: its pods, finished ones included.
        replicas: workload selector -> how many pods it declares; absent where that is not known.
        members: numMembers of the group.
        seen_at: pod key -> when we first saw it, on the clock of ``now``.
        unplaced: keys of pods for which the plan found no place.
    """

    order: Mapping[str, int]
    exists: bool
    pods: Sequence[GroupPod]
    replicas: Mapping[str, int] = {}
    members: int = 0
    seen_at: Mapping[str, float] = {}
    unplaced: frozenset[str] = frozenset()


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


def settles_in_s(queue: GroupQueue, now: float, config: GatesConfig) -> float:
    """How long until the group's pods may be taken for all there are; 0 when that is now.

    While pods are missing and one came just now, more will come, and the plan should know them all.
    """
    live: Counter[str] = Counter(pod.workload for pod in queue.pods if not pod.over)
    if live.total() >= queue.members and all(live[selector] >= count for selector, count in queue.replicas.items()):
        return 0.0
    newest = max((queue.seen_at.get(p.metadata.key, 0.0) for p in queue.pods if not p.over), default=0.0)
    return max(newest + config.settle_s - now, 0.0)


class _Blocks(NamedTuple):
    """The first workload in the order that holds up those after it, and why; nobody is at an infinite place."""

    place: float = math.inf
    reason: str = ""


class _Turns:
    """One look at a group. What blocks is found once per workload, since a group may have thousands of pods."""

    def __init__(self, queue: GroupQueue, now: float, config: GatesConfig) -> None:
        self._queue, self._now, self._config = queue, now, config
        self._live: dict[str, list[GroupPod]] = defaultdict(list)
        self._finished: set[str] = set()
        self._begun: set[str] = set()
        for pod in queue.pods:
            if not pod.over:
                self._live[pod.workload].append(pod)
                if pod.spec.node_name:
                    self._begun.add(pod.workload)
            elif pod.metadata.deletion_timestamp is None:
                self._finished.add(pod.workload)
        self._wakes: list[float] = []
        self._settles_s = settles_in_s(queue, now, config)
        sequence = sorted(queue.order.items(), key=lambda entry: entry[1])
        self._unbound = self._first(sequence, self._unbound_reason)
        self._short = self._first(sequence, self._short_reason)
        self._absent = self._first(sequence, self._absent_reason)

    @staticmethod
    def _first(sequence: Sequence[tuple[str, int]], reason_of: Callable[[str], str]) -> _Blocks:
        found = ((place, reason_of(selector)) for selector, place in sequence)
        return next((_Blocks(place, reason) for place, reason in found if reason), _Blocks())

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
        age_s = pod.age_s(self._now)
        if age_s >= self._config.max_wait_s:
            return "waited", ""
        self._wakes.append(self._config.max_wait_s - age_s)
        patient = age_s < self._config.absent_wait_s
        if not self._queue.exists or pod.workload not in self._queue.order:
            if not patient:
                return ("no-workload" if self._queue.exists else "no-group"), ""
            self._wakes.append(self._config.absent_wait_s - age_s)
            return None, "its AppGroup has no such workload" if self._queue.exists else "its AppGroup does not exist"
        if pod.metadata.key in self._queue.unplaced and self._settles_s <= 0:
            return "unplaced", ""
        reason = self._held_back(pod, age_s)
        return (None, reason) if reason else ("turn", "")

    def _held_back(self, pod: GroupPod, age_s: float) -> str:
        """Why a pod that has a place, or may get one, does not go yet; empty when it does."""
        if pod.other_gates:
            return f"held by another scheduling gate: {', '.join(pod.other_gates)}"
        if self._settles_s > 0:
            self._wakes.append(self._settles_s)
            return "the group's pods are still being created"
        return self._held_by(pod, age_s)

    def _held_by(self, pod: GroupPod, age_s: float) -> str:
        """Why a workload that comes before holds a pod up; empty when none does."""
        place = self._queue.order[pod.workload]
        if self._unbound.place < place:
            return self._unbound.reason
        if age_s >= self._config.absent_wait_s:
            return ""
        # Of a workload that has run already this is a scale-out or a successor: the group stands, and what it has no pods
        # of, such as a Job that is done and swept away, is not about to come.
        missing = (self._short,) if pod.workload in self._begun else (self._short, self._absent)
        first = min(missing)
        if first.place < place:
            self._wakes.append(self._config.absent_wait_s - age_s)
            return first.reason
        return ""

    def _unbound_reason(self, selector: str) -> str:
        for pod in self._live.get(selector, ()):
            if not pod.spec.node_name and not pod.other_gates and not self._given_up(pod):
                return f"workload {selector} comes first, and its pod {pod.metadata.name} is not bound yet"
        return ""

    def _short_reason(self, selector: str) -> str:
        missing = self._queue.replicas.get(selector, 0) - len(self._live.get(selector, ()))
        return f"workload {selector} comes first, and {missing} of its pods do not exist yet" if missing > 0 else ""

    def _absent_reason(self, selector: str) -> str:
        """Nobody says how many pods it declares; one is expected, unless it had some that are done."""
        known = selector in self._queue.replicas or selector in self._finished or self._live.get(selector)
        return "" if known else f"workload {selector} comes first, and 1 of its pods do not exist yet"

    def _given_up(self, pod: GroupPod) -> bool:
        """Whether the scheduler found no place for a pod, as the plan foresaw or for so long that others go first."""
        if pod.gated or not pod.found_no_node:
            return False
        if pod.metadata.key in self._queue.unplaced:
            return True
        found = pod.condition("PodScheduled")
        since = found.last_transition_time if found is not None else None
        left_s = parse_time(since) + self._config.absent_wait_s - self._now if since else 0.0
        if left_s > 0:
            self._wakes.append(left_s)
        return left_s <= 0


WAITING = "WaitingForGroup"
"""Reason of the event."""
PATIENCE_S, AGAIN_S = 5.0, 60.0
"""Before this nobody asks why; what a pod waits for may change with every pod that is bound, so it is told again this much later."""
PENDING, PLAN_PATIENCE_S = "the plan of its group is being made", 30.0
"""A plan comes by itself. Where many groups come at once, a write for each of their pods would only make it come later."""
MOST_AT_ONCE = 20
"""Pods of one group that are told of in one look; the others' turn comes with the next."""


class WaitingNews:
    """What is told of pods that wait at their gates, once they have waited for a few seconds, and for whom they wait."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, str]] = {}

    def of(
        self, pods: Sequence[GroupPod], waiting: Mapping[str, str], now: float
    ) -> tuple[list[tuple[GroupPod, str]], float | None]:
        """Whom to tell of, with the words, and in how many seconds to look again; None when only a change can bring news.

        Args:
            pods: of the group.
            waiting: pod key -> what it waits for.
            now: wall clock, seconds since 1970.
        """
        news: list[tuple[GroupPod, str]] = []
        again: list[float] = []
        for pod in pods:
            key = pod.metadata.key
            reason = waiting.get(key)
            if reason is None:
                self._told.pop(key, None)
                continue
            due_in_s = self._due(pod, reason, now)
            if due_in_s is None:
                continue
            if due_in_s <= 0 and len(news) < MOST_AT_ONCE:
                self._told[key] = (now, reason)
                news.append((pod, f"it waits at its gate: {reason}"))
            else:
                again.append(max(due_in_s, 1.0))
        return news, min(again, default=None)

    def _due(self, pod: GroupPod, reason: str, now: float) -> float | None:
        told = self._told.get(pod.metadata.key)
        if told is not None:
            return None if told[1] == reason else told[0] + AGAIN_S - now
        created, patience_s = pod.metadata.creation_timestamp, PLAN_PATIENCE_S if reason == PENDING else PATIENCE_S
        return parse_time(created) + patience_s - now if created else 0.0

    def forget(self, key: str) -> None:
        """A pod is gone."""
        self._told.pop(key, None)
