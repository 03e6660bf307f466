"""Costs between zones as arrays, for every maxNetworkCost that a group's dependencies have, violations priced in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from controller.appgroup.graph import Graph
from controller.scheduler.placement import Link
from controller.scheduler.rules import CostTable, Location

Ints = NDArray[np.int64]

VIOLATION_COST = 10**6
"""Added for each violated pair of pods: no saving elsewhere makes up for one."""


class CostTables:
    """The tables of a group over candidate hosts.

    Attributes:
        zone_of: per host, the index of its zone.
        links: per edge of the graph, its ends and its table.
        tables: [table, zone, zone] from the dependant's zone to the dependency's.
    """

    def __init__(self, graph: Graph, costs: CostTable, locations: Sequence[Location]) -> None:
        self._costs = costs
        self._zones = list(dict.fromkeys(locations))
        index = {zone: i for i, zone in enumerate(self._zones)}
        self.zone_of = [index[location] for location in locations]
        self._limits = list(dict.fromkeys(edge.max_network_cost for edge in graph.edges)) or [0]
        self.links = tuple(
            Link(edge.dependant, edge.dependency, self._limits.index(edge.max_network_cost)) for edge in graph.edges
        )
        self.tables = np.array([_prices(costs, tuple(self._zones), limit) for limit in self._limits], np.int64)
        self._towards: dict[tuple[int, Location, bool], Ints] = {}

    def towards(self, table: int, location: Location, *, outward: bool) -> Ints:
        """[site] cost between each site and one location; outward: the site depends."""
        key = (table, location, outward)
        if key not in self._towards:
            limit = self._limits[table]
            by_zone = [
                _price(self._costs, zone, location, limit) if outward else _price(self._costs, location, zone, limit)
                for zone in self._zones
            ]
            self._towards[key] = np.array(by_zone, np.int64)[self.zone_of] if by_zone else np.zeros(0, np.int64)
        return self._towards[key]


def _price(costs: CostTable, origin: Location, destination: Location, limit: int) -> int:
    verdict, cost = costs.judge(origin, destination, limit)
    return cost + (VIOLATION_COST if verdict == "violated" else 0)


@lru_cache(maxsize=32)
def _prices(costs: CostTable, zones: tuple[Location, ...], limit: int) -> Ints:
    """[zone, zone] prices; groups that are planned one after the other mostly have costs, zones and limits in common."""
    flat = [_price(costs, a, b, limit) for a in zones for b in zones]
    return np.array(flat, np.int64).reshape(len(zones), len(zones))
