"""Decides one round: which pods to move. Pure; used by the controller and the dry-run.

A pod that our plans placed is moved only if each of two new plans, with different random seeds, places its replacement on a better
node. Otherwise the planner might undo the move.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import Target
from controller.cluster.resources import WORKLOAD_LABEL
from controller.descheduler.conditions import PLANNER, Candidate, check
from controller.descheduler.config import Settings, Strategy
from controller.descheduler.follow_up import EndedMove, follow_up
from controller.descheduler.history import History, PendingMove, back_off, mark_of
from controller.descheduler.low_node_load import LoadRound
from controller.descheduler.misplacement import MisplacementRound
from controller.descheduler.node_load import Detector
from controller.descheduler.predictor import is_planned
from controller.descheduler.round import Round
from controller.descheduler.round_plan import Move, RoundPlan
from controller.descheduler.snapshot import LoadSnapshot
from controller.scheduler.placement.planner import PlanningError

TURNS = 2

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


class PlanQuestion(NamedTuple):
    """A planned move of a pod that our plans placed.

    Attributes:
        group: key of its AppGroup.
        workload: its selector there.
    """

    pod: PodInfo
    group: str
    workload: str


class RoundDecision(msgspec.Struct, frozen=True):
    """The decision of a round, before and after the planner is asked.

    Attributes:
        state: for the next round.
        history: with what became of pending moves, and a back-off of each replica that the planner would not move.
        pending: the plan's moves with what to follow them by.
        ended: moves of before whose outcome is known now.
        promises: uid of a pod -> the question about it, and the target that its replacement is promised.
    """

    plan: RoundPlan
    state: RoundState
    history: History
    pending: tuple[PendingMove, ...] = ()
    ended: tuple[EndedMove, ...] = ()
    promises: Mapping[str, tuple[PlanQuestion, Target]] = {}


class UnconfirmedRound:
    """A round that is decided, but for the planner's answers.

    Attributes:
        questions: uid of a pod -> what the planner is to be asked before it is moved.
    """

    def __init__(
        self,
        base: Round,
        state: RoundState,
        ended: Iterable[EndedMove],
        load: LoadRound | None,
        misplacement: MisplacementRound | None,
    ) -> None:
        self._base, self._state, self._ended, self._load = base, state, tuple(ended), load
        self._strategies: dict[Strategy, LoadRound | MisplacementRound | None] = {
            "LowNodeLoad": load,
            "NetworkMisplacement": misplacement,
            "ZoneSurvival": misplacement,
        }
        self.questions = {p.move.uid: found for p in base.moves if (found := self._question(p.move)) is not None}

    def _question(self, move: Move) -> PlanQuestion | None:
        snapshot = self._base.snapshot
        pod = snapshot.pods.by_key[move.pod]
        if pod.wire is None or not is_planned(pod):
            return None
        group = snapshot.network.group_of(pod.namespace, pod.wire.group)
        return PlanQuestion(pod, group, pod.labels.get(WORKLOAD_LABEL, "")) if group else None

    @property
    def decision(self) -> RoundDecision:
        """The decision before the planner is asked."""
        return self._decide(self._base.moves, self._base.history)

    def _decide(
        self,
        moves: Sequence[PendingMove],
        history: History,
        promises: Mapping[str, tuple[PlanQuestion, Target]] = {},
    ) -> RoundDecision:
        base, load = self._base, self._load
        plan = RoundPlan(
            moves=tuple(pending.move for pending in moves),
            skips=tuple(base.skips),
            nodes=() if load is None else load.states(),
            notes=tuple(base.notes),
            skipped=dict(sorted(base.skipped.items())),
        )
        return RoundDecision(plan, self._state, history, tuple(moves), self._ended, promises)

    async def confirm(self, place: AskPlanner) -> RoundDecision:
        """The decision without the moves that the planner would undo."""
        base, history, kept = self._base, self._base.history, list[PendingMove]()
        limits = base.settings.limits
        promises: dict[str, tuple[PlanQuestion, Target]] = {}
        for pending in base.moves:
            move, question = pending.move, self.questions.get(pending.move.uid)
            if question is None:
                kept.append(pending)
                continue
            confirmed, answer = await self._ask(pending, question, place)
            if not isinstance(answer, str):
                promises[move.uid] = question, answer
                kept.append(confirmed)
                continue
            # While a zone is filled, each pod that goes there changes the answers about those that talk to it.
            first_s = base.settings.interval_s if move.strategy == "ZoneSurvival" else limits.workload_backoff_s
            mark = mark_of(move.uid)
            history = back_off(history, mark, answer, first_s, base.now, most_s=limits.failure_backoff_s)
        return self._decide(kept, history, promises)

    async def _ask(
        self, pending: PendingMove, question: PlanQuestion, place: AskPlanner
    ) -> tuple[PendingMove, Target | str]:
        """A move, to where the planner puts the pod; or why that is no gain, which is reported.

        What the planner says counts from here on, also for the moves after this one: two may not count on the same room.
        """
        move, pod, strategy = pending.move, question.pod, self._strategy_of(pending.move)
        self._base.withdraw(pod, move)
        targets, why = await self._targets(move, question, place)
        if check(self._base, Candidate(pod, move.strategy, strategy, move.used, planner=why), (PLANNER,)):
            return pending, why
        node = targets[0].node
        redirected = strategy.redirected(move, pod, node)
        self._base.redirect(pod, move, node)
        return msgspec.structs.replace(pending, move=redirected), targets[0]

    async def _targets(self, move: Move, question: PlanQuestion, place: AskPlanner) -> tuple[list[Target], str]:
        """The targets of two plans for the pod, and why the move would not help."""
        targets: list[Target] = []
        for turn in range(TURNS):
            try:
                target = await place(question.group, move.pod, turn)
            except PlanningError as error:
                return [], f"the planner does not say where it would go: {error}"
            if target is None:
                return [], "the planner would find no place for it"
            why = self._objection(move, question.pod, target.node)
            if why:
                return [], f"the planner would put it on {target.node}: {why}"
            targets.append(target)
        return targets, ""

    def _objection(self, move: Move, pod: PodInfo, name: str) -> str:
        """Why a withdrawn move would be no gain if it went to this node; empty when it would be one."""
        node = self._base.snapshot.nodes.get(name)
        if node is None or name == move.node:
            return "the node is gone" if node is None else "it would come back"
        lacks = self._base.fit.insufficient(node, pod)
        if lacks:
            return f"with other planned pods it has too little ({lacks})"
        return self._strategy_of(move).objection(move, pod, node)

    def _strategy_of(self, move: Move) -> LoadRound | MisplacementRound:
        found = self._strategies[move.strategy]
        assert found is not None, "it planned the move"
        return found


def decide(
    snapshot: LoadSnapshot,
    history: History,
    state: RoundState,
    settings: Settings,
    now: float,
    *,
    confirmed: bool = False,
    survival_only: bool = False,
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
        survival_only: between two rounds, while a zone is filled again: no other pod moves, and detectors, which count rounds,
            stay as they are.

    Returns:
        The same for the same arguments, always.
    """
    history, ended = follow_up(snapshot, history, settings.limits, now)
    base = Round(snapshot, history, settings, now)
    load = None if settings.load is None else LoadRound(base, settings.load)
    paused = settings.load is not None and settings.load.paused
    detectors, better_since = state.detectors, {}
    if paused:
        base.note("LowNodeLoad is paused")
    elif load is not None and not survival_only:
        detectors = load.plan(detectors, confirmed=confirmed)
    base.hot = frozenset() if load is None else frozenset(one.name for one in load.loads if one.kind == "over")
    misplacement = None
    if settings.misplacement.enabled and not paused:
        misplacement = MisplacementRound(base, () if load is None else load.loads)
        better_since = misplacement.plan(state.better_since, confirmed=confirmed, survival_only=survival_only)
    return UnconfirmedRound(base, RoundState(detectors, better_since), ended, load, misplacement)
