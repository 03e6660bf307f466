"""What placement saves: a call of a group's workloads as their pods stand, against the same pods on nodes taken at random.

A call goes from any placed pod of the caller to any of the called; every dependency counts alike. Random is the mean over all
nodes, so it needs no second cluster, and it asks neither selectors nor room. Within a zone a call costs 1 and is taken for 0 ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from controller.cluster.costs import SAME_ZONE_COST, CostTable, Location
from controller.diagnosis.model import PairView
from controller.groups.status import GroupFacts
from controller.views.model import SavingView
from netperf.latencies import ZonePair

Mean = tuple[float, float] | None
"""Cost and microseconds of a call; None where a cost or a round trip is not known."""


class Savings:
    """Judges groups over the same nodes.

    Args:
        locations: of every node.
        pairs: for round trips.
    """

    def __init__(self, locations: Mapping[str, Location], pairs: Mapping[ZonePair, PairView]) -> None:
        self._locations, self._pairs = locations, pairs
        self._nodes = Counter(locations.values())
        self._random: dict[int, Mean] = {}

    def of(self, facts: GroupFacts, costs: CostTable) -> SavingView | None:
        """A group's; None while no dependency has pods placed at both ends, or where something is not known."""
        places = [self._places(nodes) for nodes in facts.members]
        edges = [(places[e.dependant], places[e.dependency]) for e in facts.graph.edges]
        means = [self._mean(callers, called, costs) for callers, called in edges if callers and called]
        if id(costs) not in self._random:
            self._random[id(costs)] = self._mean(self._nodes, self._nodes, costs)
        random = self._random[id(costs)]
        known = [mean for mean in means if mean is not None]
        if not known or len(known) < len(means) or random is None:
            return None
        return SavingView(
            dependencies=len(known),
            cost=sum(cost for cost, _ in known) / len(known),
            random_cost=random[0],
            us=sum(us for _, us in known) / len(known),
            random_us=random[1],
        )

    def _places(self, nodes: Mapping[str, int]) -> Counter[Location]:
        found: Counter[Location] = Counter()
        for node, count in nodes.items():
            found[self._locations[node]] += count
        return found

    def _mean(self, callers: Mapping[Location, int], called: Mapping[Location, int], costs: CostTable) -> Mean:
        cost = us = 0.0
        for origin, calling in callers.items():
            for destination, answering in called.items():
                share = calling * answering
                if origin == destination:
                    cost += share * SAME_ZONE_COST
                    continue
                price, pair = costs.cost(origin, destination), self._pairs.get((origin.zone, destination.zone))
                if price is None or pair is None or pair.p50_us is None:
                    return None
                cost += share * price
                us += share * pair.p50_us
        calls = sum(callers.values()) * sum(called.values())
        return (cost / calls, us / calls) if calls else None
