"""The cost policy, and the conversion of latencies to costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from kubekit.errors import ConfigError
from kubekit.settings import YEAR_S, Range, Section, convert, join_path
from netperf.measurement import Percentile
from netperf.quality import QualityFlag

MIN_ZONE_COST = 2
"""Lowest cost between zones: more than inside a zone (NetworkOverhead, docs/contracts)."""
MISSED_ROUNDS = 3
"""No sample of our agents is stale before this many rounds."""
MAX_NETWORK_COST = 10_000
"""Highest cost of a reachable pair: the highest valid maxNetworkCost, so that some limit allows it."""


class CostPolicy(Section, frozen=True):
    """How latencies become costs; fields are in camelCase in YAML (``unitUs``).

    Attributes:
        percentile: percentile of the round trips that is used for the cost.
        unit_us: latency per unit of cost, rounded up; 100 suits zones less than a millisecond apart.
        hysteresis: share of the cost by which the latency must leave the cost's range before the cost changes (twice the noise, if that is more).
        stale_after_s: a latency older than this and than three rounds is stale; it is still used.
        expire_after_s: a latency older than this, and stale, is not used; the pair is inferred or absent.
        external_stale_after_s: staleAfterS of latencies that other components write, counted from their last change; null for never.
        unreachable_cost: cost of an unreachable pair; the default exceeds every maxNetworkCost.
        accept_quality_flags: a sample that has no other flags than these is used for the cost.
    """

    percentile: Percentile = "p90"
    unit_us: Annotated[float, Range(1, 1_000_000)] = 1000.0
    hysteresis: Annotated[float, Range(0, 1)] = 0.1
    stale_after_s: Annotated[float, Range(1, 30 * 86_400)] = 300.0
    expire_after_s: Annotated[float, Range(1, YEAR_S)] = 3600.0
    external_stale_after_s: Annotated[float, Range(1, YEAR_S)] | None = None
    unreachable_cost: Annotated[int, Range(MIN_ZONE_COST, 1_000_000)] = 10_001
    accept_quality_flags: tuple[QualityFlag, ...] = ("loss",)

    def stale_s(self, interval_s: float) -> float:
        """Age above which a latency of our agents is stale, if a probing round takes ``interval_s``."""
        return max(self.stale_after_s, MISSED_ROUNDS * interval_s)

    def check_rules(self, field: str) -> None:
        """Raise ConfigError if a latency would expire before it is stale."""
        if self.expire_after_s < self.stale_after_s:
            raise ConfigError(
                join_path(field, "expireAfterS"), f"{self.expire_after_s} is out of range", "staleAfterS or more"
            )


def parse_policy(fields: Mapping[str, Any] | None, defaults: CostPolicy | None = None) -> CostPolicy:
    """A policy from camelCase fields; absent fields come from ``defaults``, or else from `CostPolicy`.

    Raises:
        ConfigError: a field is unknown, of the wrong type or out of range; the message names it as ``costPolicy.<field>``.
    """
    base = msgspec.to_builtins(defaults or CostPolicy())
    policy = convert({**base, **(fields or {})}, CostPolicy, "costPolicy")
    policy.validate("costPolicy")
    return policy


def latency_to_cost(latency_us: float, policy: CostPolicy) -> int:
    """The latency in units of the policy, rounded up, from `MIN_ZONE_COST` to `MAX_NETWORK_COST`."""
    units = math.ceil(latency_us / policy.unit_us - 1e-9)  # 5000.000001 us is 5 ms, not 6
    return min(max(units, MIN_ZONE_COST), MAX_NETWORK_COST)


def cost_with_hysteresis(current_cost: int | None, latency_us: float, mad_us: float, policy: CostPolicy) -> int:
    """The current cost while the latency stays near the range of that cost, else `latency_to_cost` the latency.

    The range of cost c is ((c - 1) * unit, c * unit]; those of `MIN_ZONE_COST` and `MAX_NETWORK_COST` have no lower and no upper end. It is
    widened at both ends by the larger of ``hysteresis`` times c * unit, and twice the noise (at most half of c * unit).
    """
    cost = latency_to_cost(latency_us, policy)
    if current_cost is None or current_cost == cost:
        return cost
    upper_us = current_cost * policy.unit_us
    margin_us = max(policy.hysteresis * upper_us, min(2 * mad_us, upper_us / 2))
    low_us = -math.inf if current_cost <= MIN_ZONE_COST else upper_us - policy.unit_us - margin_us
    high_us = math.inf if current_cost >= MAX_NETWORK_COST else upper_us + margin_us
    return current_cost if low_us < latency_us <= high_us else cost
