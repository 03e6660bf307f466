"""The working state of one round: what has been planned so far, and the gates that every move passes, whatever its strategy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from controller.cluster.pod_info import PodInfo
from controller.descheduler.config import Settings
from controller.descheduler.decision import MOST_SKIPS, Declined, Move, Skip
from controller.descheduler.fit import Fit
from controller.descheduler.foresight import Foresight
from controller.descheduler.limits import Ledger, Limits, Trust, workload_of
from controller.descheduler.memory import Followed, Memory, mark_of
from controller.descheduler.snapshot import Snapshot


class Round:
    """Collects moves, skips and notes; deducts from limits and disruption budgets as it goes.

    Attributes:
        arriving: node -> usage of pods that are planned onto it or may land there.
        fit: where the scheduler would let a pod go, with what is planned.
        declined: by uid, pods whose move the planner would undo.
        hot: nodes above a threshold now.
        taken: keys of pods that are planned to go.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        memory: Memory,
        settings: Settings,
        now: float,
        declined: Mapping[str, Declined] = {},
    ) -> None:
        self.declined = declined
        self.snapshot, self.memory, self.settings, self.now = snapshot, memory, settings, now
        self.limits = Limits(settings.limits, memory, snapshot.pods, now, min_replicas=settings.protection.min_replicas)
        self.ledger = Ledger(snapshot.guards)
        self.trust = Trust(memory, settings.limits, now)
        self.fit = Fit(snapshot)
        self.foresight = Foresight(snapshot, self.fit)
        self.moves: list[Move] = []
        self.follows: list[Followed] = []
        self.skips: list[Skip] = []
        self.skipped: Counter[str] = Counter()
        self.notes: list[str] = []
        self.taken: set[str] = set()
        self.hot: frozenset[str] = frozenset()
        self.arriving: dict[str, dict[str, float]] = defaultdict(dict)
        self._hosts: dict[str, tuple[str, ...]] = {}

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
        age_s = self.now - pod.created_s
        if not kind and age_s < self.settings.protection.min_pod_age_s:
            kind, why = "young", f"it is {max(age_s, 0):.0f} s old (protection.minPodAgeS)"
        answer = self.declined.get(pod.uid)
        if not kind and answer is not None and answer.until_s > self.now:
            kind, why = "planner", f"{answer.why}; it is asked again in {(answer.until_s - self.now) / 60:.0f} min"
        if not kind:
            why = self.trust.against_workload(workload_of(pod))
            kind = "stopped" if why else ""
        if not kind:
            why = self.ledger.refusal(pod)
            kind = "disruption-budget" if why else ""
        if kind:
            self.skip(pod, kind, why)
        return not kind

    def take(self, pod: PodInfo, move: Move, follow: Followed, hosts: Sequence[str] = ()) -> None:
        """Plan a move that was admitted.

        Args:
            pod: who goes.
            move: where it is expected.
            follow: what to watch it by.
            hosts: all where it may land; none for the target alone.
        """
        hosts = hosts or ((move.target,) if move.target else ())
        self.limits.book(pod, follow.weight)
        self.ledger.book(pod)
        self.taken.add(pod.key)
        self.fit.book(pod, move.target)
        self.foresight.book(pod, hosts)
        for host in hosts:
            self._arrive(host, move.used)
        self._hosts[move.uid] = tuple(hosts)
        self.moves.append(move)
        known = (mark_of(p.uid) for p in self.snapshot.pods.of_workload(pod.workload).values() if p.uid != pod.uid)
        self.follows.append(msgspec.structs.replace(follow, known=tuple(sorted(known))))

    def withdraw(self, pod: PodInfo, move: Move) -> None:
        """A planned move is expected nowhere any more."""
        for host in self._hosts.pop(move.uid, ()):
            self._arrive(host, move.used, -1)
        self.fit.withdraw(pod)

    def redirect(self, pod: PodInfo, move: Move, node: str) -> None:
        """A planned move that was withdrawn is expected on a node."""
        self.fit.book(pod, node)
        self._arrive(node, move.used)
        self._hosts[move.uid] = (node,)

    def _arrive(self, host: str, used: Mapping[str, float], sign: int = 1) -> None:
        arriving = self.arriving[host]
        for resource, amount in used.items():
            arriving[resource] = arriving.get(resource, 0.0) + sign * amount
