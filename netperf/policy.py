"""How latency becomes cost: what a user can set, per controller and per NetworkTopology, and what makes sense."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from kubekit.errors import ConfigError
from netperf.sample import Doubt, Percentile

SAME_HOST_COST = 0
SAME_ZONE_COST = 1
LEAST_ZONE_COST = 2
"""Between zones; one more than inside a zone, so that inside is always nearer (NetworkOverhead, docs/contracts)."""
GREATEST_COST = 10_000
"""maxNetworkCost ends here; a greater cost could not be told from it."""


class CostPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The rules of pricing; in YAML and custom resources the fields are spelled in camelCase (``unitUs``).

    Attributes:
        percentile: which latency counts.
        unit_us: latency per unit of cost, rounded up; 1000 is a millisecond, 100 suits sub-millisecond clouds.
        smoothing: weight of the newest run in the exponentially weighted average; 1 takes each run as it is. The first
            runs count alike until each would weigh less than this.
        jump_ratio: a trusted run that differs by more than this share is a new level, taken as it is: smoothing is for
            noise, and a change that was confirmed should not take ten rounds to arrive.
        hysteresis: a cost stays while the estimate is within this share of the latencies it stands for.
        stale_after_s: a measurement older than this, or than three rounds, is stale: its last value stays, flagged.
        expire_after_s: after this it is a hole, to be inferred or absent.
        external_stale_after_s: the same as stale_after_s for numbers of other components, which carry no time and do
            not change when written again; None never ages them.
        infer: fill holes with the shortest path over measured pairs.
        jitter_weight: adds this share of the distance from p50 to p99.
        loss_penalty_us: adds this for each percent of loss.
        region_percentile: the cost between regions is this percentile (nearest rank) of the costs between their zones.
        accept_doubts: doubtful runs that count all the same. Loss is a property of the path, not of the measurement.
    """

    percentile: Percentile = "p90"
    unit_us: float = 1000.0
    smoothing: float = 0.3
    jump_ratio: float = 0.3
    hysteresis: float = 0.1
    stale_after_s: float = 300.0
    expire_after_s: float = 3600.0
    external_stale_after_s: float | None = None
    infer: bool = True
    jitter_weight: float = 0.0
    loss_penalty_us: float = 0.0
    region_percentile: float = 50.0
    accept_doubts: tuple[Doubt, ...] = ("loss",)

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the first field that makes no sense."""
        _within("unitUs", self.unit_us, 1, 1e6)
        _within("smoothing", self.smoothing, 0.01, 1)
        _within("jumpRatio", self.jump_ratio, 0, 100)
        _within("hysteresis", self.hysteresis, 0, 1)
        _within("staleAfterS", self.stale_after_s, 1, 30 * 86400)
        _within("expireAfterS", self.expire_after_s, self.stale_after_s, 365 * 86400)
        if self.external_stale_after_s is not None:
            _within("externalStaleAfterS", self.external_stale_after_s, 1, 365 * 86400)
        _within("jitterWeight", self.jitter_weight, 0, 100)
        _within("lossPenaltyUs", self.loss_penalty_us, 0, 1e6)
        _within("regionPercentile", self.region_percentile, 0, 100)


def _within(field: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise ConfigError(f"costPolicy.{field}", f"{value} is out of range", f"{low:g} to {high:g}")


def parse_policy(fields: Mapping[str, Any] | None, defaults: CostPolicy | None = None) -> CostPolicy:
    """A policy from camelCase fields; absent ones come from ``defaults``.

    Raises:
        ConfigError: a field is unknown, of the wrong type or out of range; names it as ``costPolicy.<field>``.
    """
    base = msgspec.to_builtins(defaults or CostPolicy())
    try:
        return msgspec.convert({**base, **(fields or {})}, CostPolicy)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        raise ConfigError("costPolicy", str(error), "see the reference of the cost policy") from error
