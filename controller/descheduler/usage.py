"""Usage of nodes and pods: checked readings that expire.

An amount maps a resource to a number: cpu in millicores, memory in bytes, bandwidth in bits per second. A resource that is
missing is unknown, which is not the same as 0. Impossible readings are refused and counted, never corrected: the rules can handle
missing usage (the node is neither source nor target), but cannot recognise wrong usage.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping
from typing import Literal, NamedTuple

import msgspec

from netperf.contract import BANDWIDTH

CPU, MEMORY = "cpu", "memory"
RESOURCES = (CPU, MEMORY, BANDWIDTH)

Amounts = Mapping[str, float]
"""Resource -> amount; see the module's units."""
Percents = Mapping[str, float]
"""Resource -> percent of allocatable."""


def percents(used: Amounts, allocatable: Amounts) -> dict[str, float]:
    """Used share of allocatable in percent, for resources that both know and of which there is any."""
    return {
        resource: 100.0 * used[resource] / allocatable[resource]
        for resource in RESOURCES
        if resource in used and allocatable.get(resource, 0) > 0
    }


def weighted_percent(shares: Percents, weights: Mapping[str, int]) -> float:
    """Mean of the shares by weight; 0 when none of the weighted resources is known."""
    total = sum(weight for resource, weight in weights.items() if resource in shares)
    if not total:
        return 0.0
    return sum(shares[resource] * weight for resource, weight in weights.items() if resource in shares) / total


def above(shares: Percents, high: Percents) -> tuple[str, ...]:
    """Resources of which more is in use than the high threshold."""
    return tuple(resource for resource, limit in high.items() if shares.get(resource, 0.0) > limit)


Refusal = Literal["not-a-number", "negative", "expired", "future", "unknown-node", "unknown-pod"]
MOST_AHEAD_S = 60.0
"""Clocks differ; a reading further ahead than this is refused."""


class UsageReading(msgspec.Struct, frozen=True, gc=False):
    """One value as a source gave it. ``gc=False``: a big cluster has 200,000, and the garbage collector need not traverse them.

    Attributes:
        name: of a node, or ``namespace/name`` of a pod.
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
        faults: messages about what could not be read.
    """

    nodes: tuple[UsageReading, ...] = ()
    pods: tuple[UsageReading, ...] = ()
    faults: tuple[str, ...] = ()


class UsageView(NamedTuple):
    """Unexpired usage, as the rules read it.

    Attributes:
        nodes: node -> resource -> amount.
        pods: ``namespace/name`` -> resource -> amount.
        expired: nodes that once had usage and whose newest is too old.
    """

    nodes: Mapping[str, Mapping[str, float]]
    pods: Mapping[str, Mapping[str, float]]
    expired: frozenset[str] = frozenset()


NO_USAGE = UsageView({}, {})


def refusal_of(reading: UsageReading, now: float, expiry_s: float) -> Refusal | None:
    """Why a reading must not be believed; None when it may be."""
    if not math.isfinite(reading.value) or not math.isfinite(reading.at_s):
        return "not-a-number"
    if reading.value < 0:
        return "negative"
    if now - reading.at_s > expiry_s:
        return "expired"
    return "future" if reading.at_s - now > MOST_AHEAD_S else None


class UsageStore:
    """Keeps the newest usage.

    Args:
        expiry_s: of nodeMetricExpirationSeconds.
    """

    def __init__(self, expiry_s: float) -> None:
        self._expiry_s = expiry_s
        self._nodes: dict[str, dict[str, UsageReading]] = {}
        self._pods: dict[str, dict[str, UsageReading]] = {}

    def update(self, batch: UsageBatch, nodes: Container[str], pods: Container[str], now: float) -> Counter[Refusal]:
        """Add a batch.

        Args:
            batch: from a source.
            nodes: names that exist; usage of others is refused.
            pods: keys that exist.
            now: unix seconds.

        Returns:
            How many readings were refused, by reason.
        """
        refused: Counter[Refusal] = Counter()
        kinds: tuple[Refusal, Refusal] = ("unknown-node", "unknown-pod")
        for stored, readings, known, unknown in (
            (self._nodes, batch.nodes, nodes, kinds[0]),
            (self._pods, batch.pods, pods, kinds[1]),
        ):
            for reading in readings:
                why = unknown if reading.name not in known else refusal_of(reading, now, self._expiry_s)
                if why is not None:
                    refused[why] += 1
                else:
                    stored.setdefault(reading.name, {})[reading.resource] = reading
            for name in [name for name in stored if name not in known]:
                del stored[name]
        return refused

    def view(self, now: float) -> UsageView:
        """The unexpired usage."""
        oldest_s = now - self._expiry_s
        nodes, pods = (
            {
                name: fresh
                for name, readings in stored.items()
                if (fresh := {r: one.value for r, one in readings.items() if one.at_s >= oldest_s})
            }
            for stored in (self._nodes, self._pods)
        )
        return UsageView(nodes, pods, frozenset(self._nodes.keys() - nodes.keys()))
