"""Hosts that are reserved for the replacements of evicted pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from controller.cluster.pods import GroupPod, Target
from controller.cluster.requests import Amounts, add


class Expected(msgspec.Struct, frozen=True):
    """A replacement that is meant for a host.

    Attributes:
        workload: its selector.
        target: the host.
        known: keys of the pods that were there when its predecessor was evicted.
        until: end of the wait for it.
        requests: what its predecessor asked for.
    """

    workload: str
    target: Target
    known: frozenset[str]
    until: float
    requests: Amounts = {}

    def fits(self, pod: GroupPod) -> bool:
        """Whether a pod may be the one."""
        return pod.waiting and self.is_new(pod)

    def is_new(self, pod: GroupPod) -> bool:
        """Whether a pod is of the workload, and was not there at the time."""
        return pod.workload == self.workload and pod.metadata.key not in self.known


class ExpectedReplacements:
    """Expected replacements of all groups."""

    def __init__(self) -> None:
        self._by_group: dict[str, list[Expected]] = {}

    def add(self, group: str, expected: Expected) -> None:
        """Add an expected replacement of a group's pod."""
        self._by_group.setdefault(group, []).append(expected)

    def forget(self, group: str) -> None:
        """A group is gone."""
        self._by_group.pop(group, None)

    def drop_expired(self, now: float) -> int:
        """Forget those whose wait has ended; returns how many."""
        before = sum(map(len, self._by_group.values()))
        left = {group: [e for e in expected if e.until > now] for group, expected in self._by_group.items()}
        self._by_group = {group: expected for group, expected in left.items() if expected}
        return before - sum(map(len, left.values()))

    def add_promises_to_others(
        self, found: dict[str, Amounts], group: str, pods_of: Callable[[str], Sequence[GroupPod]]
    ) -> None:
        """Add to host -> amounts what those of other groups will ask for that have yet to be made."""
        for other, coming in self._by_group.items():
            if other == group:
                continue
            pods = [pod for pod in pods_of(other) if pod.is_active]
            # Those that have come are promised their room by their own plan.
            come = Counter(pod.workload for pod in pods if any(expected.is_new(pod) for expected in coming))
            for expected in coming:
                if come[expected.workload]:
                    come[expected.workload] -= 1
                    continue
                add(found.setdefault(expected.target.node, {}), expected.requests)

    def with_targets(self, found: dict[str, Target], group: str, pods: Sequence[GroupPod]) -> dict[str, Target]:
        """Pod key -> target, with those of the group's pods that have come as replacements."""
        for expected in self._by_group.get(group, ()):
            replacement = next(
                (pod.metadata.key for pod in pods if expected.fits(pod) and pod.metadata.key not in found), None
            )
            if replacement is not None:
                found[replacement] = expected.target
        return found
