"""The working state of one round: what has been planned so far, and the gates that every move passes, whatever its strategy.

They keep a pod where it is for now: limits per round and over time, disruption budgets, and moves that did not come true.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from controller.cluster.pod_info import PodInfo
from controller.cluster.requests import add
from controller.cluster.resources import APPGROUP_LABEL
from controller.descheduler.config import LimitsConfig, Settings, share_of
from controller.descheduler.decision import MOST_SKIPS, Declined, Move, Skip
from controller.descheduler.fit import Fit
from controller.descheduler.foresight import Foresight
from controller.descheduler.memory import HOUR_S, Followed, Memory, Tried, mark_of
from controller.descheduler.snapshot import Guard, LoadSnapshot


class Limits:
    """Counts planned evictions against every limit; one per round."""

    def __init__(
        self, config: LimitsConfig, memory: Memory, snapshot: LoadSnapshot, now: float, *, min_replicas: int
    ) -> None:
        self._min_replicas = min_replicas
        self._config, self._memory, self._snapshot, self._now = config, memory, snapshot, now
        underway = [move for move in memory.follows if not move.landed]
        self._nodes = Counter(move.node for move in underway)
        self._namespaces = Counter(move.pod.partition("/")[0] for move in underway)
        self._workloads: Counter[str] = Counter()
        self._total = len(underway)
        self._weight = memory.spent_since(now - HOUR_S)
        self._groups: Counter[str] = Counter(move.group for move in underway if move.group)
        self._underway: Counter[str] = Counter(move.workload for move in underway)
        self._followed = {mark_of(move.landed_uid) for move in memory.follows if move.landed_uid}

    def exhausted(self, weight: int) -> str:
        """Why no pod at all may move any more in this round; empty when one may."""
        config = self._config
        if self._total >= config.per_round:
            return f"limit of {config.per_round} evictions per round"
        if self._weight + weight > config.per_hour:
            return f"budget of {config.per_hour} evictions per hour"
        return ""

    def node_full(self, node: str) -> str:
        """Why no more pods of a node may move in this round; empty when one may."""
        most = self._config.per_node
        return f"limit of {most} evictions per node and round" if self._nodes[node] >= most else ""

    def refusal(self, pod: PodInfo) -> tuple[str, str]:
        """Kind and text of why this pod may not move now; empty when it may."""
        config = self._config
        why = self._rests(pod)
        if why:
            return "moved", why
        if self._namespaces[pod.namespace] >= config.per_namespace:
            return "namespace-limit", f"limit of {config.per_namespace} evictions per namespace and round"
        group = self._snapshot.group_of(pod)
        if group and self._groups[group] >= config.per_app_group:
            name = pod.labels[APPGROUP_LABEL]
            return "group-limit", f"{config.per_app_group} pods of AppGroup {name} are on the move"
        return self._workload_refusal(pod)

    def _rests(self, pod: PodInfo) -> str:
        mark, replaces = mark_of(pod.uid), "it is the replacement of a pod that was moved"
        if mark in self._followed:
            return f"{replaces}, and what that came to is not known yet"
        heir = self._memory.heirs.get(mark)
        left_s = heir.at_s + self._config.rest_of(heir.vain) - self._now if heir is not None else 0.0
        if heir is None or left_s <= 0:
            return ""
        return f"{replaces}{' in vain' if heir.vain else ''}, and rests for another {left_s / 3600:.1f} h"

    def _workload_refusal(self, pod: PodInfo) -> tuple[str, str]:
        config, workload = self._config, workload_of(pod)
        rest = self._memory.resting(workload, self._now)
        if rest is not None:
            minutes = (rest.until_s - self._now) / 60
            because = f" after {rest.failures} moves that did not help ({rest.why})" if rest.failures else ""
            return "back-off", f"{workload} rests for another {minutes:.0f} min{because}"
        pods = self._snapshot.pods.of_workload(pod.workload) if pod.workload else {pod.key: pod}
        whole = [p for p in pods.values() if not p.going]
        # A pod that is underway is counted below and not twice; before its replacement is seen it is missing from `whole`.
        size = len(whole) + self._underway[workload]
        recent = self._memory.moves_since(workload, self._now - config.workload_backoff_s) + self._workloads[workload]
        if pod.workload and size < self._min_replicas:
            return "replicas", f"{workload} has {size} of at least {self._min_replicas} pods (protection.minReplicas)"
        most = share_of(config.per_workload, size)
        if recent >= most:
            return "workload-limit", f"{recent} moves of {workload} in {config.workload_backoff_s:g} s, at most {most}"
        missing = sum(1 for p in whole if not p.ready) + self._workloads[workload]
        missing = max(missing, self._underway[workload] + self._workloads[workload])
        allowed = share_of(config.unavailable_per_workload, size)
        if missing >= allowed:
            return "unavailable", f"{missing} of {size} pods of {workload} are not available, at most {allowed} may be"
        return "", ""

    def book(self, pod: PodInfo, weight: int) -> None:
        """Count a planned eviction."""
        self._nodes[pod.node] += 1
        self._namespaces[pod.namespace] += 1
        self._workloads[workload_of(pod)] += 1
        self._total += 1
        self._weight += weight
        if group := self._snapshot.group_of(pod):
            self._groups[group] += 1


def workload_of(pod: PodInfo) -> str:
    """What back-off is remembered by: the pod's workload, or a bare pod itself."""
    return pod.workload or f"{pod.namespace}/Pod/{pod.name}"


MISPLACEMENT = "NetworkMisplacement"
"""Stands for a pool where moves are not about load."""


class Trust:
    """The record of one moment.

    Args:
        memory: judged moves.
        limits: how many have to be judged, and how many of them good.
        now: unix seconds.
    """

    def __init__(self, memory: Memory, limits: LimitsConfig, now: float) -> None:
        self._limits = limits
        self._of: dict[str, list[Tried]] = defaultdict(list)
        for tried in memory.tried:
            if now - tried.at_s <= limits.trust_window_s:
                self._of["pool " + tried.pool].append(tried)
                self._of["workload " + tried.workload].append(tried)

    def against_pool(self, pool: str) -> str:
        """Why nothing moves in a pool; empty when it may."""
        return self._against("pool " + pool)

    def against_workload(self, workload: str) -> str:
        """Why no pod of a workload moves; empty when it may."""
        return self._against("workload " + workload)

    def stopped(self, kind: str) -> list[str]:
        """Names of the pools, or of the workloads, that are stopped."""
        found = (scope.partition(" ") for scope in self._of)
        return sorted(name for k, _, name in found if k == kind and self._against(f"{kind} {name}"))

    def _against(self, scope: str) -> str:
        tried = self._of.get(scope, ())
        good = sum(entry.came_true and entry.helped for entry in tried)
        if len(tried) < self._limits.judged_moves or 100 * good >= self._limits.least_true_percent * len(tried):
            return ""
        hours = self._limits.trust_window_s / 3600
        return f"{scope} is stopped: {good} of {len(tried)} moves in {hours:g} h came true and helped"


class Ledger:
    """What is left of every budget.

    The eviction subresource keeps the same rule and has the last word; this is its forecast, and what a dry-run goes by.
    """

    def __init__(self, guards: Mapping[str, Iterable[Guard]]) -> None:
        self._guards = guards
        self._booked: dict[str, int] = {}

    def refusal(self, pod: PodInfo) -> str:
        """Why the pod must not be evicted now; empty when it may."""
        guards = self._of(pod)
        if len(guards) > 1:
            # The API server refuses these, since it cannot take from two budgets at once.
            return f"several PodDisruptionBudgets cover it: {', '.join(guard.key for guard in guards)}"
        for guard in guards:
            if guard.allowed - self._booked.get(guard.key, 0) <= 0:
                return f"PodDisruptionBudget {guard.key} allows no disruption now"
        return ""

    def book(self, pod: PodInfo) -> None:
        """Take the pod's place in its budget."""
        for guard in self._of(pod):
            self._booked[guard.key] = self._booked.get(guard.key, 0) + 1

    def _of(self, pod: PodInfo) -> list[Guard]:
        return [guard for guard in self._guards.get(pod.namespace, ()) if guard.selector.matches(pod.labels)]


class Round:
    """Collects moves, skips and notes; deducts from limits and disruption budgets as it goes.

    Attributes:
        arriving: node -> usage of pods that are planned onto it or may land there.
        fit: where the scheduler would let a pod go, with what is planned.
        declined: by uid, pods whose move the planner would undo.
        hot: nodes above a threshold now.
        taken: keys of pods that are planned to go.
    """

    def __init__(
        self,
        snapshot: LoadSnapshot,
        memory: Memory,
        settings: Settings,
        now: float,
        declined: Mapping[str, Declined] = {},
    ) -> None:
        self.declined = declined
        self.snapshot, self.memory, self.settings, self.now = snapshot, memory, settings, now
        self.limits = Limits(settings.limits, memory, snapshot, now, min_replicas=settings.protection.min_replicas)
        self.ledger = Ledger(snapshot.guards)
        self.trust = Trust(memory, settings.limits, now)
        self.fit = Fit(snapshot)
        self.foresight = Foresight(snapshot, self.fit)
        self.moves: list[Move] = []
        self.follows: list[Followed] = []
        self.skips: list[Skip] = []
        self.skipped: Counter[str] = Counter()
        self.notes: list[str] = []
        self.taken: set[str] = set()
        self.hot: frozenset[str] = frozenset()
        self.arriving: dict[str, dict[str, float]] = defaultdict(dict)
        self._hosts: dict[str, tuple[str, ...]] = {}

    @property
    def cooling(self) -> Mapping[str, int]:
        """Node -> pods that left it so recently that its usage does not show it yet."""
        settle_s = self.settings.limits.settle_s
        return Counter(move.node for move in self.memory.follows if self.now - move.at_s < settle_s)

    def exhausted(self, weight: int) -> str:
        """Why nothing at all may move any more; empty when something may."""
        if self.memory.hold_until_s > self.now:
            return f"the API server asked to wait for another {self.memory.hold_until_s - self.now:.0f} s"
        return self.limits.exhausted(weight)

    def note(self, text: str) -> None:
        """Say once what stopped a part of the round."""
        if text and text not in self.notes:
            self.notes.append(text)

    def skip(self, pod: PodInfo, kind: str, why: str) -> None:
        """Say why a pod stays."""
        self.skipped[kind] += 1
        if len(self.skips) < MOST_SKIPS:
            self.skips.append(Skip(pod.key, pod.node, kind, why))

    def refuses(self, pod: PodInfo) -> str:
        """Which of limits, back-off and disruption budgets keeps the pod now, and says why; empty when it may go."""
        kind, why = self.limits.refusal(pod)
        age_s = self.now - pod.created_s
        if not kind and age_s < self.settings.protection.min_pod_age_s:
            kind, why = "young", f"it is {max(age_s, 0):.0f} s old (protection.minPodAgeS)"
        answer = self.declined.get(pod.uid)
        if not kind and answer is not None and answer.until_s > self.now:
            kind, why = "planner", f"{answer.why}; it is asked again in {(answer.until_s - self.now) / 60:.0f} min"
        if not kind:
            why = self.trust.against_workload(workload_of(pod))
            kind = "stopped" if why else ""
        if not kind:
            why = self.ledger.refusal(pod)
            kind = "disruption-budget" if why else ""
        if kind:
            self.skip(pod, kind, why)
        return kind

    def take(self, pod: PodInfo, move: Move, follow: Followed, hosts: Sequence[str] = ()) -> None:
        """Plan a move that was admitted.

        Args:
            pod: who goes.
            move: where it is expected.
            follow: what to watch it by.
            hosts: all where it may land; none for the target alone.
        """
        hosts = hosts or ((move.target,) if move.target else ())
        self.limits.book(pod, follow.weight)
        self.ledger.book(pod)
        self.taken.add(pod.key)
        self.fit.book(pod, move.target)
        self.foresight.book(pod, hosts)
        for host in hosts:
            add(self.arriving[host], move.used)
        self._hosts[move.uid] = tuple(hosts)
        self.moves.append(move)
        known = (mark_of(p.uid) for p in self.snapshot.pods.of_workload(pod.workload).values() if p.uid != pod.uid)
        self.follows.append(msgspec.structs.replace(follow, known=tuple(sorted(known))))

    def withdraw(self, pod: PodInfo, move: Move) -> None:
        """A planned move is expected nowhere any more."""
        for host in self._hosts.pop(move.uid, ()):
            add(self.arriving[host], move.used, -1)
        self.fit.withdraw(pod)

    def redirect(self, pod: PodInfo, move: Move, node: str) -> None:
        """A planned move that was withdrawn is expected on a node."""
        self.fit.book(pod, node)
        add(self.arriving[node], move.used)
        self._hosts[move.uid] = (node,)
