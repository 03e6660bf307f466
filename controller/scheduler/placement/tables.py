"""Tables of a call's cost by zone pair: time, whole costs, money, violated limits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from controller.cluster.costs import UNKNOWN_COST, CostTable, Location, is_one_zone
from controller.cluster.graph import MAX_NETWORK_COST
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
    return _read_only(np.array(flat, np.float64).reshape(len(locations), len(locations)))


def money_table(locations: Sequence[Location], prices: PriceTable) -> Floats:
    """[zone, zone] price of a GB of calls made that way, answers included."""
    flat = [prices.per_gb(a, b) for a in locations for b in locations]
    return np.array(flat, np.float64).reshape(len(locations), len(locations))


def combine_with_money(times: Floats, local: float, money: Floats, share: float) -> tuple[Floats, float]:
    """Combine times and money in one table; returns it and the value within a host.

    Money is scaled to time, the most expensive path to the slowest, and time counts ``share`` of itself. If all prices are
    equal, the times are unchanged.

    Args:
        times: [zone, zone].
        local: time within a host, which costs no money.
        money: [zone, zone].
        share: of time.
    """
    dearest = float(money.max(initial=0.0))
    if dearest <= 0 or float(money.min()) == dearest:
        return times, local
    return _read_only(money * (float(times.max()) / dearest) + share * times), share * local


def latency_us(origin: Location, destination: Location, costs: CostTable, *, measured: bool, one_zone: bool) -> float:
    """Published latency; else cost x 1 ms; else, without a NetworkTopology, 1 ms within a region and 50 ms between regions.

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
    """[zone, zone] cost to compare with a limit: MAX_NETWORK_COST + 1 if always violated, -1 if never. Read-only."""

    def limit_cost(a: Location, b: Location) -> int:
        found, cost = costs.check_limit(a, b, MAX_NETWORK_COST)
        if found == "violated":
            return MAX_NETWORK_COST + 1
        return cost if found == "satisfied" and a != b else -1

    flat = [limit_cost(a, b) for a in locations for b in locations]
    return _read_only(np.array(flat, np.int64).reshape(len(locations), len(locations)))


def canonical_limits(limits: Iterable[int], matrix: Ints) -> dict[int, int]:
    """Map each limit to the smallest one that the same pairs violate: a group may have a limit for each dependency."""
    known = np.unique(matrix).tolist()
    return {limit: known[bisect_right(known, limit) - 1] if known and limit >= known[0] else -1 for limit in limits}


def _read_only(table: NDArray[T]) -> NDArray[T]:
    table.setflags(write=False)
    return table
