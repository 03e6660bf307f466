"""Usage of nodes and pods: readings that are checked, and expire.

Units: cpu in millicores, memory in bytes, bandwidth in bits per second. A resource without an amount is unknown, not 0. LowNodeLoad
moves pods neither off nor to a node of unknown usage.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from netperf.contract import BANDWIDTH_RESOURCE

CPU, MEMORY = "cpu", "memory"
RESOURCES = (CPU, MEMORY, BANDWIDTH_RESOURCE)

MAX_CLOCK_SKEW_S = 60.0
"""A reading from further in the future is dropped."""
DropReason = Literal["not-a-number", "negative", "expired", "future", "unknown-node", "unknown-pod"]
Amounts = Mapping[str, float]
"""Amount by resource, in the module's units."""
Percents = Mapping[str, float]
"""Percent of allocatable by resource."""


def to_percents(usage: Amounts, allocatable: Amounts) -> dict[str, float]:
    """Convert usage to percent of allocatable. Omits resources that the node does not have."""
    return {
        resource: 100.0 * usage[resource] / allocatable[resource]
        for resource in RESOURCES
        if resource in usage and allocatable.get(resource, 0) > 0
    }


def weighted_mean(percents: Percents, weights: Mapping[str, float]) -> float:
    """The mean over resources with known usage, by their weights; 0 if none has a weight."""
    known_weights = {resource: weight for resource, weight in weights.items() if resource in percents}
    total = sum(known_weights.values())
    return sum(percents[resource] * weight for resource, weight in known_weights.items()) / total if total else 0.0


def find_exceeded_resources(percents: Percents, high_thresholds: Percents) -> tuple[str, ...]:
    """Find resources above their high threshold."""
    return tuple(resource for resource, high in high_thresholds.items() if percents.get(resource, 0.0) > high)


class UsageReading(msgspec.Struct, frozen=True, gc=False):
    """The usage of one resource by a node or a pod. ``gc=False``, because a large cluster has 200,000 readings.

    Attributes:
        name: name of the node, or ``namespace/name`` of the pod.
        resource: one of `RESOURCES`.
        value: in the module's units.
        at_s: unix seconds.
    """

    name: str
    resource: str
    value: float
    at_s: float


class UsageBatch(msgspec.Struct, frozen=True):
    """Usage readings of one round, of nodes and pods; ``faults`` are error messages of sources."""

    readings: tuple[UsageReading, ...] = ()
    faults: tuple[str, ...] = ()


class UsageView(NamedTuple):
    """Unexpired usage, by name of the node and by ``namespace/name`` of the pod."""

    by_node: Mapping[str, Amounts]
    by_pod: Mapping[str, Amounts]


NO_USAGE = UsageView({}, {})


def find_drop_reason(reading: UsageReading, now: float, expiry_s: float) -> DropReason | None:
    """Find why a reading is dropped for its value or time; None if it is not."""
    if not math.isfinite(reading.value) or not math.isfinite(reading.at_s):
        return "not-a-number"
    if reading.value < 0:
        return "negative"
    if now - reading.at_s > expiry_s:
        return "expired"
    return "future" if reading.at_s - now > MAX_CLOCK_SKEW_S else None


class UsageStore:
    """Keeps the newest reading of each resource; ``expiry_s`` is koordinator's nodeMetricExpirationSeconds."""

    def __init__(self, expiry_s: float) -> None:
        self._expiry_s = expiry_s
        self._readings_by_name: dict[str, dict[str, UsageReading]] = {}

    def update(self, batch: UsageBatch, nodes: Iterable[str], pods: Iterable[str], now: float) -> Counter[DropReason]:
        """Add a batch, and remove nodes and pods that no longer exist; returns the number of dropped readings by reason.

        ``nodes`` are the names of the existing nodes, ``pods`` the keys of the existing pods; ``now`` is unix seconds.
        """
        dropped: Counter[DropReason] = Counter()
        existing = {*nodes, *pods}
        for reading in batch.readings:
            reason = find_drop_reason(reading, now, self._expiry_s)
            if reading.name not in existing:
                reason = "unknown-pod" if _is_pod(reading.name) else "unknown-node"
            if reason is not None:
                dropped[reason] += 1
                continue
            newest = self._readings_by_name.setdefault(reading.name, {})
            if reading.resource not in newest or reading.at_s >= newest[reading.resource].at_s:
                newest[reading.resource] = reading
        for name in self._readings_by_name.keys() - existing:
            del self._readings_by_name[name]
        return dropped

    def view(self, now: float) -> UsageView:
        """The usage that has not expired."""
        oldest_s = now - self._expiry_s
        by_node: dict[str, Amounts] = {}
        by_pod: dict[str, Amounts] = {}
        for name, readings in self._readings_by_name.items():
            amounts = {r: reading.value for r, reading in readings.items() if reading.at_s >= oldest_s}
            if amounts:
                (by_pod if _is_pod(name) else by_node)[name] = amounts
        return UsageView(by_node, by_pod)


def _is_pod(name: str) -> bool:
    return "/" in name
