"""Nodes that are reserved for the replacements of evicted pods, until these exist or the reservation expires."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from controller.cluster.pods import Pod, Target
from controller.cluster.resource_requests import Amounts, add_amounts


class ExpectedReplacement(msgspec.Struct, frozen=True):
    """A pod that is going to replace an evicted one.

    Attributes:
        workload: selector of its workload.
        target: the node that is reserved for it.
        existing_keys: keys of the group's other pods when the node was reserved, none of which is the replacement.
        expires_at_s: end of the reservation, monotonic seconds.
        requests: requests of the evicted pod.
    """

    workload: str
    target: Target
    existing_keys: frozenset[str]
    expires_at_s: float
    requests: Amounts = {}

    def matches(self, pod: Pod) -> bool:
        """Whether a pod may be the replacement: it is of the workload, and none of ``existing_keys``."""
        return pod.workload == self.workload and pod.metadata.key not in self.existing_keys


class ExpectedReplacements:
    """Expected replacements of all groups, and the nodes reserved for them."""

    def __init__(self) -> None:
        self._expected: dict[tuple[str, str], ExpectedReplacement] = {}
        """Group and key of the evicted pod -> its replacement."""

    def add(self, group: str, key: str, expected: ExpectedReplacement) -> int:
        """Add a replacement, in place of one whose eviction was refused; returns how many reservations of other nodes end (0 or 1)."""
        earlier = self._expected.get((group, key), expected)
        self._expected[group, key] = expected
        return int(earlier.target.node != expected.target.node)

    def forget_group(self, group: str) -> int:
        """Forget a deleted group; returns how many reservations end."""
        count_before = len(self._expected)
        self._expected = {key: expected for key, expected in self._expected.items() if key[0] != group}
        return count_before - len(self._expected)

    def drop_expired(self, now: float) -> int:
        """Drop expired reservations; returns how many."""
        count_before = len(self._expected)
        self._expected = {key: expected for key, expected in self._expected.items() if expected.expires_at_s > now}
        return count_before - len(self._expected)

    def _find_missing(self, group: str, existing_pods: Iterable[Pod]) -> list[ExpectedReplacement]:
        """The group's replacements that do not exist yet; each existing pod that may be one of them counts for one."""
        all_expected = [expected for (other, _), expected in self._expected.items() if other == group]
        found = Counter(pod.workload for pod in existing_pods if any(e.matches(pod) for e in all_expected))
        missing = []
        for expected in all_expected:
            if found[expected.workload]:
                found[expected.workload] -= 1
            else:
                missing.append(expected)
        return missing

    def add_requests_of_others(
        self, reserved: dict[str, Amounts], group: str, pods_of: Callable[[str], Sequence[Pod]]
    ) -> None:
        """Add requests of other groups' replacements that do not exist yet to ``reserved``, node -> amounts."""
        for other_group in dict.fromkeys(key for key, _ in self._expected if key != group):
            # A replacement that exists has a reservation by the plan of its own group.
            for expected in self._find_missing(other_group, (pod for pod in pods_of(other_group) if pod.is_active)):
                add_amounts(reserved.setdefault(expected.target.node, {}), expected.requests)

    def add_targets(self, targets: dict[str, Target], group: str, pods: Sequence[Pod]) -> None:
        """Give each of the group's waiting replacements without a target its reserved node; ``targets`` is pod key -> target."""
        waiting = [pod for pod in pods if pod.is_waiting and pod.metadata.key not in targets]
        placed = (pod for pod in pods if pod.is_active and (pod.is_bound or pod.metadata.key in targets))
        for expected in self._find_missing(group, placed):
            if (pod := next(filter(expected.matches, waiting), None)) is not None:
                waiting.remove(pod)
                targets[pod.metadata.key] = expected.target
