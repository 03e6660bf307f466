"""What nodes with low load can still take: by usage up to the high threshold, by requests, and by scheduling constraints.

Free capacity is the sum over targets of ``high x allocatable - usage`` (docs/contracts, section 11; seed 004's example: 96 cores
at 20 % under a threshold of 70 % can take 48 cores). Every planned move is deducted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from controller.descheduler.amounts import RESOURCES, percents, weighted_percent
from controller.descheduler.classify import Load
from controller.descheduler.fit import Separation, add_requests, describe_misfits, requested_on, shortage
from controller.descheduler.objects import PodInfo
from controller.descheduler.shapes import Shape
from controller.descheduler.snapshot import Snapshot


class Target:
    """A node that may take pods, with what was planned onto it."""

    __slots__ = ("booked", "load", "requested", "used", "weight")

    def __init__(self, load: Load) -> None:
        self.load = load
        self.used = dict(load.used)
        self.requested: dict[str, float] | None = None
        self.booked: list[PodInfo] = []
        self.weight = load.load

    @property
    def name(self) -> str:
        """The node's name."""
        return self.load.node.name

    def free(self, resource: str) -> float:
        """What it can take of a resource before it is at the high threshold; in the resource's unit."""
        limit = self.load.thresholds.high[resource] / 100.0 * self.load.node.allocatable.get(resource, 0)
        return limit - self.used[resource]

    def add(self, used: Mapping[str, float]) -> None:
        """Count more usage."""
        for resource, amount in used.items():
            if resource in self.used:
                self.used[resource] += amount
        self.weight = weighted_percent(percents(self.used, self.load.node.allocatable), self.load.pool.weights)


class Failure(NamedTuple):
    """A search that found nothing; one that asks for as much or more will not find anything either."""

    requests: Mapping[str, float]
    used: Mapping[str, float]
    why: str

    def covers(self, requests: Mapping[str, float], used: Mapping[str, float]) -> bool:
        """Whether the other search asks for at least as much of everything."""
        return all(requests.get(r, 0) >= amount for r, amount in self.requests.items()) and all(
            used.get(r, 0) >= amount for r, amount in self.used.items()
        )


class Room:
    """The targets of one pool.

    Args:
        targets: nodes with low load.
        snapshot: for the pods on them.
        underway: usage of replacements that are expected but bound nowhere yet.
    """

    def __init__(
        self, targets: Iterable[Load], snapshot: Snapshot, underway: Iterable[Mapping[str, float]] = ()
    ) -> None:
        self._targets = sorted((Target(load) for load in targets), key=_order)
        self._by_name = {target.name: target for target in self._targets}
        self._snapshot = snapshot
        self._free = {
            r: sum(target.free(r) for target in self._targets if r in target.used)
            for r in RESOURCES
            if any(r in target.used for target in self._targets)
        }
        self._separation = Separation(snapshot)
        self._failures: dict[Shape, list[Failure]] = {}
        self._statics: dict[tuple[Shape, str], str] = {}
        for used in underway:
            self._reserve(used)

    def __len__(self) -> int:
        return len(self._targets)

    def free(self) -> dict[str, float]:
        """Sum over the targets of what they can still take, of resources that any target knows."""
        return dict(self._free)

    def expect(self, node: str, used: Mapping[str, float]) -> None:
        """Count usage that is known to arrive on a node, where this is one of the targets."""
        target = self._by_name.get(node)
        if target is not None:
            self._move(target, used)

    def find(self, pod: PodInfo, used: Mapping[str, float]) -> tuple[Target | None, str]:
        """The least loaded target that fits the pod by everything the scheduler would check and by usage.

        Returns:
            The target, or None and why each of them does not fit, counted.
        """
        cacheable = not pod.shape.anti
        if cacheable:
            for failure in self._failures.get(pod.shape, ()):
                if failure.covers(pod.requests, used):
                    return None, failure.why
        whys: Counter[str] = Counter()
        for target in self._targets:
            why = self._refusal(target, pod, used)
            if not why:
                return target, ""
            whys[why] += 1
        text = describe_misfits(whys)
        if cacheable:
            self._failures.setdefault(pod.shape, []).append(Failure(pod.requests, dict(used), text))
        return None, text

    def book(self, pod: PodInfo, used: Mapping[str, float], target: Target | None) -> None:
        """Deduct a planned move, from one target or, when nobody knows where it goes, from all together."""
        if target is None:
            self._reserve(used)
            return
        target.booked.append(pod)
        if target.requested is not None:
            add_requests(target.requested, pod)
        self._move(target, used)

    def _move(self, target: Target, used: Mapping[str, float]) -> None:
        del self._targets[bisect_left(self._targets, _order(target), key=_order)]
        target.add(used)
        insort(self._targets, target, key=_order)
        self._reserve({resource: amount for resource, amount in used.items() if resource in target.used})

    def _reserve(self, used: Mapping[str, float]) -> None:
        for resource, amount in used.items():
            if resource in self._free:
                self._free[resource] -= amount

    def _refusal(self, target: Target, pod: PodInfo, used: Mapping[str, float]) -> str:
        node = target.load.node
        key = (pod.shape, node.name)
        if key not in self._statics:
            self._statics[key] = pod.shape.refusal(node.name, node.labels, node.taints)
        if self._statics[key]:
            return self._statics[key]
        for resource in target.load.pool.high:
            amount = used.get(resource, 0.0)
            if amount > 0 and (resource not in target.used or amount > target.free(resource)):
                return f"{resource} usage would exceed the high threshold"
        if target.requested is None:
            target.requested = requested_on(node.name, self._snapshot)
            for booked in target.booked:
                add_requests(target.requested, booked)
        return shortage(node, target.requested, pod) or self._separation.refusal(node, pod, target.booked)


def _order(target: Target) -> tuple[float, str]:
    return target.weight, target.name
