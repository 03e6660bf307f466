"""`PlanBuilder`: the moves of one round, counted against limits. Conditions read it, and strategies add their `Candidate`s to it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.cluster.resource_requests import add_amounts
from controller.descheduler.config import ResolvedConfig, StrategyName
from controller.descheduler.disruption_budgets import AllowedDisruptions
from controller.descheduler.evaluation import find_stopped_strategies
from controller.descheduler.fit import FitChecker
from controller.descheduler.history import MIN_OLD_POD_AGE_S, History, PendingMove, short_uid
from controller.descheduler.node_load import NodeLoad
from controller.descheduler.plan import MAX_SKIPS, Move, Skip
from controller.descheduler.snapshot import DeschedulerSnapshot
from controller.descheduler.usage import Amounts

LimitScope = Literal["round", "node", "namespace", "group"]


def limit_key_of(pod: PodInfo) -> str:
    """Key of the pod's limits and back-offs: its workload, or ``namespace/Pod/name`` for a bare pod."""
    return pod.workload or f"{pod.namespace}/Pod/{pod.name}"


def scopes_of(move: Move) -> list[tuple[LimitScope, str]]:
    """The limits that a move counts against, as keys of `PlanBuilder.evictions_by_scope`."""
    return [("round", ""), ("node", move.node), ("namespace", move.pod.partition("/")[0]), ("group", move.group)]


class WorkloadSize(NamedTuple):
    """Number of a workload's pods, with awaited replacements, and how many of the existing ones are not ready."""

    pod_count: int
    not_ready_count: int


@dataclass(slots=True, eq=False)
class Candidate:
    """A pod that a strategy would move.

    ``x_failure`` is why the pod fails condition x, empty if it passes. The strategy sets it before the condition is checked.

    Attributes:
        usage: see `Move`.
        node_load: load of its node; None unless the strategy is LowNodeLoad.
        target: the node that it should move to; empty if none is assigned.
        duration_failure, capacity_failure, readiness_failure, fit_failure, planner_failure: of ``reason-duration``,
            ``free-capacity``, ``group-readiness``, ``node-fit`` and ``planner``.
    """

    pod: PodInfo
    strategy: StrategyName
    usage: Amounts
    node_load: NodeLoad | None = None
    target: str = ""
    duration_failure: str = ""
    capacity_failure: str = ""
    readiness_failure: str = ""
    fit_failure: str = ""
    planner_failure: str = ""


class PlannedMove(NamedTuple):
    """A planned move with its candidate."""

    candidate: Candidate
    pending: PendingMove


class PlanBuilder:
    """Collects moves, skips and notes; counts evictions against limits and disruption budgets.

    Attributes:
        now: time of the round, unix seconds.
        stopped_strategies: those whose breaker is open, each with the reason.
        allowed_disruptions: disruption budgets, counting planned evictions.
        fit: checks whether pods fit nodes, counting planned moves.
        moves_by_uid: planned moves by uid of the pod.
        skips, skip_counts, notes: see `DeschedulePlan`.
        departures_by_node: number of evicted pods that still terminate, or that the node's usage may still contain (``limits.usageLagS``).
        arriving_usage_by_node: usage of moved pods that their new node (empty if unknown) does not show yet (``limits.usageLagS``).
        awaited_by_workload: number of earlier evictions whose replacements are not bound yet.
        evictions_by_scope: number of planned evictions, and of earlier ones whose replacements are not bound yet.
        evictions_by_workload: number of planned evictions.
        unevaluated_replacement_uids: of replacements whose moves have no outcome yet.
    """

    def __init__(self, snapshot: DeschedulerSnapshot, history: History, config: ResolvedConfig, now: float) -> None:
        self.snapshot, self.history, self.config, self.now = snapshot, history, config, now
        self.stopped_strategies = find_stopped_strategies(history, config.limits)
        self.allowed_disruptions = AllowedDisruptions(snapshot.budgets)
        self.fit = FitChecker(snapshot)
        self.moves_by_uid: dict[str, PlannedMove] = {}
        self.skips: list[Skip] = []
        self.skip_counts: Counter[str] = Counter()
        self.notes: list[str] = list(config.warnings)
        pending_moves, usage_lag_s = history.pending_moves, config.limits.usage_lag_s
        self.departures_by_node = Counter(
            p.move.node
            for p in pending_moves
            if now - p.planned_at_s < usage_lag_s or snapshot.has_unfinished_pod(p.move.pod, p.move.uid)
        )
        self.arriving_usage_by_node: dict[str, dict[str, float]] = defaultdict(dict)
        for pending in pending_moves:
            if not pending.replacement_node or now - pending.replacement_bound_at_s < usage_lag_s:
                node = pending.replacement_node or pending.move.target
                add_amounts(self.arriving_usage_by_node[node], pending.move.usage)
        moves_without_replacement = [pending.move for pending in pending_moves if not pending.replacement_node]
        self.awaited_by_workload = Counter(move.workload for move in moves_without_replacement)
        self.evictions_by_scope = Counter(scope for move in moves_without_replacement for scope in scopes_of(move))
        self.evictions_by_workload: Counter[str] = Counter()
        self.unevaluated_replacement_uids = {p.replacement_uid for p in pending_moves if p.replacement_uid}
        self._sizes_by_workload: dict[str, WorkloadSize] = {}

    def workload_size(self, pod: PodInfo) -> WorkloadSize:
        """The size of the pod's workload; a bare pod is a workload of one."""
        workload = limit_key_of(pod)
        if workload not in self._sizes_by_workload:
            pods = self.snapshot.pods.where("workload", pod.workload) or {pod.key: pod}
            active = [p for p in pods.values() if p.is_active]
            size = len(active) + self.awaited_by_workload[workload]
            self._sizes_by_workload[workload] = WorkloadSize(size, sum(not p.is_ready for p in active))
        return self._sizes_by_workload[workload]

    def add_note(self, text: str) -> None:
        """Add a note, unless the plan has it already."""
        if text not in self.notes:
            self.notes.append(text)

    def add_skip(self, pod: PodInfo, condition: str, reason: str) -> None:
        """Count a pod that is not moved, and list it unless `MAX_SKIPS` are listed already."""
        self.skip_counts[condition] += 1
        if len(self.skips) < MAX_SKIPS:
            self.skips.append(Skip(pod.key, pod.node, condition, reason))

    def make_move(self, candidate: Candidate, reason: str) -> Move:
        """The candidate's move to its target; costs and usage of nodes are left empty. It is not added to the plan."""
        pod = candidate.pod
        return Move(
            pod=pod.key,
            uid=pod.uid,
            workload=limit_key_of(pod),
            node=pod.node,
            target=candidate.target,
            strategy=candidate.strategy,
            reason=reason,
            usage=candidate.usage,
            group=self.snapshot.group_key_of(pod),
        )

    def add_move(self, candidate: Candidate, pending: PendingMove) -> None:
        """Add a move to the plan, and count it against limits, disruption budgets and the target's capacity."""
        pod, move = candidate.pod, pending.move
        self.evictions_by_scope.update(scopes_of(move))
        self.evictions_by_workload[move.workload] += 1
        self.allowed_disruptions.reserve(pod)
        self.reserve_target(candidate)
        workload_pods = self.snapshot.pods.where("workload", pod.workload).values()
        young_since_s = self.now - MIN_OLD_POD_AGE_S
        young_siblings = (p.uid for p in workload_pods if p.uid != pod.uid and p.created_s > young_since_s)
        siblings = tuple(sorted(map(short_uid, young_siblings)))
        pending = msgspec.structs.replace(pending, sibling_short_uids=siblings)
        self.moves_by_uid[pod.uid] = PlannedMove(candidate, pending)

    def misfit_reason(self, pod: PodInfo, node: Host, load: NodeLoad | None, usage: Amounts) -> str:
        """Why a pod does not fit on a node, by the scheduler's rules and, if the node's load is known, by usage; empty if it fits."""
        reason = self.fit.static_unschedulable_reason(node, pod)
        if not reason and load is not None and load.load_class != "unknown":
            reason = load.overload_reason(usage, self.arriving_usage_by_node.get(node.name, {}))
        return reason or self.fit.dynamic_unschedulable_reason(node, pod)

    def reserve_target(self, candidate: Candidate) -> None:
        """Count a planned move against its target's capacity."""
        self.fit.reserve(candidate.pod, candidate.target)
        add_amounts(self.arriving_usage_by_node[candidate.target], candidate.usage)

    def release_target(self, candidate: Candidate) -> None:
        """Undo `reserve_target`."""
        self.fit.release(candidate.pod)
        add_amounts(self.arriving_usage_by_node[candidate.target], candidate.usage, -1)
