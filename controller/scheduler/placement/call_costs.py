"""The cost of a call by pair of zones: time, network cost, or money and time; and limits that the pairs violate."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from controller.cluster.costs import UNKNOWN_COST, CostTable, Location, has_no_zone_labels
from controller.scheduler.placement.problem import Floats, Ints
from controller.traffic.prices import PriceTable
from netperf.policy import MAX_NETWORK_COST

T = TypeVar("T", bound=np.generic)
ON_HOST_US, IN_ZONE_US = 30.0, 100.0
"""Round trips within a host, and between two hosts of a zone if not measured, as providers document."""
_US_PER_COST, _MIN_BETWEEN_ZONES_US = 1000.0, 250.0
"""Round trip per unit of network cost, and the shortest between two zones."""
_BETWEEN_ZONES_US, _BETWEEN_REGIONS_US = 1000.0, 50_000.0
"""Round trips between two zones of a region, and between two regions, without a NetworkTopology."""
_CACHE_SIZE = 64
"""Tables in each cache: many groups have the same costs."""
_VIOLATES_EVERY_LIMIT, _VIOLATES_NO_LIMIT = MAX_NETWORK_COST + 1, -1


@lru_cache(_CACHE_SIZE)
def call_latencies(locations: tuple[Location, ...], costs: CostTable, *, has_topology: bool) -> Floats:
    """[zone, zone] microseconds of a call between two different hosts. Read-only."""
    latency = partial(_latency_us, costs=costs, has_topology=has_topology, is_one_zone=has_no_zone_labels(locations))
    return _by_zone_pair(locations, latency, np.float64)


@lru_cache(_CACHE_SIZE)
def call_network_costs(locations: tuple[Location, ...], costs: CostTable) -> Floats:
    """[zone, zone] network cost of a call between two different hosts. Read-only."""
    return _by_zone_pair(locations, costs.effective_cost, np.float64)


def traffic_prices(locations: Sequence[Location], prices: PriceTable) -> Floats:
    """[zone, zone] price of a GB of traffic from caller to callee, responses included."""
    return _by_zone_pair(locations, prices.price_per_gb, np.float64)


def add_prices(times: Floats, host_time: float, prices: Floats, time_weight: float) -> tuple[Floats, float]:
    """The costs of calls by price and time: [zone, zone], and within a host, where traffic has no price.

    Prices are scaled so that the most expensive path costs as much as the slowest path. Equal prices give the times.
    """
    highest_price = float(prices.max(initial=0.0))
    if highest_price <= 0 or float(prices.min()) == highest_price:
        return times, host_time
    return prices * (float(times.max()) / highest_price) + time_weight * times, time_weight * host_time


@lru_cache(_CACHE_SIZE)
def limited_costs(locations: tuple[Location, ...], costs: CostTable) -> Ints:
    """[zone, zone] network cost to compare with a limit. Read-only."""

    def limited_cost(origin: Location, destination: Location) -> int:
        result, cost = costs.compare_with_limit(origin, destination, MAX_NETWORK_COST)
        if result == "violated":
            return _VIOLATES_EVERY_LIMIT
        return cost if result == "satisfied" and origin != destination else _VIOLATES_NO_LIMIT

    return _by_zone_pair(locations, limited_cost, np.int64)


def equivalent_limits(limits: Iterable[int], costs: Ints) -> dict[int, int]:
    """Limit -> the smallest limit that the same pairs of zones violate by `limited_costs`, so that dependencies share tables."""
    levels = [_VIOLATES_NO_LIMIT, *np.unique(costs).tolist()]
    return {limit: levels[bisect_right(levels, limit) - 1] for limit in limits}


def _latency_us(
    origin: Location, destination: Location, costs: CostTable, *, has_topology: bool, is_one_zone: bool
) -> float:
    """Round trip of a call between two different hosts, in microseconds.

    - Within a zone: published, else `IN_ZONE_US`.
    - Between zones: published, at least `IN_ZONE_US`; else network cost x 1 ms, at least 250 us; else with a NetworkTopology
      `UNKNOWN_COST` x 1 ms; else 1 ms within a region and 50 ms between regions.

    ``is_one_zone`` means that no node has a zone label: only then do nodes without the label count as one zone.
    """
    if origin == destination and (origin.zone or is_one_zone):
        return costs.latency_us(origin, destination) or IN_ZONE_US
    latency = costs.latency_us(origin, destination)
    if latency is not None:
        return max(latency, IN_ZONE_US)
    cost = costs.cost(origin, destination)
    if cost is not None:
        return max(cost * _US_PER_COST, _MIN_BETWEEN_ZONES_US)
    if has_topology:
        return UNKNOWN_COST * _US_PER_COST
    return _BETWEEN_ZONES_US if origin.region == destination.region else _BETWEEN_REGIONS_US


def _by_zone_pair(
    locations: Sequence[Location], value_of: Callable[[Location, Location], float], dtype: type[T]
) -> NDArray[T]:
    """[zone, zone] value of each pair of locations. Read-only, because plans share cached tables."""
    values = [value_of(origin, destination) for origin in locations for destination in locations]
    table = np.array(values, dtype).reshape(len(locations), len(locations))
    table.setflags(write=False)
    return table
