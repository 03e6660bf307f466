"""Decides which pods a round moves, for the controller and for the dry run. Reads no clock and no cluster.

If the planner placed a pod, the move must be confirmed: each of two new plans, with different random seeds, places the replacement on
a better node. Otherwise the planner might undo the move.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from controller.cluster.pods import Target, target_of
from controller.descheduler.conditions import PLANNER, report_first_failure
from controller.descheduler.config import ResolvedConfig
from controller.descheduler.evaluation import EvaluatedMove, evaluate_moves
from controller.descheduler.history import History, PendingMove, extend_backoff
from controller.descheduler.low_node_load import LowNodeLoadStrategy
from controller.descheduler.misplacement import MisplacementStrategies
from controller.descheduler.node_load import AnomalyDetector
from controller.descheduler.plan import DeschedulePlan
from controller.descheduler.plan_builder import Candidate, PlanBuilder, PlannedMove
from controller.descheduler.snapshot import DeschedulerSnapshot
from controller.scheduler.placement.planner import PlanningError

CONFIRMING_PLANS = 2

SimulateReplacement = Callable[[str, str, int], Awaitable[Target | None]]
"""(key of a group, key of its pod, number that varies the random seed) -> the planner's target for the pod's replacement, None if there is
none."""


class ReasonDurations(msgspec.Struct, frozen=True):
    """For how long reasons for moves have lasted, after a round. A new leader starts with none.

    Attributes:
        detectors: by name of the node.
        better_since: by uid of a pod, the time since which there has always been a better node for it, unix seconds.
    """

    detectors: Mapping[str, AnomalyDetector] = {}
    better_since: Mapping[str, float] = {}


class DescheduleDecision(msgspec.Struct, frozen=True):
    """The decision of a round, before or after `UnconfirmedDecision.confirm`.

    Attributes:
        plan: the moves, and why other pods stay.
        durations: for the next round.
        history: with the results of earlier moves, and with back-offs of pods whose moves the planner would undo.
        pending_moves: the plan's moves, with the data that their evaluation needs.
        evaluated_moves: earlier moves whose outcome is known now.
        replacement_targets: the planner's targets of the moves that it confirmed, by uid of the pod.
    """

    plan: DeschedulePlan
    durations: ReasonDurations
    history: History
    pending_moves: tuple[PendingMove, ...] = ()
    evaluated_moves: tuple[EvaluatedMove, ...] = ()
    replacement_targets: Mapping[str, Target] = {}


class UnconfirmedDecision:
    """A decision whose moves the planner has not confirmed yet. A strategy that is not enabled is None."""

    def __init__(
        self,
        builder: PlanBuilder,
        durations: ReasonDurations,
        evaluated_moves: Sequence[EvaluatedMove],
        low_node_load: LowNodeLoadStrategy | None,
        misplacement: MisplacementStrategies | None = None,
    ) -> None:
        self._builder, self._durations, self._evaluated_moves = builder, durations, tuple(evaluated_moves)
        self._low_node_load, self._misplacement = low_node_load, misplacement
        self._history, self._replacement_targets = builder.history, dict[str, Target]()

    @property
    def decision(self) -> DescheduleDecision:
        """The decision so far."""
        builder, low_node_load = self._builder, self._low_node_load
        pending_moves = tuple(planned.pending for planned in builder.moves_by_uid.values())
        plan = DeschedulePlan(
            moves=tuple(pending.move for pending in pending_moves),
            skips=tuple(builder.skips),
            nodes=() if low_node_load is None else low_node_load.node_states(),
            notes=tuple(builder.notes),
            skip_counts=dict(sorted(builder.skip_counts.items())),
        )
        return DescheduleDecision(
            plan=plan,
            durations=self._durations,
            history=self._history,
            pending_moves=pending_moves,
            evaluated_moves=self._evaluated_moves,
            replacement_targets=dict(self._replacement_targets),
        )

    async def confirm(self, simulate: SimulateReplacement) -> DescheduleDecision:
        """Give the moves the planner's targets, and remove the moves that the planner would undo; returns the decision.

        The target of each move is reserved before the next move is simulated, so that two moves do not use the same capacity. States of
        nodes stay as before, and removed moves still count against limits and disruption budgets.
        """
        builder, limits = self._builder, self._builder.config.limits
        for uid, (candidate, pending) in list(builder.moves_by_uid.items()):
            if not self._is_placed_by_plan(candidate):
                continue
            builder.release_target(candidate)
            target, candidate.planner_failure = await self._simulate_target(candidate, simulate)
            failed = report_first_failure(builder, candidate, (PLANNER,))
            if failed is not None:
                # The pod backs off, so that the next round chooses another.
                del builder.moves_by_uid[uid]
                base_s, cap_s = limits.workload_backoff_s, limits.failure_backoff_s
                self._history = extend_backoff(self._history, uid, failed.reason, base_s, builder.now, cap_s=cap_s)
                continue
            candidate.target = target.node
            builder.reserve_target(candidate)
            strategy = self._strategy_of(candidate)
            cost = strategy.network_cost(candidate, target.node) if isinstance(strategy, MisplacementStrategies) else -1
            move = msgspec.structs.replace(pending.move, target=target.node, cost_after=cost)
            builder.moves_by_uid[uid] = PlannedMove(candidate, msgspec.structs.replace(pending, move=move))
            self._replacement_targets[uid] = target
        return self.decision

    def _is_placed_by_plan(self, candidate: Candidate) -> bool:
        """Whether a plan of the pod's AppGroup, which still exists, placed the pod."""
        pod, network = candidate.pod.group_pod, self._builder.snapshot.network
        if pod is None or target_of(pod) is None:
            return False
        return bool(network.group_key_of(candidate.pod.namespace, pod.group))

    def _strategy_of(self, candidate: Candidate) -> LowNodeLoadStrategy | MisplacementStrategies:
        """The strategy that would move the candidate."""
        strategy = self._low_node_load if candidate.strategy == "LowNodeLoad" else self._misplacement
        assert strategy is not None, "a candidate's strategy is enabled"
        return strategy

    async def _simulate_target(self, candidate: Candidate, simulate: SimulateReplacement) -> tuple[Target, str]:
        """The replacement's target in the plan of seed 0, and why the move is not confirmed; empty if all plans have a better node."""
        group = self._builder.snapshot.group_key_of(candidate.pod)
        target: Target | None = None
        for seed in reversed(range(CONFIRMING_PLANS)):
            try:
                target = await simulate(group, candidate.pod.key, seed)
            except PlanningError as error:
                return Target(), f"the planner cannot plan its replacement: {error}"
            if target is None:
                return Target(), "the planner finds no node for its replacement"
            if reason := self._unsuitable_reason(candidate, target.node):
                return target, f"the planner would put it on {target.node}: {reason}"
        return target or Target(), ""

    def _unsuitable_reason(self, candidate: Candidate, node_name: str) -> str:
        """Why a node is no better for the pod; empty if it is better. The move's own reservation must be released."""
        node = self._builder.snapshot.nodes.get(node_name)
        if node is None or not node.accepts_pods:
            return "the node takes no pods any more"
        if node_name == candidate.pod.node:
            return "it would return to its node"
        if misfit := self._builder.fit.dynamic_unschedulable_reason(node, candidate.pod):
            return f"the pod does not fit beside other planned pods ({misfit})"
        return self._strategy_of(candidate).unsuitable_reason(candidate, node)


def decide(
    snapshot: DeschedulerSnapshot,
    history: History,
    durations: ReasonDurations,
    config: ResolvedConfig,
    now: float,
    *,
    ignore_durations: bool = False,
) -> UnconfirmedDecision:
    """Evaluate earlier moves and decide which pods to move at ``now``, unix seconds. Takes seconds with thousands of nodes.

    LowNodeLoad comes first, because an overutilized node harms all of its pods. The misplacement strategies count its moves.

    ``history`` and ``durations`` are those after the last round. A dry run knows no durations: with ``ignore_durations``, all reasons
    have lasted for long enough.
    """
    history, evaluated_moves = evaluate_moves(snapshot, history, config.limits, now)
    builder = PlanBuilder(snapshot, history, config, now)
    if config.low_node_load is not None and config.low_node_load.args.paused:
        builder.add_note("LowNodeLoad is paused, and with it all strategies")
        return UnconfirmedDecision(builder, ReasonDurations(), evaluated_moves, None)
    low_node_load = None if config.low_node_load is None else LowNodeLoadStrategy(builder, config.low_node_load)
    detectors, better_since = durations.detectors, dict[str, float]()
    if low_node_load is not None:
        detectors = low_node_load.plan_moves(detectors, ignore_durations=ignore_durations)
    misplacement = None
    if config.misplacement.enabled:
        misplacement = MisplacementStrategies(builder, {} if low_node_load is None else low_node_load.loads_by_node)
        better_since = misplacement.plan_moves(durations.better_since, ignore_durations=ignore_durations)
    durations = ReasonDurations(detectors, better_since)
    return UnconfirmedDecision(builder, durations, evaluated_moves, low_node_load, misplacement)
