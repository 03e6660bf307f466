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
        self._expected: dict[tuple[str, str], ExpectedReplacement] = {}
        """Group and key of the evicted pod -> its replacement."""

    def add(self, group: str, key: str, expected: ExpectedReplacement) -> int:
        """Add the expected replacement of a group's pod, instead of an earlier one, whose eviction was refused.

        Returns how many reservations of another node end.
        """
        earlier = self._expected.get((group, key), expected)
        self._expected[group, key] = expected
        return int(earlier.target.node != expected.target.node)

    def forget_group(self, group: str) -> int:
        """Forget a deleted group; returns how many reservations end."""
        forgotten = [pod for pod in self._expected if pod[0] == group]
        for pod in forgotten:
            del self._expected[pod]
        return len(forgotten)

    def drop_expired(self, now: float) -> int:
        """Drop expired reservations; returns how many."""
        count_before = len(self._expected)
        self._expected = {pod: expected for pod, expected in self._expected.items() if expected.expires_at > now}
        return count_before - len(self._expected)

    def _of_group(self, group: str) -> list[ExpectedReplacement]:
        return [expected for (expected_group, _), expected in self._expected.items() if expected_group == group]

    def add_requests_of_others(
        self, reserved: dict[str, Amounts], group: str, pods_of: Callable[[str], Sequence[Pod]]
    ) -> None:
        """Add to node -> reserved amounts the requests of other groups' replacements that do not exist yet."""
        for other in dict.fromkeys(expected_group for expected_group, _ in self._expected if expected_group != group):
            expected_pods = self._of_group(other)
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
        for expected in self._of_group(group):
            replacements = (pod.metadata.key for pod in pods if pod.is_waiting and expected.matches(pod))
            key = next((key for key in replacements if key not in targets), None)
            if key is not None:
                targets[key] = expected.target
