"""One round, decided: the pure function behind the live loop and the dry-run alike, and what the planner says to it.

Moves of pods that our plans placed are made only if the planner, asked twice, puts the replacement where it is a gain. It is the
planner that places them, with the same groups, costs, promises and heat; what it would undo is not done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import Target
from controller.cluster.resources import WORKLOAD_LABEL
from controller.descheduler.config import Settings, Strategy
from controller.descheduler.decision import MOST_SKIPS, Declined, Move, RoundDecision, RoundPlan, Skip, Watched
from controller.descheduler.followup import Ended, follow
from controller.descheduler.foresight import is_planned
from controller.descheduler.load import LoadRound
from controller.descheduler.memory import Followed, Memory, mark_of
from controller.descheduler.misplacement import MisplacementRound
from controller.descheduler.round import Round
from controller.descheduler.snapshot import LoadSnapshot, World
from controller.descheduler.usage import Batch, Refusal, UsageBook
from controller.scheduler.placement.planner import PlanningError


class Deliberation:
    """A decision, and what each of its moves would be worth if it went to another node.

    Attributes:
        decision: who moves, what was skipped, what the next round has to know.
    """

    def __init__(
        self, decision: RoundDecision, base: Round, load: LoadRound | None, misplacement: MisplacementRound | None
    ) -> None:
        self.decision = decision
        self._base, self._load, self._misplacement = base, load, misplacement

    def withdraw(self, move: Move) -> None:
        """A planned move is expected nowhere until it is redirected: nothing is kept for it."""
        pod = self._base.snapshot.pods.by_key.get(move.pod)
        if pod is not None:
            self._base.withdraw(pod, move)

    def loss(self, move: Move, node: str) -> str:
        """Why a move that was withdrawn would be no gain if it went to this node; empty when it would be one."""
        pod = self._base.snapshot.pods.by_key.get(move.pod)
        host = self._base.snapshot.nodes.get(node)
        if pod is None or host is None:
            return "the pod or the node is gone"
        why = self._base.fit.lack(host, pod)
        if why:
            return f"with what else is planned, it has too little room ({why})"
        if move.strategy == "LowNodeLoad":
            return self._load.loss_of(move, node) if self._load is not None else ""
        if self._misplacement is None:
            return "its group is not known"
        if node in self._base.hot:
            return "it is hot"
        return self._misplacement.loss(pod, host)

    def redirect(self, move: Move, node: str) -> Move:
        """A move that was withdrawn goes to this node."""
        pod = self._base.snapshot.pods.by_key.get(move.pod)
        if pod is None:
            return move
        if move.strategy == "LowNodeLoad" and self._load is not None:
            told = self._load.redirected(move, node)
        elif self._misplacement is not None:
            told = self._misplacement.redirected(move, pod, node)
        else:
            told = move
        self._base.redirect(pod, move, node)
        return told

    def decline(self, whys: Mapping[str, tuple[Strategy, str]]) -> Mapping[str, Declined]:
        """What the planner has against moves, those of before included; the next question waits twice as long each time.

        While a zone is filled every pod that goes there changes the answers about those that talk to it, so about survival the
        first question after is a round later.
        """
        limits, now, before = self._base.settings.limits, self._base.now, self._base.declined
        found = dict(before)
        for uid, (strategy, why) in whys.items():
            times = before[uid].times + 1 if uid in before else 1
            first_s = self._base.settings.interval_s if strategy == "ZoneSurvival" else limits.workload_backoff_s
            wait_s = min(first_s * 2.0 ** min(times - 1, 32), limits.failure_backoff_s)
            found[uid] = Declined(why, now + wait_s, times)
        return found


def deliberate(
    snapshot: LoadSnapshot,
    memory: Memory,
    watched: Watched,
    settings: Settings,
    now: float,
    *,
    confirmed: bool = False,
    survival_only: bool = False,
) -> Deliberation:
    """Decide who should move.

    Load comes first: a hot node harms all of its pods. Misplacement then sees what load has planned, and both draw on the same
    limits and disruption budgets.

    Args:
        snapshot: the cluster.
        memory: back-off, moves underway and what was spent; not changed here.
        watched: detectors and since when gains have lasted, as the last round left them.
        settings: checked configuration.
        now: unix seconds.
        confirmed: act on what is hot or misplaced now, without waiting for it to last. For a dry-run from outside the loop,
            which cannot know for how long things have been so.
        survival_only: between two rounds, while a zone is filled again: nobody else moves, and detectors, which count rounds,
            stay as they are.

    Returns:
        The same for the same arguments, always.
    """
    forget_s = settings.limits.failure_backoff_s
    declined = {uid: one for uid, one in watched.declined.items() if now - one.until_s < forget_s}
    base = Round(snapshot, memory, settings, now, declined)
    load = None if settings.load is None else LoadRound(base, settings.load)
    detectors = watched.detectors
    if load is not None and not survival_only:
        detectors = load.plan(detectors, confirmed=confirmed)
    better_since = {}
    misplacement = None
    base.hot = frozenset() if load is None else frozenset(one.node.name for one in load.loads if one.kind == "over")
    paused = settings.load is not None and settings.load.paused
    if settings.misplacement.enabled and snapshot.network is not None and not paused:
        misplacement = MisplacementRound(base, snapshot.network, () if load is None else load.loads)
        better_since = misplacement.plan(watched.better_since, confirmed=confirmed, survival_only=survival_only)
    plan = RoundPlan(
        moves=tuple(base.moves),
        skips=tuple(base.skips),
        nodes=() if load is None else load.states(),
        notes=tuple(base.notes),
        skipped=dict(sorted(base.skipped.items())),
        free_before={} if load is None else load.free_before,
        free_after={} if load is None else load.free_after,
    )
    decision = RoundDecision(plan, Watched(detectors, better_since, declined), tuple(base.follows))
    return Deliberation(decision, base, load, misplacement)


class Thought(NamedTuple):
    """What a round comes to before anybody is asked or evicted.

    Attributes:
        refused: readings that were not believed, by reason.
        memory: after the look at the moves underway.
        ended: those of them whose end is known now.
    """

    snapshot: LoadSnapshot
    refused: Counter[Refusal]
    memory: Memory
    ended: list[Ended]
    deliberation: Deliberation


def think(
    world: World,
    book: UsageBook,
    batch: Batch,
    memory: Memory,
    watched: Watched,
    *,
    settings: Settings,
    now: float,
    confirmed: bool = False,
    survival_only: bool = False,
) -> Thought:
    """Take usage in, follow moves up, and decide; waits for nothing, and takes seconds with thousands of nodes.

    Args:
        world: the cluster, and nobody changes it meanwhile.
        book: usage of before; takes the batch in.
        batch: usage that was read now.
        memory: as the last round left it.
        watched: detectors and since when gains have lasted, as the last round left them.
        settings: checked configuration.
        now: unix seconds.
        confirmed: see `deliberate`.
        survival_only: see `deliberate`.
    """
    refused = book.fold(batch, world.nodes, world.pods.by_key, now)
    snapshot = world.snapshot(book.view(now))
    memory, ended = follow(snapshot, memory, settings.limits, now)
    deliberation = deliberate(
        snapshot, memory, watched, settings, now, confirmed=confirmed, survival_only=survival_only
    )
    return Thought(snapshot, refused, memory, ended, deliberation)


TURNS = 2


class MovePlanner(Protocol):
    """Of `controller.scheduler.gating.group_plans.GroupPlans`, what moves need."""

    async def simulate_replacement(self, group: str, key: str, turn: int) -> Target | None:
        """Where a plan would put a bound pod of a group, were it gone."""
        ...

    def expect(
        self,
        group: str,
        workload: str,
        target: Target,
        known: Iterable[str],
        *,
        for_s: float,
        requests: Mapping[str, int],
    ) -> None:
        """A replacement is meant for a host."""
        ...


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
        promises: uid of a pod -> the question about it, and the target that its replacement is promised.
    """

    decision: RoundDecision
    promises: dict[str, tuple[PlanQuestion, Target]]


def questions(snapshot: LoadSnapshot, moves: Iterable[Move]) -> dict[str, PlanQuestion]:
    """Uid -> what to ask, for moves that need it; to be read before anything is awaited."""
    network, found = snapshot.network, {}
    for move in moves:
        pod = snapshot.pods.by_key.get(move.pod)
        if pod is None or pod.wire is None or network is None or not is_planned(pod):
            continue
        group = network.group_of(pod.namespace, pod.wire.group)
        if group:
            found[move.uid] = PlanQuestion(pod, group, pod.labels.get(WORKLOAD_LABEL, ""))
    return found


async def confirm(
    deliberation: Deliberation,
    asked: dict[str, PlanQuestion],
    place: Callable[[str, str, int], Awaitable[Target | None]],
) -> Confirmed:
    """The decision without the moves that the planner would undo.

    Args:
        deliberation: with what a move to another node would be worth.
        asked: see `questions`.
        place: group, pod and turn -> where the planner would put it.
    """
    decision, plan = deliberation.decision, deliberation.decision.plan
    moves: list[Move] = []
    follows: list[Followed] = []
    skips: list[Skip] = []
    whys: dict[str, tuple[Strategy, str]] = {}
    promises: dict[str, tuple[PlanQuestion, Target]] = {}
    for move, followed in zip(plan.moves, decision.follows, strict=True):
        question = asked.get(move.uid)
        if question is None:
            moves.append(move)
            follows.append(followed)
            continue
        # What the planner says counts from here on, also for the moves after this one: two may not count on the same room.
        deliberation.withdraw(move)
        targets, why = await _targets(deliberation, move, question, place)
        if why:
            skips.append(Skip(move.pod, move.node, "planner", why))
            whys[move.uid] = move.strategy, why
            continue
        promises[move.uid] = question, targets[0]
        node = targets[0].node
        moves.append(deliberation.redirect(move, node))
        marks = tuple(dict.fromkeys(mark_of(target.node) for target in targets))
        follows.append(msgspec.structs.replace(followed, target=node, expected=marks))
    if not asked:
        return Confirmed(decision, promises)
    skipped = Counter(plan.skipped) + Counter(skip.kind for skip in skips)
    left = msgspec.structs.replace(
        plan,
        moves=tuple(moves),
        skips=(*plan.skips, *skips)[:MOST_SKIPS],
        skipped=dict(sorted(skipped.items())),
    )
    watched = msgspec.structs.replace(decision.watched, declined=deliberation.decline(whys))
    return Confirmed(msgspec.structs.replace(decision, plan=left, watched=watched, follows=tuple(follows)), promises)


async def _targets(
    deliberation: Deliberation,
    move: Move,
    question: PlanQuestion,
    place: Callable[[str, str, int], Awaitable[Target | None]],
) -> tuple[list[Target], str]:
    """Where the planner puts the pod, asked twice, and why that is not worth it."""
    targets: list[Target] = []
    for turn in range(TURNS):
        try:
            target = await place(question.group, move.pod, turn)
        except PlanningError as error:
            return [], f"the planner does not say where it would go: {error}"
        if target is None:
            return [], "the planner would find no place for it"
        why = "it would come back" if target.node == move.node else deliberation.loss(move, target.node)
        if why:
            return [], f"the planner would put it on {target.node}: {why}"
        targets.append(target)
    return targets, ""
