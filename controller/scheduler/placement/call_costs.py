"""Tables of a call's cost by zone pair: time, whole costs, money, violated limits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from controller.cluster.costs import UNKNOWN_COST, CostTable, Location, has_no_zone_labels
from controller.scheduler.placement.problem import Floats, Ints
from controller.traffic.prices import PriceTable
from netperf.policy import MAX_NETWORK_COST

T = TypeVar("T", bound=np.generic)
ON_HOST_US, IN_ZONE_US = 30.0, 100.0
"""Round trips within a host, and between two hosts of a zone if not measured (providers document 70 to 110 µs)."""
_LEAST_BETWEEN_ZONES_US, _US_PER_COST = 250.0, 1000.0
_UNMEASURED_ZONE_US, _UNMEASURED_REGION_US = 1000.0, 50_000.0
"""Round trips between zones and between regions without a NetworkTopology."""
_CACHE_SIZE = 64
"""Cached tables: many groups have the same costs."""


@lru_cache(_CACHE_SIZE)
def call_cost_table(locations: tuple[Location, ...], costs: CostTable, *, has_topology: bool, parity: bool) -> Floats:
    """[zone, zone] cost of a call between two different hosts: whole costs in parity, else microseconds. Read-only."""
    if parity:
        flat = [float(costs.check_limit(a, b, 0)[1]) for a in locations for b in locations]
    else:
        is_one_zone = has_no_zone_labels(locations)
        flat = [
            latency_us(a, b, costs, has_topology=has_topology, is_one_zone=is_one_zone)
            for a in locations
            for b in locations
        ]
    return _read_only(np.array(flat, np.float64).reshape(len(locations), len(locations)))


def money_table(locations: Sequence[Location], prices: PriceTable) -> Floats:
    """[zone, zone] price of a GB of traffic from caller to callee, responses included."""
    flat = [prices.price_per_gb(a, b) for a in locations for b in locations]
    return np.array(flat, np.float64).reshape(len(locations), len(locations))


def combine_with_money(times: Floats, host_time: float, money: Floats, time_share: float) -> tuple[Floats, float]:
    """The costs of calls by price and time: [zone, zone], and within a host. The times are unchanged if all prices are equal.

    Prices are scaled so that the most expensive path costs as much as the slowest path.

    Args:
        times: [zone, zone].
        host_time: time within a host, which costs no money.
        money: [zone, zone].
        time_share: factor of the times.
    """
    highest_price = float(money.max(initial=0.0))
    if highest_price <= 0 or float(money.min()) == highest_price:
        return times, host_time
    return _read_only(money * (float(times.max()) / highest_price) + time_share * times), time_share * host_time


def latency_us(
    origin: Location, destination: Location, costs: CostTable, *, has_topology: bool, is_one_zone: bool
) -> float:
    """Published latency; else cost x 1 ms; else, without a NetworkTopology, 1 ms within a region and 50 ms between regions.

    Nodes without a zone label are in one zone only if ``is_one_zone``, that is if no node has the label.
    """
    if origin == destination and (origin.zone or is_one_zone):
        return costs.latency_us(origin, destination) or IN_ZONE_US
    latency = costs.latency_us(origin, destination)
    if latency is not None:
        return max(latency, IN_ZONE_US)
    cost = costs.cost(origin, destination)
    if cost is not None:
        return max(cost * _US_PER_COST, _LEAST_BETWEEN_ZONES_US)
    if has_topology:
        return UNKNOWN_COST * _US_PER_COST
    return _UNMEASURED_ZONE_US if origin.region == destination.region else _UNMEASURED_REGION_US


@lru_cache(_CACHE_SIZE)
def cost_matrix(locations: tuple[Location, ...], costs: CostTable) -> Ints:
    """[zone, zone] cost to compare with a limit; MAX_NETWORK_COST + 1 violates every limit, -1 none. Read-only."""

    def limit_cost(a: Location, b: Location) -> int:
        result, cost = costs.check_limit(a, b, MAX_NETWORK_COST)
        if result == "violated":
            return MAX_NETWORK_COST + 1
        return cost if result == "satisfied" and a != b else -1

    flat = [limit_cost(a, b) for a in locations for b in locations]
    return _read_only(np.array(flat, np.int64).reshape(len(locations), len(locations)))


def canonical_limits(limits: Iterable[int], matrix: Ints) -> dict[int, int]:
    """Map each limit to the smallest limit that the same pairs violate, so that dependencies share tables."""
    levels = np.unique(matrix).tolist()
    return {limit: levels[bisect_right(levels, limit) - 1] if levels and limit >= levels[0] else -1 for limit in limits}


def _read_only(table: NDArray[T]) -> NDArray[T]:
    table.setflags(write=False)
    return table
