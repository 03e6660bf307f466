"""Nodes that are reserved for the replacements of evicted pods, until these exist or the reservation expires."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from controller.cluster.pods import Pod, Target
from controller.cluster.resource_requests import Amounts, add_amounts


class ExpectedReplacement(msgspec.Struct, frozen=True):
    """A pod that is going to replace an evicted one.

    Attributes:
        workload: selector of its workload.
        target: the node that is reserved for it.
        existing_keys: keys of the group's pods at the eviction, none of which is the replacement.
        expires_at: end of the reservation, monotonic seconds.
        requests: requests of the evicted pod.
    """

    workload: str
    target: Target
    existing_keys: frozenset[str]
    expires_at: float
    requests: Amounts = {}

    def matches(self, pod: Pod) -> bool:
        """Whether a pod is of the workload, and was created after the eviction."""
        return pod.workload == self.workload and pod.metadata.key not in self.existing_keys


class ExpectedReplacements:
    """Expected replacements of all groups, and the nodes reserved for them."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[str, ExpectedReplacement]] = {}
        """Group -> key of the evicted pod -> its replacement."""

    def add(self, group: str, key: str, expected: ExpectedReplacement) -> None:
        """Add the expected replacement of a group's pod, instead of an earlier one, whose eviction was refused."""
        self._by_group.setdefault(group, {})[key] = expected

    def forget_group(self, group: str) -> None:
        """Forget a deleted group."""
        self._by_group.pop(group, None)

    def drop_expired(self, now: float) -> int:
        """Drop expired reservations; returns how many."""
        count_before = sum(map(len, self._by_group.values()))
        current = {
            group: {key: expected for key, expected in by_key.items() if expected.expires_at > now}
            for group, by_key in self._by_group.items()
        }
        self._by_group = {group: by_key for group, by_key in current.items() if by_key}
        return count_before - sum(map(len, current.values()))

    def add_requests_of_others(
        self, reserved: dict[str, Amounts], group: str, pods_of: Callable[[str], Sequence[Pod]]
    ) -> None:
        """Add to node -> reserved amounts the requests of other groups' replacements that do not exist yet."""
        for other, by_key in self._by_group.items():
            if other == group:
                continue
            expected_pods = by_key.values()
            pods = [pod for pod in pods_of(other) if pod.is_active]
            # A replacement that exists has a reservation by the plan of its own group.
            existing = Counter(pod.workload for pod in pods if any(expected.matches(pod) for expected in expected_pods))
            for expected in expected_pods:
                if existing[expected.workload]:
                    existing[expected.workload] -= 1
                else:
                    add_amounts(reserved.setdefault(expected.target.node, {}), expected.requests)

    def add_targets(self, targets: dict[str, Target], group: str, pods: Sequence[Pod]) -> None:
        """Add to pod key -> target the reserved node of each of the group's replacements that exists, waits and has no target yet."""
        for expected in self._by_group.get(group, {}).values():
            replacements = (pod.metadata.key for pod in pods if pod.is_waiting and expected.matches(pod))
            key = next((key for key in replacements if key not in targets), None)
            if key is not None:
                targets[key] = expected.target
