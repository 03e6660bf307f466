"""Tables of a call's cost by zone pair: time, whole costs, money, violated limits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from controller.cluster.costs import UNKNOWN_COST, CostTable, Location, is_one_zone
from controller.cluster.graph import GREATEST_COST
from controller.scheduler.placement.problem import Floats, Ints
from controller.traffic.prices import PriceTable

T = TypeVar("T", bound=np.generic)
ON_HOST_US, IN_ZONE_US = 30.0, 100.0
"""Round trips within a host and between two hosts of a zone, if not measured. Providers document 70 to 110 µs for
the latter.
"""
_LEAST_BETWEEN_ZONES_US, _US_PER_COST = 250.0, 1000.0
_UNMEASURED_ZONE_US, _UNMEASURED_REGION_US = 1000.0, 50_000.0
"""Where there is no NetworkTopology at all: zones of a region are nearer than regions, and no more is known."""
_TABLES = 64
"""Tables between zones that are kept: group after group is planned by the same costs."""


@lru_cache(_TABLES)
def price_table(locations: tuple[Location, ...], costs: CostTable, *, measured: bool, parity: bool) -> Floats:
    """[zone, zone] cost of a call between two different hosts: whole costs in parity, else microseconds. Read-only."""
    if parity:
        flat = [float(costs.check_limit(a, b, 0)[1]) for a in locations for b in locations]
    else:
        one_zone = is_one_zone(locations)
        flat = [latency_us(a, b, costs, measured=measured, one_zone=one_zone) for a in locations for b in locations]
    return _closed(np.array(flat, np.float64).reshape(len(locations), len(locations)))


def money_table(locations: Sequence[Location], prices: PriceTable) -> Floats:
    """[zone, zone] price of a GB of calls made that way, answers included."""
    flat = [prices.per_gb((a.region, a.zone), (b.region, b.zone)) for a in locations for b in locations]
    return np.array(flat, np.float64).reshape(len(locations), len(locations))


def weighed_with_money(times: Floats, local: float, money: Floats, share: float) -> tuple[Floats, float]:
    """Times and prices as one table, and what a way within a host counts in it.

    Money is scaled to time, the dearest path to the slowest, so that code for microseconds fits; time counts
    ``share`` of itself. Where every way costs the same, money has no say, and time alone is left.

    Args:
        times: [zone, zone].
        local: time within a host, which costs no money.
        money: [zone, zone].
        share: of time.
    """
    dearest = float(money.max(initial=0.0))
    if dearest <= 0 or float(money.min()) == dearest:
        return times, local
    return _closed(money * (float(times.max()) / dearest) + share * times), share * local


def latency_us(
    origin: Location, destination: Location, costs: CostTable, *, measured: bool, one_zone: bool = False
) -> float:
    """Measured, else from the whole cost (1 is a millisecond), else a guess that keeps regions apart.

    Two nodes without a zone are near each other where all are ``one_zone``, and anywhere in another cluster.
    """
    if origin == destination and (origin.zone or one_zone):
        return costs.latency_us(origin, destination) or IN_ZONE_US
    latency = costs.latency_us(origin, destination)
    if latency is not None:
        return max(latency, IN_ZONE_US)
    cost = costs.cost(origin, destination)
    if cost is not None:
        return max(cost * _US_PER_COST, _LEAST_BETWEEN_ZONES_US)
    if measured:
        return UNKNOWN_COST * _US_PER_COST
    return _UNMEASURED_ZONE_US if origin.region == destination.region else _UNMEASURED_REGION_US


@lru_cache(_TABLES)
def cost_matrix(locations: tuple[Location, ...], costs: CostTable) -> Ints:
    """[zone, zone] cost of a pair on different hosts as limits count it: beyond every limit, or -1 within every one.
    Read-only.
    """

    def cost(a: Location, b: Location) -> int:
        found, cost = costs.check_limit(a, b, GREATEST_COST)
        if found == "violated":
            return GREATEST_COST + 1
        return cost if found == "satisfied" and a != b else -1

    flat = [cost(a, b) for a in locations for b in locations]
    return _closed(np.array(flat, np.int64).reshape(len(locations), len(locations)))


def limits_that_differ(limits: Iterable[int], matrix: Ints) -> dict[int, int]:
    """Each limit -> the least one that the same pairs violate: a group may have a limit for each of its dependencies."""
    known = np.unique(matrix).tolist()
    return {limit: known[bisect_right(known, limit) - 1] if known and limit >= known[0] else -1 for limit in limits}


def _closed(table: NDArray[T]) -> NDArray[T]:
    table.setflags(write=False)
    return table
