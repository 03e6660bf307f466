"""One round, decided: the pure functions behind the live loop and the dry-run alike, and what the planner says to it.

Moves of pods that our plans placed are made only if the planner, asked twice, puts the replacement where it is a gain. It is the
planner that places them, with the same groups, costs, promises and heat; what it would undo is not done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import Target
from controller.cluster.resources import WORKLOAD_LABEL
from controller.descheduler.conditions import PLANNER, Candidate, check
from controller.descheduler.config import Settings
from controller.descheduler.decision import Move, RoundPlan
from controller.descheduler.follow_up import EndedMove, follow_up
from controller.descheduler.history import History, PendingMove, back_off, mark_of
from controller.descheduler.load import LoadRound
from controller.descheduler.misplacement import MisplacementRound
from controller.descheduler.node_load import Detector
from controller.descheduler.predictor import is_planned
from controller.descheduler.round import Round
from controller.descheduler.snapshot import LoadSnapshot, World
from controller.descheduler.usage import Refusal, UsageBatch, UsageSmoother
from controller.scheduler.placement.planner import PlanningError

TURNS = 2


class RoundState(msgspec.Struct, frozen=True):
    """What is remembered in the process alone; a restart starts anew, which errs on the quiet side.

    Attributes:
        detectors: by node.
        better_since: uid of a pod -> since when a better place has been there without a break, unix seconds.
    """

    detectors: Mapping[str, Detector] = {}
    better_since: Mapping[str, float] = {}


class RoundDecision(msgspec.Struct, frozen=True):
    """A plan, the state for the next round, and the plan's moves with what to follow them by."""

    plan: RoundPlan
    state: RoundState
    pending: tuple[PendingMove, ...] = ()


class UnconfirmedDecision:
    """A decision that the planner was not asked about yet.

    Attributes:
        decision: who moves, what was skipped, what the next round has to know.
    """

    def __init__(
        self, state: RoundState, base: Round, load: LoadRound | None, misplacement: MisplacementRound | None
    ) -> None:
        self.base, self._state, self._load, self._misplacement = base, state, load, misplacement
        self._free_before = {} if load is None else load.free_before
        self._nodes = () if load is None else load.states()
        self._free_after = {} if load is None else load.free_now()
        self.decision = self.decide(base.moves)

    def decide(self, moves: Iterable[PendingMove]) -> RoundDecision:
        """The decision with these moves."""
        moves = tuple(moves)
        plan = RoundPlan(
            moves=tuple(pending.move for pending in moves),
            skips=tuple(self.base.skips),
            nodes=self._nodes,
            notes=tuple(self.base.notes),
            skipped=dict(sorted(self.base.skipped.items())),
            free_before=self._free_before,
            free_after=self._free_after,
        )
        return RoundDecision(plan, self._state, moves)

    async def ask(
        self, pending: PendingMove, question: PlanQuestion, place: AskPlanner
    ) -> tuple[PendingMove, Target | str]:
        """A move, to where the planner puts the pod; or why that is no gain, which is reported.

        What the planner says counts from here on, also for the moves after this one: two may not count on the same room.
        """
        move, pod, strategy = pending.move, question.pod, self._strategy_of(pending.move)
        self.base.withdraw(pod, move)
        targets, why = await self._targets(move, question, place)
        if check(self.base, Candidate(pod, move.strategy, strategy, move.used, planner=why), (PLANNER,)):
            return pending, why
        node = targets[0].node
        moved = strategy.redirected(move, pod, node)
        self.base.redirect(pod, move, node)
        marks = tuple(dict.fromkeys(mark_of(target.node) for target in targets))
        return msgspec.structs.replace(pending, move=moved, expected=marks), targets[0]

    async def _targets(self, move: Move, question: PlanQuestion, place: AskPlanner) -> tuple[list[Target], str]:
        """Where the planner puts the pod, asked twice, and why that is not worth it."""
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
        node = self.base.snapshot.nodes.get(name)
        if node is None or name == move.node:
            return "the node is gone" if node is None else "it would come back"
        lacks = self.base.fit.insufficient(node, pod)
        if lacks:
            return f"with what else is planned, it has too little room ({lacks})"
        return self._strategy_of(move).objection(move, pod, node)

    def _strategy_of(self, move: Move) -> LoadRound | MisplacementRound:
        found = self._load if move.strategy == "LowNodeLoad" else self._misplacement
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
) -> UnconfirmedDecision:
    """Decide who should move.

    Load comes first: a hot node harms all of its pods. Misplacement then sees what load has planned, and both draw on the same
    limits and disruption budgets.

    Args:
        snapshot: the cluster.
        history: back-off, pending moves and evictions; not changed here.
        state: detectors and since when gains have lasted, as the last round left them.
        settings: checked configuration.
        now: unix seconds.
        confirmed: act on what is hot or misplaced now, without waiting for it to last. For a dry-run from outside the loop,
            which cannot know for how long things have been so.
        survival_only: between two rounds, while a zone is filled again: nobody else moves, and detectors, which count rounds,
            stay as they are.

    Returns:
        The same for the same arguments, always.
    """
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
    if settings.misplacement.enabled and snapshot.network is not None and not paused:
        misplacement = MisplacementRound(base, snapshot.network, () if load is None else load.loads)
        better_since = misplacement.plan(state.better_since, confirmed=confirmed, survival_only=survival_only)
    return UnconfirmedDecision(RoundState(detectors, better_since), base, load, misplacement)


class Evaluation(NamedTuple):
    """What a round comes to before the planner is asked or anybody is evicted.

    Attributes:
        refused: readings that were not believed, by reason.
        history: with what became of pending moves.
        ended: moves whose outcome is known now.
    """

    snapshot: LoadSnapshot
    refused: Counter[Refusal]
    history: History
    ended: list[EndedMove]
    unconfirmed: UnconfirmedDecision


def evaluate(
    world: World,
    usage: UsageSmoother,
    batch: UsageBatch,
    history: History,
    state: RoundState,
    *,
    settings: Settings,
    now: float,
    confirmed: bool = False,
    survival_only: bool = False,
) -> Evaluation:
    """Update usage, follow moves up, and decide; waits for nothing, and takes seconds with thousands of nodes.

    Args:
        world: the cluster, and nobody changes it meanwhile.
        usage: of before; takes the batch in.
        batch: usage that was read now.
        history: as the last round left it.
        state: as the last round left it.
        settings: checked configuration.
        now: unix seconds.
        confirmed: see `decide`.
        survival_only: see `decide`.
    """
    refused = usage.update(batch, world.nodes, world.pods, now)
    snapshot = world.snapshot(usage.view(now))
    history, ended = follow_up(snapshot, history, settings.limits, now)
    unconfirmed = decide(snapshot, history, state, settings, now, confirmed=confirmed, survival_only=survival_only)
    return Evaluation(snapshot, refused, history, ended, unconfirmed)


AskPlanner = Callable[[str, str, int], Awaitable[Target | None]]
"""Group, pod and turn -> where the planner would put the pod."""


class PlanQuestion(NamedTuple):
    """A planned move of a pod that our plans placed.

    Attributes:
        group: key of its AppGroup.
        workload: its selector there.
    """

    pod: PodInfo
    group: str
    workload: str


class Confirmed(NamedTuple):
    """What is left of a decision.

    Attributes:
        history: with a back-off of each replica that the planner would not move.
        promises: uid of a pod -> the question about it, and the target that its replacement is promised.
    """

    decision: RoundDecision
    history: History
    promises: dict[str, tuple[PlanQuestion, Target]]


def questions(snapshot: LoadSnapshot, moves: Iterable[Move]) -> dict[str, PlanQuestion]:
    """Uid -> what to ask, for moves that need it; to be read before anything is awaited."""
    network, found = snapshot.network, {}
    for move in moves:
        pod = snapshot.pods.by_key[move.pod]
        if pod.wire is None or network is None or not is_planned(pod):
            continue
        group = network.group_of(pod.namespace, pod.wire.group)
        if group:
            found[move.uid] = PlanQuestion(pod, group, pod.labels.get(WORKLOAD_LABEL, ""))
    return found


async def confirm(
    unconfirmed: UnconfirmedDecision, asked: dict[str, PlanQuestion], history: History, place: AskPlanner
) -> Confirmed:
    """The decision without the moves that the planner would undo.

    Args:
        unconfirmed: with what a move to another node would be worth.
        asked: see `questions`.
        history: as `evaluate` left it.
        place: the planner.
    """
    base, moves = unconfirmed.base, list[PendingMove]()
    limits = base.settings.limits
    promises: dict[str, tuple[PlanQuestion, Target]] = {}
    for pending in unconfirmed.decision.pending:
        question = asked.get(pending.move.uid)
        if question is None:
            moves.append(pending)
            continue
        confirmed, answer = await unconfirmed.ask(pending, question, place)
        if not isinstance(answer, str):
            promises[pending.move.uid] = question, answer
            moves.append(confirmed)
            continue
        # While a zone is filled, each pod that goes there changes the answers about those that talk to it.
        survival = pending.move.strategy == "ZoneSurvival"
        first_s = base.settings.interval_s if survival else limits.workload_backoff_s
        mark = mark_of(pending.move.uid)
        history = back_off(history, mark, answer, first_s, base.now, most_s=limits.failure_backoff_s)
    return Confirmed(unconfirmed.decide(moves), history, promises)
