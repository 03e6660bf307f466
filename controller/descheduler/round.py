"""The working state of one round: what has been planned so far, and the gates that every move passes, whatever its strategy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from controller.descheduler.budgets import Ledger
from controller.descheduler.config import Settings
from controller.descheduler.decision import MOST_SKIPS, Move, Skip
from controller.descheduler.limits import Limits
from controller.descheduler.memory import Followed, Memory
from controller.descheduler.objects import PodInfo
from controller.descheduler.snapshot import Snapshot


class Round:
    """Collects moves, skips and notes; deducts from limits and disruption budgets as it goes.

    Attributes:
        arrivals: node -> pods planned onto it; arriving: node -> their usage.
        taken: keys of pods that are planned to go.
    """

    def __init__(self, snapshot: Snapshot, memory: Memory, settings: Settings, now: float) -> None:
        self.snapshot, self.memory, self.settings, self.now = snapshot, memory, settings, now
        self.limits = Limits(settings.limits, memory, snapshot.pods, now)
        self.ledger = Ledger(snapshot.guards)
        self.moves: list[Move] = []
        self.follows: list[Followed] = []
        self.skips: list[Skip] = []
        self.skipped: Counter[str] = Counter()
        self.notes: list[str] = []
        self.taken: set[str] = set()
        self.arrivals: dict[str, list[PodInfo]] = defaultdict(list)
        self.arriving: dict[str, dict[str, float]] = defaultdict(dict)

    @property
    def cooling(self) -> Mapping[str, int]:
        """Node -> pods that left it so recently that its usage does not show it yet."""
        settle_s = self.settings.limits.settle_s
        return Counter(move.node for move in self.memory.follows if self.now - move.at_s < settle_s)

    def exhausted(self, weight: int) -> str:
        """Why nothing at all may move any more; empty when something may."""
        if self.memory.hold_until_s > self.now:
            return f"the API server asked to wait for another {self.memory.hold_until_s - self.now:.0f} s"
        return self.limits.exhausted(weight)

    def note(self, text: str) -> None:
        """Say once what stopped a part of the round."""
        if text and text not in self.notes:
            self.notes.append(text)

    def skip(self, pod: PodInfo, kind: str, why: str) -> None:
        """Say why a pod stays."""
        self.skipped[kind] += 1
        if len(self.skips) < MOST_SKIPS:
            self.skips.append(Skip(pod.key, pod.node, kind, why))

    def admits(self, pod: PodInfo) -> bool:
        """Whether limits, back-off and disruption budgets let the pod go now; says why when they do not."""
        kind, why = self.limits.refusal(pod)
        if not kind:
            why = self.ledger.refusal(pod)
            kind = "disruption-budget" if why else ""
        if kind:
            self.skip(pod, kind, why)
        return not kind

    def take(self, pod: PodInfo, move: Move, follow: Followed) -> None:
        """Plan a move that was admitted."""
        self.limits.book(pod, follow.weight)
        self.ledger.book(pod)
        self.taken.add(pod.key)
        if move.target:
            self.arrivals[move.target].append(pod)
            arriving = self.arriving[move.target]
            for resource, amount in move.used.items():
                arriving[resource] = arriving.get(resource, 0.0) + amount
        self.moves.append(move)
        self.follows.append(follow)
