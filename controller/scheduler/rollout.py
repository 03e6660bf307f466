"""Where an AppGroup's pods end when its workloads are rolled out: plans made pod after pod, beside old pods that still hold their room. Pure.

A plan of the whole group on a cluster without its old pods says what is best. A rolling update starts new pods before old ones are
gone, all workloads at once or one after the other, and whoever comes while room is short is planned for what is left, and stays.
Who comes first is chance, so that a rollout is drawn several times.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from controller.cluster.pods import GroupPod, Target
from controller.cluster.replicas import to_plan_for
from controller.cluster.requests import add, asks_of
from controller.scheduler.planner import GroupSnapshot, plan_group
from controller.scheduler.worker import HURRIED

DRAWS = 5
LONGEST_S = 10.0
"""For all draws; what is left of one by then is planned at once, as though the old pods were gone."""
_BEGUN, _BOUND = 0.5, 0.7
"""Chance in a step that a workload's controller takes up its new template, and that a pod with a place is bound."""
_STARTS = (2, 6)
"""Steps until a bound pod is ready; in so many, too, an old one has left its node."""
_STUCK = 60
"""Steps without any change after which nothing will come any more."""


class OldPod(msgspec.Struct, frozen=True):
    """A pod of before.

    Attributes:
        node: where it stands.
        requests: what it holds there.
        pod: itself where it is the group's already, so that plans see it; else None.
    """

    node: str
    requests: Mapping[str, int]
    pod: GroupPod | None = None


class Rolled(msgspec.Struct, frozen=True):
    """A workload that gets new pods.

    Attributes:
        workload: its selector.
        pods: the new ones, waiting.
        old: those of before.
        surge: how many there may be beyond what is declared.
        unavailable: how many of the declared may be missing.
    """

    workload: str
    pods: Sequence[GroupPod]
    old: Sequence[OldPod]
    surge: int
    unavailable: int


class Settled(msgspec.Struct, frozen=True):
    """How a rollout ended.

    Attributes:
        nodes: by the new pods' keys; those that stood in the snapshot are where they were.
        unplaced: pods that found no room, or were not made for want of it.
    """

    nodes: Mapping[str, str]
    unplaced: int = 0


def roll_out(
    start: GroupSnapshot,
    rolled: Sequence[Rolled],
    *,
    one_by_one: bool,
    draws: int = DRAWS,
    longest_s: float = LONGEST_S,
) -> list[Settled]:
    """Ends of a rollout, one per draw, drawn from fixed seeds.

    Args:
        start: the group with the pods that are not rolled; ``used`` counts everything but the rolled workloads' old pods.
        rolled: in the order in which they are.
        one_by_one: each begins when the one before has ended; else all at once.
        draws: how often.
        longest_s: for all of them, seconds.
    """
    ends_at = time.monotonic() + longest_s
    found: list[Settled] = []
    for seed in range(draws):
        if found and time.monotonic() > ends_at:
            break
        found.append(_Timeline(start, rolled, random.Random(seed), ends_at).run(one_by_one=one_by_one))
    return found


class _Timeline:
    """One draw."""

    def __init__(self, start: GroupSnapshot, rolled: Sequence[Rolled], chance: random.Random, ends_at: float) -> None:
        self._start, self._rolled, self._chance, self._ends_at = start, rolled, chance, ends_at
        self._used = {node: dict(amounts) for node, amounts in start.used.items()}
        self._old = {r.workload: list(r.old) for r in rolled}
        for pods in self._old.values():
            chance.shuffle(pods)
            for old in pods:
                self._take(old.node, old.requests, 1)
        self._leaving: list[tuple[int, str, OldPod]] = []
        self._made: Counter[str] = Counter()
        self._nodes: dict[str, str] = {}
        self._ready_at: dict[str, int] = {}
        self._begun: set[str] = set()
        self._previous: Mapping[str, Target] = {}
        self._step = self._changed_at = 0
        self._asked: tuple[object, ...] = ()

    def run(self, *, one_by_one: bool) -> Settled:
        """To the end, or until nothing moves any more."""
        turns = [[r] for r in self._rolled] if one_by_one else [list(self._rolled)]
        for turn in turns:
            while not all(self._is_over(r) for r in turn):
                if self._step - self._changed_at > _STUCK:
                    return self._settled()
                if time.monotonic() > self._ends_at:
                    self._finish()
                    return self._settled()
                self._advance(turn)
        return self._settled()

    def _finish(self) -> None:
        for old in (*(old for pods in self._old.values() for old in pods), *(old for *_, old in self._leaving)):
            self._take(old.node, old.requests, -1)
        self._old = {workload: [] for workload in self._old}
        self._leaving = []
        self._made = Counter({rolled.workload: len(rolled.pods) for rolled in self._rolled})
        targets = plan_group(self._snapshot(), effort=HURRIED).targets
        for rolled in self._rolled:
            for pod in rolled.pods:
                if pod.metadata.key not in self._nodes and (target := targets.get(pod.metadata.key)) is not None:
                    self._nodes[pod.metadata.key] = target.node

    def _settled(self) -> Settled:
        wanted = sum(len(r.pods) for r in self._rolled)
        return Settled(dict(self._nodes), wanted - len(self._nodes))

    def _is_over(self, rolled: Rolled) -> bool:
        return not self._old[rolled.workload] and self._ready(rolled) == len(rolled.pods)

    def _ready(self, rolled: Rolled) -> int:
        made = rolled.pods[: self._made[rolled.workload]]
        return sum(self._ready_at.get(pod.metadata.key, self._step + 1) <= self._step for pod in made)

    def _advance(self, turn: Sequence[Rolled]) -> None:
        self._step += 1
        for entry in [entry for entry in self._leaving if entry[0] <= self._step]:
            self._leaving.remove(entry)
            self._take(entry[2].node, entry[2].requests, -1)
            self._changed_at = self._step
        for rolled in turn:
            if rolled.workload not in self._begun and self._chance.random() > _BEGUN:
                continue
            self._begun.add(rolled.workload)
            self._scale(rolled)
        self._place(turn)

    def _scale(self, rolled: Rolled) -> None:
        """What its controller does: as many old ones go as there are ready ones to spare, as many new ones come as may be there."""
        old, wanted = self._old[rolled.workload], len(rolled.pods)
        ready = self._ready(rolled)
        spare = len(old) + ready - max(wanted - rolled.unavailable, 0)
        for _ in range(min(max(spare, 0), len(old))):
            self._leaving.append((self._step + self._chance.randint(*_STARTS), rolled.workload, old.pop()))
            self._changed_at = self._step
        made = self._made[rolled.workload]
        # Without surge, as in a StatefulSet, a successor is made when its predecessor is gone.
        going = 0 if rolled.surge else sum(workload == rolled.workload for _, workload, _ in self._leaving)
        more = min(wanted - made, wanted + rolled.surge - made - len(old) - going)
        if more > 0:
            self._made[rolled.workload] += more
            self._changed_at = self._step

    def _place(self, turn: Sequence[Rolled]) -> None:
        """Plan those that wait, as the leader would now, and bind some of those that have a place."""
        waiting = [
            pod
            for rolled in turn
            for pod in rolled.pods[: self._made[rolled.workload]]
            if pod.metadata.key not in self._nodes
        ]
        if not waiting:
            return
        targets = self._targets(waiting)
        for pod in waiting:
            target = targets.get(pod.metadata.key)
            if target is None or self._chance.random() > _BOUND:
                continue
            self._nodes[pod.metadata.key] = target.node
            self._take(target.node, asks_of(pod.spec), 1)
            self._ready_at[pod.metadata.key] = self._step + self._chance.randint(*_STARTS)
            self._changed_at = self._step

    def _targets(self, waiting: Sequence[GroupPod]) -> Mapping[str, Target]:
        question = (len(waiting), len(self._nodes), len(self._leaving), sum(self._made.values()))
        if question != self._asked:
            self._asked = question
            self._previous = plan_group(self._snapshot(), effort=HURRIED).targets
        return self._previous

    def _snapshot(self) -> GroupSnapshot:
        """What the leader sees: pods that are there, and of those to come as many as are declared and numMembers has left."""
        replace = msgspec.structs.replace
        pods = [
            *self._start.pods,
            *(pod for pods in self._old.values() for old in pods if (pod := old.pod) is not None),
        ]
        used = {node: dict(amounts) for node, amounts in self._used.items()}
        for rolled in self._rolled:
            for pod in rolled.pods[: self._made[rolled.workload]]:
                node = self._nodes.get(pod.metadata.key, "")
                pods.append(replace(pod, spec=replace(pod.spec, node_name=node)) if node else pod)
        seats = {pod.metadata.key: node for pod in pods if (node := pod.spec.node_name)}
        live = Counter(pod.workload for pod in pods if not pod.over)
        members = self._start.group.spec.num_members if self._start.group is not None else 0
        counts = {**self._start.replicas, **{r.workload: len(r.pods) for r in self._rolled}}
        declared = {workload: counts.get(workload, 0) for workload in self._start.graph.selectors}
        replicas, _ = to_plan_for(declared, live, max(members - live.total(), 0))
        return replace(self._start, pods=pods, used=used, seats=seats, replicas=replicas, previous=dict(self._previous))

    def _take(self, node: str, amounts: Mapping[str, int], sign: int) -> None:
        add(self._used.setdefault(node, {}), amounts, sign)
