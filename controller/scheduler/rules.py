"""NetworkOverhead's filter and score (docs/contracts, section 4), computed per place and not per node.

Upstream looks at every placed pod for every node. All nodes of one region and zone get the same answer, but for those that
hold a pod of a dependency themselves. So a pod's answer is one tally per (region, zone), plus one per node of such a pod:
its cost does not grow with nodes x placed pods.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from controller.resources import REGION_LABEL, ZONE_LABEL, WeightInfo
from kubekit import quantity
from kubekit.errors import QuantityError

SAME_HOST_COST, SAME_ZONE_COST, UNKNOWN_COST = 0, 1, 100
MAX_SCORE = 100

Verdict = Literal["satisfied", "violated", "unknown"]


class Location(NamedTuple):
    """Region and zone of a node; either may be empty."""

    region: str = ""
    zone: str = ""


NOWHERE = Location()
"""Where a node without both labels is."""


class Way(NamedTuple):
    """What the NetworkTopology says about one directed pair of zones or regions.

    Attributes:
        cost: networkCost.
        free_bps: bandwidth that nobody has taken, bits per second; None when the capacity is not known.
    """

    cost: int
    free_bps: int | None = None


class CostTable:
    """One weight of a NetworkTopology, made ready for look-ups. An absent weight knows no cost."""

    def __init__(self, weight: WeightInfo | None = None) -> None:
        self._zones: dict[tuple[str, str], Way] = {}
        self._regions: dict[tuple[str, str], Way] = {}
        for level in weight.topology_list if weight else ():
            ways = {ZONE_LABEL: self._zones, REGION_LABEL: self._regions}.get(level.topology_key)
            if ways is None:
                continue
            for origin in level.origin_list:
                for entry in origin.cost_list:
                    free = _free_bps(entry.bandwidth_capacity, entry.bandwidth_allocated)
                    ways.setdefault((origin.origin, entry.destination), Way(entry.network_cost, free))

    def way(self, origin: Location, destination: Location) -> Way | None:
        """Look up a pair of different places: by zones inside a region, by regions otherwise. None when unknown."""
        if origin.region == destination.region:
            return self._zones.get((origin.zone, destination.zone))
        return self._regions.get((origin.region, destination.region))

    def judge(self, candidate: Location, peer: Location, max_cost: int) -> tuple[Verdict, int]:
        """The contract's table for two different nodes, from ``candidate`` to the node of ``peer``."""
        if peer == NOWHERE:
            return "violated", UNKNOWN_COST
        if candidate == peer:
            return "satisfied", SAME_ZONE_COST
        way = self.way(candidate, peer)
        if way is None:
            return "unknown", UNKNOWN_COST
        return ("satisfied" if way.cost <= max_cost else "violated"), way.cost


def _free_bps(capacity: str | int | None, allocated: str | int | None) -> int | None:
    if capacity is None:
        return None
    try:
        return quantity.parse_int(capacity) - (quantity.parse_int(allocated) if allocated is not None else 0)
    except QuantityError:
        return None


class Bond(NamedTuple):
    """The placed pods of one workload that the pod depends on, or that depends on it.

    Attributes:
        selector: of that workload.
        max_cost: maxNetworkCost of the dependency.
        min_bandwidth_bps: of the dependency, 0 when not asked for.
        pods: node -> how many of its pods are placed there; only nodes that exist.
    """

    selector: str
    max_cost: int
    min_bandwidth_bps: int
    pods: Mapping[str, int]


class Tally(NamedTuple):
    """How a node fares over all placed pods of all dependencies.

    Attributes:
        satisfied: dependencies within their maxNetworkCost.
        violated: dependencies beyond it.
        cost: accumulated network cost.
        starved: a dependency lacks bandwidth; never set unless the bandwidth filter is on.
    """

    satisfied: int = 0
    violated: int = 0
    cost: int = 0
    starved: bool = False

    @property
    def passes(self) -> bool:
        """Whether the filter lets the node through: a tie passes."""
        return self.violated <= self.satisfied and not self.starved


class Weighing(msgspec.Struct, frozen=True):
    """The answer for one pod over the whole cluster.

    Attributes:
        neutral: why all nodes are equal; empty when they are not.
        by_class: a tally per place, in the order of the places given.
        by_node: tallies of nodes that hold pods of dependencies or dependants themselves.
    """

    neutral: str
    by_class: Sequence[Tally] = ()
    by_node: Mapping[str, Tally] = {}

    def tally(self, node: str, place: int) -> Tally:
        """Of one node, by its name and the index of its place; a neutral answer finds nothing against any node."""
        return Tally() if self.neutral else self.by_node.get(node) or self.by_class[place]


def weigh(
    dependencies: Iterable[Bond],
    dependants: Iterable[Bond],
    places: Sequence[Location],
    place_of: Mapping[str, int],
    costs: CostTable,
    *,
    bandwidth: bool = False,
) -> Weighing:
    """Weigh every place for one pod.

    Args:
        dependencies: what the pod depends on; decides filter and score.
        dependants: what depends on the pod; adds to the score alone. Empty in upstream parity.
        places: every place there is, `NOWHERE` included where a node may be there.
        place_of: node name -> index in ``places``.
        costs: the weight in use.
        bandwidth: apply the bandwidth filter.
    """
    sums = _Sums(places, place_of, costs)
    for bond in dependencies:
        sums.add_dependency(bond, bandwidth=bandwidth)
    for bond in dependants:
        sums.add_dependant(bond)
    return sums.result()


class _Sums:
    """Tallies in the making: per place, and the corrections of nodes that hold pods themselves."""

    def __init__(self, places: Sequence[Location], place_of: Mapping[str, int], costs: CostTable) -> None:
        self._places, self._place_of, self._costs = places, place_of, costs
        self._satisfied, self._violated = [0] * len(places), [0] * len(places)
        self._cost, self._starved = [0] * len(places), [False] * len(places)
        self._here: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])

    def add_dependency(self, bond: Bond, *, bandwidth: bool) -> None:
        for place, count in self._by_place(bond).items():
            peer = self._places[place]
            for i, candidate in enumerate(self._places):
                verdict, cost = self._costs.judge(candidate, peer, bond.max_cost)
                self._cost[i] += count * cost
                self._satisfied[i] += count * (verdict == "satisfied")
                self._violated[i] += count * (verdict == "violated")
            if bandwidth and bond.min_bandwidth_bps:
                self._starve(bond, peer)
        for node, count in bond.pods.items():
            here = self._correct(node, count)
            if self._places[self._place_of[node]] == NOWHERE:
                here[0] += count
                here[1] -= count

    def add_dependant(self, bond: Bond) -> None:
        for place, count in self._by_place(bond).items():
            origin = self._places[place]
            for i, candidate in enumerate(self._places):
                self._cost[i] += count * self._costs.judge(origin, candidate, bond.max_cost)[1]
        for node, count in bond.pods.items():
            self._correct(node, count)

    def result(self) -> Weighing:
        by_class = [
            Tally(*tally) for tally in zip(self._satisfied, self._violated, self._cost, self._starved, strict=True)
        ]
        by_node: dict[str, Tally] = {}
        for node, (satisfied, violated, cost) in self._here.items():
            base = by_class[self._place_of[node]]
            by_node[node] = Tally(base.satisfied + satisfied, base.violated + violated, base.cost + cost, base.starved)
        return Weighing("", by_class, by_node)

    def _by_place(self, bond: Bond) -> Counter[int]:
        found: Counter[int] = Counter()
        for node, count in bond.pods.items():
            found[self._place_of[node]] += count
        return found

    def _starve(self, bond: Bond, peer: Location) -> None:
        for i, candidate in enumerate(self._places):
            way = self._costs.way(candidate, peer) if candidate != peer else None
            if way is not None and way.free_bps is not None and way.free_bps < bond.min_bandwidth_bps:
                self._starved[i] = True

    def _correct(self, node: str, count: int) -> list[int]:
        """The node's place took its own pods for those of neighbours; they are on the same host."""
        unlabelled = self._places[self._place_of[node]] == NOWHERE
        here = self._here[node]
        here[2] += count * (SAME_HOST_COST - (UNKNOWN_COST if unlabelled else SAME_ZONE_COST))
        return here


def normalise(cost: int, low: int, high: int) -> int:
    """A score of 0 to 100 from a cost and the lowest and highest cost among the scored nodes; lower costs score higher."""
    if low == high:
        return 0 if high == 0 else MAX_SCORE
    return MAX_SCORE - MAX_SCORE * (cost - low) // (high - low)


def refusal(node: str, tally: Tally) -> str:
    """Why a node is refused, in the words that users of upstream know."""
    if tally.violated > tally.satisfied:
        return (
            f"Node {node} does not meet several network requirements from Workload dependencies: "
            f"Satisfied: {tally.satisfied} Violated: {tally.violated}"
        )
    return f"Node {node} has too little free bandwidth for the Workload dependencies"
