"""Decides one round: which pods to move. Pure; used by the controller and the dry-run.

A pod that our plans placed is moved only if each of two new plans, with different random seeds, places its replacement on a better
node. Otherwise the planner might undo the move.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import Target, target_of
from controller.descheduler.conditions import PLANNER, check
from controller.descheduler.config import Settings
from controller.descheduler.follow_up import EndedMove, follow_up
from controller.descheduler.history import History, PendingMove, back_off, short_uid
from controller.descheduler.low_node_load import LoadRound
from controller.descheduler.misplacement import MisplacementRound
from controller.descheduler.node_load import Detector
from controller.descheduler.round import Candidate, Round
from controller.descheduler.round_plan import RoundPlan
from controller.descheduler.snapshot import LoadSnapshot
from controller.scheduler.placement.planner import PlanningError

CONFIRMING_PLANS = 2

AskPlanner = Callable[[str, str, int], Awaitable[Target | None]]
"""Group, pod and turn -> where the planner would put the pod."""


class RoundState(msgspec.Struct, frozen=True):
    """State between rounds that is kept in the process only.

    Attributes:
        detectors: by node.
        better_since: uid of a pod -> since when a better place has been there without a break, unix seconds.
    """

    detectors: Mapping[str, Detector] = {}
    better_since: Mapping[str, float] = {}


class Promise(NamedTuple):
    """The node on which the planner would put the replacement of a moved pod."""

    pod: PodInfo
    group: str
    target: Target


class RoundDecision(msgspec.Struct, frozen=True):
    """The decision of a round, before and after the planner is asked.

    Attributes:
        state: for the next round.
        history: with what became of pending moves, and a back-off of each replica that the planner would not move.
        pending: the plan's moves with what to follow them by.
        ended: moves of before whose outcome is known now.
        promises: by uid of the pod.
    """

    plan: RoundPlan
    state: RoundState
    history: History
    pending: tuple[PendingMove, ...] = ()
    ended: tuple[EndedMove, ...] = ()
    promises: Mapping[str, Promise] = {}


class UnconfirmedRound:
    """A decided round, whose moves the planner has yet to confirm."""

    def __init__(
        self,
        base: Round,
        state: RoundState,
        ended: Sequence[EndedMove],
        load: LoadRound | None,
        misplacement: MisplacementRound | None = None,
    ) -> None:
        self._base, self._state, self._ended = base, state, tuple(ended)
        self._load, self._misplacement = load, misplacement
        self._history, self._promises = base.history, dict[str, Promise]()

    @property
    def decision(self) -> RoundDecision:
        """The decision; of moves that the planner was not asked about yet, as planned."""
        base, load = self._base, self._load
        pending = tuple(pending for _, pending in base.moves.values())
        plan = RoundPlan(
            moves=tuple(one.move for one in pending),
            skips=tuple(base.skips),
            nodes=() if load is None else load.states(),
            notes=tuple(base.notes),
            skip_counts=dict(sorted(base.skip_counts.items())),
        )
        return RoundDecision(plan, self._state, self._history, pending, self._ended, dict(self._promises))

    async def confirm(self, place: AskPlanner) -> RoundDecision:
        """The decision without the moves that the planner would undo.

        What the planner says of one move counts for those after it: two may not count on the same room.
        """
        base, limits = self._base, self._base.settings.limits
        for uid, (candidate, pending) in list(base.moves.items()):
            group = self._planned_by(candidate.pod)
            if not group:
                continue
            base.withdraw(candidate)
            target, candidate.planner = await self._target(candidate, group, place)
            if check(base, candidate, (PLANNER,)):
                del base.moves[uid]
                first_s, most_s = limits.workload_backoff_s, limits.failure_backoff_s
                self._history = back_off(
                    self._history, short_uid(uid), candidate.planner, first_s, base.now, most_s=most_s
                )
                continue
            candidate.target = target.node
            base.expect(candidate)
            move = msgspec.structs.replace(pending.move, target=candidate.target, cost_after=candidate.cost)
            base.moves[uid] = candidate, msgspec.structs.replace(pending, move=move)
            self._promises[uid] = Promise(candidate.pod, group, target)
        return self.decision

    def _planned_by(self, pod: PodInfo) -> str:
        """The group whose plan chose the pod's node, and will choose its replacement's; empty where none did."""
        if pod.wire is None or target_of(pod.wire) is None:
            return ""
        return self._base.snapshot.network.group_of(pod.namespace, pod.wire.group)

    async def _target(self, candidate: Candidate, group: str, place: AskPlanner) -> tuple[Target, str]:
        """The target of the first of some plans for the pod, and why the move would not help by one of them."""
        target: Target | None = None
        for turn in reversed(range(CONFIRMING_PLANS)):
            try:
                target = await place(group, candidate.pod.key, turn)
            except PlanningError as error:
                return Target(), f"the planner does not say where it would go: {error}"
            if target is None:
                return Target(), "the planner would find no place for it"
            why = self._objection(candidate, target.node)
            if why:
                return target, f"the planner would put it on {target.node}: {why}"
        return target or Target(), ""

    def _objection(self, candidate: Candidate, name: str) -> str:
        """Why a withdrawn move would be no gain if it went to this node; empty when it would be one."""
        node = self._base.snapshot.nodes.get(name)
        if node is None or not node.takes_pods:
            return "the node takes no pods any more"
        if name == candidate.pod.node:
            return "it would come back"
        lacks = self._base.fit.dynamic_refusal(node, candidate.pod)
        if lacks:
            return f"with other planned pods it has too little ({lacks})"
        return candidate.finder.objection(candidate, node)


def decide(
    snapshot: LoadSnapshot,
    history: History,
    state: RoundState,
    settings: Settings,
    now: float,
    *,
    confirmed: bool = False,
) -> UnconfirmedRound:
    """Follow moves up and decide who should move; waits for nothing, and takes seconds with thousands of nodes.

    Load comes first: a hot node harms all of its pods. Misplacement then sees what load has planned, and both draw on the same
    limits and disruption budgets.

    Args:
        snapshot: the cluster.
        history: back-off, pending moves and evictions, as the last round left them.
        state: detectors and since when gains have lasted, as the last round left them.
        settings: checked configuration.
        now: unix seconds.
        confirmed: act on what is hot or misplaced now, without waiting for it to last. For a dry-run from outside the loop,
            which cannot know for how long things have been so.

    Returns:
        The same for the same arguments, always.
    """
    history, ended = follow_up(snapshot, history, settings.limits, now)
    base = Round(snapshot, history, settings, now)
    load = None if settings.load is None else LoadRound(base, settings.load)
    detectors, better_since = state.detectors, dict[str, float]()
    if settings.load is not None and settings.load.args.paused:
        base.note("LowNodeLoad is paused")
        return UnconfirmedRound(base, RoundState(detectors), ended, load)
    if load is not None:
        detectors = load.plan(detectors, confirmed=confirmed)
    misplacement = None
    if settings.misplacement.enabled:
        misplacement = MisplacementRound(base, {} if load is None else load.loads)
        better_since = misplacement.plan(state.better_since, confirmed=confirmed)
    return UnconfirmedRound(base, RoundState(detectors, better_since), ended, load, misplacement)
