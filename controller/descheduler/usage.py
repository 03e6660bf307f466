"""Usage of nodes and pods: checked readings that expire.

Amounts are by resource: cpu in millicores, memory in bytes, bandwidth in bits per second. A missing resource is unknown, not 0.
Impossible readings are ignored and counted: a node without usage is neither source nor target of moves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping
from typing import Literal, NamedTuple

import msgspec

from netperf.contract import BANDWIDTH_RESOURCE

CPU, MEMORY = "cpu", "memory"
RESOURCES = (CPU, MEMORY, BANDWIDTH_RESOURCE)

Amounts = Mapping[str, float]
"""Resource -> amount; see the module's units."""
Percents = Mapping[str, float]
"""Resource -> percent of allocatable."""


def percents(used: Amounts, allocatable: Amounts) -> dict[str, float]:
    """Percent of allocatable in use, for resources that the node has and whose usage is known."""
    return {
        resource: 100.0 * used[resource] / allocatable[resource]
        for resource in RESOURCES
        if resource in used and allocatable.get(resource, 0) > 0
    }


def weighted_percent(percent: Percents, weights: Mapping[str, float]) -> float:
    """Weighted mean over resources with a weight and known usage; 0 without any."""
    total = sum(weight for resource, weight in weights.items() if resource in percent)
    if not total:
        return 0.0
    return sum(percent[resource] * weight for resource, weight in weights.items() if resource in percent) / total


def exceeded_resources(percent: Percents, high: Percents) -> tuple[str, ...]:
    """Resources above their high threshold."""
    return tuple(resource for resource, threshold in high.items() if percent.get(resource, 0.0) > threshold)


RefusalReason = Literal["not-a-number", "negative", "expired", "future", "unknown-node", "unknown-pod"]
MAX_CLOCK_SKEW_S = 60.0
"""A reading from further in the future is refused."""


class UsageReading(msgspec.Struct, frozen=True, gc=False):
    """One value of a source. ``gc=False``, because a large cluster has 200,000 of them.

    Attributes:
        name: name of a node, or ``namespace/name`` of a pod.
        resource: one of `RESOURCES`.
        at_s: unix seconds.
    """

    name: str
    resource: str
    value: float
    at_s: float


class UsageBatch(msgspec.Struct, frozen=True):
    """Usage readings of one round.

    Attributes:
        faults: error messages of sources.
    """

    nodes: tuple[UsageReading, ...] = ()
    pods: tuple[UsageReading, ...] = ()
    faults: tuple[str, ...] = ()


class UsageView(NamedTuple):
    """Unexpired usage.

    Attributes:
        nodes: by name of the node.
        pods: by ``namespace/name`` of the pod.
        expired: nodes whose newest usage is too old.
    """

    nodes: Mapping[str, Amounts]
    pods: Mapping[str, Amounts]
    expired: frozenset[str] = frozenset()


NO_USAGE = UsageView({}, {})


def reading_refusal(reading: UsageReading, now: float, expiry_s: float) -> RefusalReason | None:
    """Why a reading is refused; None if it is not."""
    if not math.isfinite(reading.value) or not math.isfinite(reading.at_s):
        return "not-a-number"
    if reading.value < 0:
        return "negative"
    if now - reading.at_s > expiry_s:
        return "expired"
    return "future" if reading.at_s - now > MAX_CLOCK_SKEW_S else None


class UsageStore:
    """The newest reading of each resource; ``expiry_s`` is koordinator's nodeMetricExpirationSeconds."""

    def __init__(self, expiry_s: float) -> None:
        self._expiry_s = expiry_s
        self._nodes: dict[str, dict[str, UsageReading]] = {}
        self._pods: dict[str, dict[str, UsageReading]] = {}

    def update(
        self, batch: UsageBatch, nodes: Container[str], pods: Container[str], now: float
    ) -> Counter[RefusalReason]:
        """Add a batch, and forget nodes and pods that do not exist any more.

        Args:
            batch: readings of all sources.
            nodes: names of the existing nodes; usage of others is refused.
            pods: keys of the existing pods; usage of others is refused.
            now: unix seconds.

        Returns:
            The number of refused readings by reason.
        """
        refused: Counter[RefusalReason] = Counter()
        for stored, readings, existing in ((self._nodes, batch.nodes, nodes), (self._pods, batch.pods, pods)):
            for reading in readings:
                reason = reading_refusal(reading, now, self._expiry_s)
                if reading.name not in existing:
                    reason = "unknown-node" if stored is self._nodes else "unknown-pod"
                if reason is not None:
                    refused[reason] += 1
                    continue
                newest = stored.setdefault(reading.name, {})
                if reading.resource not in newest or reading.at_s >= newest[reading.resource].at_s:
                    newest[reading.resource] = reading
            for name in [name for name in stored if name not in existing]:
                del stored[name]
        return refused

    def view(self, now: float) -> UsageView:
        """The unexpired usage."""
        oldest_s = now - self._expiry_s
        nodes, pods = (
            {
                name: amounts
                for name, readings in stored.items()
                if (amounts := {r: reading.value for r, reading in readings.items() if reading.at_s >= oldest_s})
            }
            for stored in (self._nodes, self._pods)
        )
        return UsageView(nodes, pods, frozenset(self._nodes.keys() - nodes.keys()))
