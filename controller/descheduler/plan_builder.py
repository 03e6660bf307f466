"""State of one round while it is decided: candidates, planned moves, and the counts that conditions check."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.cluster.resource_requests import add_amounts
from controller.descheduler.config import LimitsConfig, ResolvedConfig, StrategyName
from controller.descheduler.fit import FitChecker
from controller.descheduler.history import DAY_S, History, PendingMove, short_uid
from controller.descheduler.node_load import NodeLoad
from controller.descheduler.plan import MAX_SKIPS, Move, Skip
from controller.descheduler.snapshot import DeschedulerSnapshot, PodDisruptionBudget
from controller.descheduler.usage import Amounts
from kubekit.errors import SelectorError
from kubekit.selectors import LabelSelector, Selector, compile_selector

LimitScope = Literal["round", "node", "namespace", "group"]
MIN_BREAKER_ENTRIES = 4
"""A strategy's breaker opens only if at least this many moves have an outcome."""


def workload_of(pod: PodInfo) -> str:
    """Key of the pod's limits and back-offs: its workload, or ``namespace/Pod/name`` for a bare pod."""
    return pod.workload or f"{pod.namespace}/Pod/{pod.name}"


def scopes_of(move: Move) -> list[tuple[LimitScope, str]]:
    """The limits that a move counts against, as keys of `PlanBuilder.evictions`."""
    return [("round", ""), ("node", move.node), ("namespace", move.pod.partition("/")[0]), ("group", move.group)]


class WorkloadSize(NamedTuple):
    """Number of a workload's pods, with awaited replacements, and how many of the existing ones are not ready."""

    pods: int
    not_ready: int


class EvictionBreaker:
    """Stops a strategy if too few of its moves in 24 h helped.

    Args:
        history: has the outcomes of moves.
        limits: has ``min_success_percent``.
        now: unix seconds.
    """

    def __init__(self, history: History, limits: LimitsConfig, now: float) -> None:
        recent = [entry for entry in history.breaker_entries if now - entry.at_s <= DAY_S]
        self._total = Counter(entry.strategy for entry in recent)
        self._helped = Counter(entry.strategy for entry in recent if entry.has_helped)
        self._min_percent = limits.min_success_percent

    def stop_reason(self, strategy: StrategyName) -> str:
        """Why a strategy is stopped; empty if it is not."""
        total, helped = self._total[strategy], self._helped[strategy]
        if total < MIN_BREAKER_ENTRIES or 100 * helped >= self._min_percent * total:
            return ""
        return f"{strategy} is stopped: {helped} of {total} moves in 24 h helped"


class DisruptionBudgets:
    """Disruptions that each PodDisruptionBudget still allows, to predict the answer of the eviction subresource."""

    def __init__(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._budgets: dict[str, list[tuple[Selector, PodDisruptionBudget]]] = defaultdict(list)
        for budget in sorted(budgets, key=lambda budget: budget.metadata.key):
            if budget.spec.selector is not None:  # without a selector it covers no pod
                self._budgets[budget.metadata.namespace].append((_compile_selector(budget.spec.selector), budget))
        self._reserved: Counter[str] = Counter()

    def unevictable_reason(self, pod: PodInfo) -> str:
        """Why the pod cannot be evicted now; empty if it can."""
        budgets = self._budgets_of(pod)
        keys = [budget.metadata.key for budget in budgets]
        if len(budgets) > 1:
            # The API server refuses to evict such a pod.
            return f"several PodDisruptionBudgets cover it: {', '.join(keys)}"
        if budgets and budgets[0].status.disruptions_allowed <= self._reserved[keys[0]]:
            return f"PodDisruptionBudget {keys[0]} allows no disruption now"
        return ""

    def reserve(self, pod: PodInfo) -> None:
        """Count the pod's eviction against its budget."""
        self._reserved.update(budget.metadata.key for budget in self._budgets_of(pod))

    def _budgets_of(self, pod: PodInfo) -> list[PodDisruptionBudget]:
        return [budget for selector, budget in self._budgets.get(pod.namespace, ()) if selector.matches(pod.labels)]


def _compile_selector(selector: LabelSelector) -> Selector:
    """A budget's selector. An unknown operator selects all pods, so that none is evicted against the budget."""
    try:
        return compile_selector(selector)
    except SelectorError:
        return Selector()


class TargetRules(ABC):
    """Finds targets for the candidates of a strategy, in one round."""

    @abstractmethod
    def find_target(self, candidate: Candidate) -> str:
        """Set the candidate's target; without one, return why. Empty if there is one."""

    @abstractmethod
    def target_refusal(self, candidate: Candidate, node: Host) -> str:
        """Why the node is no better than the candidate's; empty if it is. Sets the candidate's cost."""

    def capacity_refusal(self, candidate: Candidate) -> str:  # noqa: ARG002
        """Why no other node can take any pod of the candidate's node; empty if one may."""
        return ""


@dataclass(slots=True, eq=False)
class Candidate:
    """A pod that a strategy would move.

    Attributes:
        finder: finder of its strategy; a weak proxy, because a reference cycle would keep the snapshot until a full garbage
            collection.
        used: its usage, where known.
        node_load: load of its node; None unless the strategy is LowNodeLoad.
        duration_refusal: why the reason for the move has not lasted long enough; empty if it has, and for LowNodeLoad, which
            checks that for the whole node.
        group_refusal: why a pod of its AppGroup is missing or not ready; empty if none is, and for LowNodeLoad.
        target: the node that it should move to; empty before `TargetRules.find_target`.
        cost: network cost on the target; -1 for LowNodeLoad.
        planner_refusal: why the planner would undo the move; empty if it would not, or if no plan placed the pod.
    """

    pod: PodInfo
    strategy: StrategyName
    finder: TargetRules
    used: Amounts
    node_load: NodeLoad | None = None
    duration_refusal: str = ""
    group_refusal: str = ""
    target: str = ""
    cost: int = -1
    planner_refusal: str = ""


class PlanBuilder:
    """Collects moves, skips and notes; counts planned evictions against limits and disruption budgets.

    Attributes:
        fit: checks whether pods fit nodes, counting planned moves.
        moves: planned moves by uid of the pod.
        arriving_usage: node -> usage of pods that move there, while the node's usage does not show it; "" for unknown targets.
        recent_departures: node -> number of pods evicted so recently that the node's usage does not show it yet.
        evictions: by scope and name, the number of planned evictions and of earlier ones whose replacements are not bound yet.
        evictions_by_workload: number of planned evictions.
        awaited_replacements: workload -> number of earlier evictions whose replacements are not bound yet.
        unevaluated_replacements: uids of replacements whose moves have no outcome yet.
    """

    def __init__(self, snapshot: DeschedulerSnapshot, history: History, config: ResolvedConfig, now: float) -> None:
        self.snapshot, self.history, self.config, self.now = snapshot, history, config, now
        self.breaker = EvictionBreaker(history, config.limits, now)
        self.budgets = DisruptionBudgets(snapshot.budgets)
        self.fit = FitChecker(snapshot)
        self.moves: dict[str, tuple[Candidate, PendingMove]] = {}
        self.skips: list[Skip] = []
        self.skip_counts: Counter[str] = Counter()
        self.notes: list[str] = []
        usage_lag_s = config.limits.usage_lag_s
        self.recent_departures = Counter(p.move.node for p in history.pending if now - p.at_s < usage_lag_s)
        self.arriving_usage: dict[str, dict[str, float]] = defaultdict(dict)
        for pending in history.pending:
            if not pending.replacement_node or now - pending.replacement_bound_s < usage_lag_s:
                add_amounts(self.arriving_usage[pending.replacement_node or pending.move.target], pending.move.used)
        awaited = [pending.move for pending in history.pending if not pending.replacement_node]
        self.awaited_replacements = Counter(move.workload for move in awaited)
        self.evictions = Counter(scope for move in awaited for scope in scopes_of(move))
        self.evictions_by_workload: Counter[str] = Counter()
        self.unevaluated_replacements = {p.replacement_uid for p in history.pending if p.replacement_uid}
        self._sizes: dict[str, WorkloadSize] = {}

    def workload_size(self, pod: PodInfo) -> WorkloadSize:
        """The size of the pod's workload; a bare pod is one of its own."""
        workload = workload_of(pod)
        if workload not in self._sizes:
            pods = self.snapshot.pods.where("workload", pod.workload) or {pod.key: pod}
            present = [p for p in pods.values() if p.is_active]
            size = len(present) + self.awaited_replacements[workload]
            self._sizes[workload] = WorkloadSize(size, sum(not p.is_ready for p in present))
        return self._sizes[workload]

    def add_note(self, text: str) -> None:
        """Report once what stopped a part of the round."""
        if text not in self.notes:
            self.notes.append(text)

    def add_skip(self, pod: PodInfo, condition: str, why: str) -> None:
        """Report why a pod is not moved."""
        self.skip_counts[condition] += 1
        if len(self.skips) < MAX_SKIPS:
            self.skips.append(Skip(pod.key, pod.node, condition, why))

    def make_move(self, candidate: Candidate, reason: str) -> Move:
        """The candidate's move to its target, without costs and usage of nodes."""
        pod = candidate.pod
        return Move(
            pod=pod.key,
            uid=pod.uid,
            workload=workload_of(pod),
            node=pod.node,
            target=candidate.target,
            strategy=candidate.strategy,
            reason=reason,
            used=candidate.used,
            group=self.snapshot.group_key_of(pod),
        )

    def add_move(self, candidate: Candidate, pending: PendingMove) -> None:
        """Add a move to the plan, and count it against limits, budgets and the target's capacity."""
        pod, move = candidate.pod, pending.move
        self.evictions.update(scopes_of(move))
        self.evictions_by_workload[move.workload] += 1
        self.budgets.reserve(pod)
        self.reserve_target(candidate)
        workload_pods = self.snapshot.pods.where("workload", pod.workload).values()
        siblings = tuple(sorted(short_uid(p.uid) for p in workload_pods if p.uid != pod.uid))
        self.moves[pod.uid] = candidate, msgspec.structs.replace(pending, sibling_short_uids=siblings)

    def reserve_target(self, candidate: Candidate) -> None:
        """Count a planned move against its target's capacity."""
        self.fit.reserve(candidate.pod, candidate.target)
        add_amounts(self.arriving_usage[candidate.target], candidate.used)

    def release_target(self, candidate: Candidate) -> None:
        """Undo `reserve_target`."""
        self.fit.release(candidate.pod)
        add_amounts(self.arriving_usage[candidate.target], candidate.used, -1)
