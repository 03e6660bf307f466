"""One round, decided: the pure function behind the live loop and the dry-run alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from controller.descheduler.config import Settings
from controller.descheduler.decision import Decision, Declined, Move, Plan, Watched
from controller.descheduler.followup import Ended, follow
from controller.descheduler.load import LoadRound
from controller.descheduler.memory import Memory
from controller.descheduler.misplacement import MisplacementRound
from controller.descheduler.round import Round
from controller.descheduler.snapshot import Snapshot, World
from controller.descheduler.usage import Batch, Refusal, UsageBook


class Deliberation:
    """A decision, and what each of its moves would be worth if it went to another node.

    Attributes:
        decision: as `decide` gives it.
    """

    def __init__(
        self, decision: Decision, base: Round, load: LoadRound | None, misplacement: MisplacementRound | None
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

    def decline(self, whys: Mapping[str, str]) -> Mapping[str, Declined]:
        """What the planner has against moves, those of before included; the next question waits twice as long each time."""
        limits, now, before = self._base.settings.limits, self._base.now, self._base.declined
        found = dict(before)
        for uid, why in whys.items():
            times = before[uid].times + 1 if uid in before else 1
            wait_s = min(limits.workload_backoff_s * 2.0 ** min(times - 1, 32), limits.failure_backoff_s)
            found[uid] = Declined(why, now + wait_s, times)
        return found


def decide(
    snapshot: Snapshot, memory: Memory, watched: Watched, settings: Settings, now: float, *, confirmed: bool = False
) -> Decision:
    """The decision of `deliberate` alone."""
    return deliberate(snapshot, memory, watched, settings, now, confirmed=confirmed).decision


def deliberate(
    snapshot: Snapshot, memory: Memory, watched: Watched, settings: Settings, now: float, *, confirmed: bool = False
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

    Returns:
        The same for the same arguments, always.
    """
    forget_s = settings.limits.failure_backoff_s
    declined = {uid: one for uid, one in watched.declined.items() if now - one.until_s < forget_s}
    base = Round(snapshot, memory, settings, now, declined)
    load = None if settings.load is None else LoadRound(base, settings.load)
    detectors = watched.detectors if load is None else load.plan(watched.detectors, confirmed=confirmed)
    better_since = {}
    misplacement = None
    base.hot = frozenset() if load is None else frozenset(s.node for s in load.states() if s.kind == "over")
    paused = settings.load is not None and settings.load.paused
    if settings.misplacement.enabled and snapshot.network is not None and not paused:
        misplacement = MisplacementRound(base, snapshot.network, () if load is None else load.loads)
        better_since = misplacement.plan(watched.better_since, confirmed=confirmed)
    plan = Plan(
        moves=tuple(base.moves),
        skips=tuple(base.skips),
        nodes=() if load is None else load.states(),
        notes=tuple(base.notes),
        skipped=dict(sorted(base.skipped.items())),
        free_before={} if load is None else load.free_before,
        free_after={} if load is None else load.free_after,
    )
    decision = Decision(plan, Watched(detectors, better_since, declined), tuple(base.follows))
    return Deliberation(decision, base, load, misplacement)


class Thought(NamedTuple):
    """What a round comes to before anybody is asked or evicted.

    Attributes:
        refused: readings that were not believed, by reason.
        memory: after the look at the moves underway.
        ended: those of them whose end is known now.
    """

    snapshot: Snapshot
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
    """
    refused = book.fold(batch, world.nodes, world.pods.by_key, now)
    snapshot = world.snapshot(book.view(now))
    memory, ended = follow(snapshot, memory, settings.limits, now)
    deliberation = deliberate(snapshot, memory, watched, settings, now, confirmed=confirmed)
    return Thought(snapshot, refused, memory, ended, deliberation)
