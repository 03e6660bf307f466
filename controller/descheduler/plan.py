"""One round, decided: the pure function behind the live loop and the dry-run alike."""

from __future__ import annotations

from controller.descheduler.config import Settings
from controller.descheduler.decision import Decision, Plan, Watched
from controller.descheduler.load import LoadRound
from controller.descheduler.memory import Memory
from controller.descheduler.misplacement import MisplacementRound
from controller.descheduler.round import Round
from controller.descheduler.snapshot import Snapshot


def decide(
    snapshot: Snapshot, memory: Memory, watched: Watched, settings: Settings, now: float, *, confirmed: bool = False
) -> Decision:
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
    base = Round(snapshot, memory, settings, now)
    load = None if settings.load is None else LoadRound(base, settings.load)
    detectors = watched.detectors if load is None else load.plan(watched.detectors, confirmed=confirmed)
    better_since = {}
    if settings.misplacement.enabled and snapshot.network is not None:
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
    return Decision(plan, Watched(detectors, better_since), tuple(base.follows))
