"""Moves of pods that our plans placed are made only if the planner, asked twice, puts the replacement where it is a gain.

Asked by the same process, of the same groups, costs, promises and heat, as placement is; what the planner would undo is not done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import Target
from controller.cluster.resources import WORKLOAD_LABEL
from controller.descheduler.decision import MOST_SKIPS, Decision, Move, Skip
from controller.descheduler.foresight import is_planned
from controller.descheduler.memory import Followed, mark_of
from controller.descheduler.plan import Deliberation
from controller.descheduler.snapshot import Snapshot
from controller.scheduler.planning import PlanningError

TURNS = 2


class MovePlanner(Protocol):
    """Of `controller.scheduler.planning.GroupPlans`, what moves need."""

    async def place_anew(self, group: str, key: str, turn: int) -> Target | None:
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


class Question(NamedTuple):
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

    decision: Decision
    promises: dict[str, tuple[Question, Target]]


def questions(snapshot: Snapshot, moves: Iterable[Move]) -> dict[str, Question]:
    """Uid -> what to ask, for moves that need it; to be read before anything is awaited."""
    network, found = snapshot.network, {}
    for move in moves:
        pod = snapshot.pods.by_key.get(move.pod)
        if pod is None or pod.wire is None or network is None or not is_planned(pod):
            continue
        group = network.group_of(pod.namespace, pod.wire.group)
        if group:
            found[move.uid] = Question(pod, group, pod.labels.get(WORKLOAD_LABEL, ""))
    return found


async def confirm(
    deliberation: Deliberation,
    asked: dict[str, Question],
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
    whys: dict[str, str] = {}
    promises: dict[str, tuple[Question, Target]] = {}
    for move, follow in zip(plan.moves, decision.follows, strict=True):
        question = asked.get(move.uid)
        if question is None:
            moves.append(move)
            follows.append(follow)
            continue
        # What the planner says counts from here on, also for the moves after this one: two may not count on the same room.
        deliberation.withdraw(move)
        targets, why = await _targets(deliberation, move, question, place)
        if why:
            skips.append(Skip(move.pod, move.node, "planner", why))
            whys[move.uid] = why
            continue
        promises[move.uid] = question, targets[0]
        node = targets[0].node
        moves.append(deliberation.redirect(move, node))
        marks = tuple(dict.fromkeys(mark_of(target.node) for target in targets))
        follows.append(msgspec.structs.replace(follow, target=node, expected=marks))
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
    question: Question,
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
