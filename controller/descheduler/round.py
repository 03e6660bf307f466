"""The working state of a round: candidates, planned moves, and the counts that conditions check."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.cluster.requests import add
from controller.descheduler.config import LimitsConfig, Settings, Strategy
from controller.descheduler.fit import FitChecker
from controller.descheduler.history import DAY_S, History, PendingMove, short_uid
from controller.descheduler.node_load import NodeLoad
from controller.descheduler.round_plan import MAX_SKIPS, Move, Skip
from controller.descheduler.snapshot import Budget, LoadSnapshot
from controller.descheduler.usage import Amounts
from kubekit.errors import SelectorError
from kubekit.selectors import LabelSelector, Selector, from_object

Scope = Literal["round", "node", "namespace", "group"]
BREAKER_RESULTS = 4
"""A strategy's breaker opens only after this many moves have an outcome."""


def workload_of(pod: PodInfo) -> str:
    """The key of limits and back-offs: the pod's workload, or a bare pod itself."""
    return pod.workload or f"{pod.namespace}/Pod/{pod.name}"


def scopes_of(move: Move) -> list[tuple[Scope, str]]:
    """Everything whose evictions a move counts for."""
    return [("round", ""), ("node", move.node), ("namespace", move.pod.partition("/")[0]), ("group", move.group)]


class EvictionBreaker:
    """Stops a strategy if too few of its moves in 24 h helped.

    Args:
        history: results of moves.
        limits: the share of them that has to be good.
        now: unix seconds.
    """

    def __init__(self, history: History, limits: LimitsConfig, now: float) -> None:
        recent = [result for result in history.results if now - result.at_s <= DAY_S]
        self._made = Counter(result.strategy for result in recent)
        self._good = Counter(result.strategy for result in recent if result.good)
        self._least = limits.min_success_percent

    def refusal(self, strategy: Strategy) -> str:
        """Why a strategy moves nothing; empty when it may."""
        made, good = self._made[strategy], self._good[strategy]
        if made < BREAKER_RESULTS or 100 * good >= self._least * made:
            return ""
        return f"{strategy} is stopped: {good} of {made} moves in 24 h helped"


class DisruptionBudgets:
    """Remaining disruptions of every PodDisruptionBudget.

    The eviction subresource keeps the same rule and decides; this predicts its answer, and a dry run uses it.
    """

    def __init__(self, budgets: Iterable[Budget]) -> None:
        self._budgets: dict[str, list[tuple[Selector, Budget]]] = defaultdict(list)
        for budget in sorted(budgets, key=lambda budget: budget.metadata.key):
            if budget.spec.selector is not None:  # without a selector it covers no pod
                self._budgets[budget.metadata.namespace].append((_compile_selector(budget.spec.selector), budget))
        self._reserved: Counter[str] = Counter()

    def refusal(self, pod: PodInfo) -> str:
        """Why the pod must not be evicted now; empty when it may."""
        found = self._of(pod)
        keys = [budget.metadata.key for budget in found]
        if len(found) > 1:
            # The API server refuses these, since it cannot take from two budgets at once.
            return f"several PodDisruptionBudgets cover it: {', '.join(keys)}"
        if found and found[0].status.disruptions_allowed <= self._reserved[keys[0]]:
            return f"PodDisruptionBudget {keys[0]} allows no disruption now"
        return ""

    def reserve(self, pod: PodInfo) -> None:
        """Take the pod's place in its budget."""
        self._reserved.update(budget.metadata.key for budget in self._of(pod))

    def _of(self, pod: PodInfo) -> list[Budget]:
        return [budget for selector, budget in self._budgets.get(pod.namespace, ()) if selector.matches(pod.labels)]


def _compile_selector(selector: LabelSelector) -> Selector:
    """A budget's selector; one with an operator that we do not know covers the whole namespace, the safe reading."""
    try:
        return from_object(selector)
    except SelectorError:
        return Selector()


class MoveStrategy(ABC):
    """A strategy of one round, which knows where its candidates may go."""

    @abstractmethod
    def set_target_or_refusal(self, candidate: Candidate) -> str:
        """Set the candidate's target and return an empty text; without a target, return why there is none."""

    @abstractmethod
    def objection(self, candidate: Candidate, node: Host) -> str:
        """Why it would be no gain if the candidate went to this node; empty when it would be one. Sets the candidate's cost there."""

    def free_capacity(self, candidate: Candidate) -> str:  # noqa: ARG002
        """Why no pod of the candidate's node can go anywhere; empty when one may."""
        return ""


@dataclass(slots=True, eq=False)
class Candidate:
    """A pod that a strategy would move.

    Attributes:
        finder: the strategy's round; a proxy, because a cycle would keep the cluster of a round until a full garbage collection.
        used: its known usage, by resource.
        load: of its node, for LowNodeLoad.
        waits: why the reason for the move has not lasted yet; empty when it has.
        group: ready pods of its AppGroup, how many there should be, and the group's name; for the network's strategies.
        target: where it would go, once that is found.
        cost: its network cost there, for the network's strategies.
        planner: why our planner would undo the move, once it was asked.
    """

    pod: PodInfo
    strategy: Strategy
    finder: MoveStrategy
    used: Amounts
    load: NodeLoad | None = None
    waits: str = ""
    group: tuple[int, int, str] = (0, 0, "")
    target: str = ""
    cost: int = -1
    planner: str = ""


class Round:
    """Collects moves, skips and notes; counts planned evictions against limits and disruption budgets.

    Attributes:
        fit: where the scheduler would let a pod go, with what is planned.
        moves: planned, by uid of the pod.
        arriving: node -> usage of pods that come there and that its own usage does not show yet; "" where nobody knows the node.
        unsettled: node -> pods that left it so recently that its usage does not show it yet.
        evictions: by scope and name, of this round, together with those of before whose replacements are not bound yet.
        by_workload: evictions of this round alone.
        awaited: workload -> evictions of before whose replacements are not bound yet.
        replacements: marks of pods that replace one whose move has no outcome yet.
    """

    def __init__(self, snapshot: LoadSnapshot, history: History, settings: Settings, now: float) -> None:
        self.snapshot, self.history, self.settings, self.now = snapshot, history, settings, now
        self.breaker = EvictionBreaker(history, settings.limits, now)
        self.budgets = DisruptionBudgets(snapshot.budgets)
        self.fit = FitChecker(snapshot)
        self.moves: dict[str, tuple[Candidate, PendingMove]] = {}
        self.skips: list[Skip] = []
        self.skip_counts: Counter[str] = Counter()
        self.notes: list[str] = []
        usage_lag_s = settings.limits.usage_lag_s
        self.unsettled = Counter(p.move.node for p in history.pending if now - p.at_s < usage_lag_s)
        self.arriving: dict[str, dict[str, float]] = defaultdict(dict)
        for pending in history.pending:
            if not pending.replacement_node or now - pending.replacement_bound_s < usage_lag_s:
                add(self.arriving[pending.replacement_node or pending.move.target], pending.move.used)
        awaited = [pending.move for pending in history.pending if not pending.replacement_node]
        self.awaited = Counter(move.workload for move in awaited)
        self.evictions = Counter(scope for move in awaited for scope in scopes_of(move))
        self.by_workload: Counter[str] = Counter()
        self.replacements = {short_uid(p.replacement_uid) for p in history.pending if p.replacement_uid}
        self._sizes: dict[str, tuple[int, int]] = {}

    def size_of(self, pod: PodInfo) -> tuple[int, int]:
        """Pods of its workload, awaited replacements among them, and how many of those that are there are not ready."""
        workload = workload_of(pod)
        if workload not in self._sizes:
            pods = self.snapshot.pods.where("workload", pod.workload) or {pod.key: pod}
            present = [p for p in pods.values() if p.is_active]
            self._sizes[workload] = len(present) + self.awaited[workload], sum(not p.ready for p in present)
        return self._sizes[workload]

    def note(self, text: str) -> None:
        """Say once what stopped a part of the round."""
        if text not in self.notes:
            self.notes.append(text)

    def skip(self, pod: PodInfo, condition: str, why: str) -> None:
        """Say why a pod stays."""
        self.skip_counts[condition] += 1
        if len(self.skips) < MAX_SKIPS:
            self.skips.append(Skip(pod.key, pod.node, condition, why))

    def add(self, candidate: Candidate, pending: PendingMove) -> None:
        """Plan a move."""
        pod, move = candidate.pod, pending.move
        self.evictions.update(scopes_of(move))
        self.by_workload[move.workload] += 1
        self.budgets.reserve(pod)
        self.expect(candidate)
        known = (
            short_uid(p.uid) for p in self.snapshot.pods.where("workload", pod.workload).values() if p.uid != pod.uid
        )
        self.moves[pod.uid] = candidate, msgspec.structs.replace(pending, other_pod_marks=tuple(sorted(known)))

    def expect(self, candidate: Candidate) -> None:
        """A planned move is expected on its target."""
        self.fit.reserve(candidate.pod, candidate.target)
        add(self.arriving[candidate.target], candidate.used)

    def withdraw(self, candidate: Candidate) -> None:
        """A planned move is expected nowhere any more."""
        self.fit.withdraw(candidate.pod)
        add(self.arriving[candidate.target], candidate.used, -1)
