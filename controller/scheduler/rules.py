"""Filter and score: NetworkOverhead by placed pods, NodeResourcesAllocatable by nodes' allocatable.

NetworkOverhead (docs/contracts, section 4) is computed per location and not per node.

Upstream looks at every placed pod for every node. All nodes of one region and zone get the same answer, but for those that
hold a pod of a dependency themselves. So a pod's answer is one score per (region, zone), plus one per node of such a pod:
its cost does not grow with nodes x placed pods.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from controller.cluster.costs import SAME_HOST_COST, SAME_ZONE_COST, CostTable, LimitCheck, Location
from controller.cluster.services import Routing, has_zone_hints
from controller.scheduler.config import AllocatableArgs

MAX_SCORE = 100


class PeerWorkload(NamedTuple):
    """The placed pods of one workload that the pod depends on, or that depends on it.

    Attributes:
        selector: of that workload.
        max_cost: maxNetworkCost of the dependency.
        pods: node -> how many of its pods are placed there; only nodes that exist.
        routing: who answers calls to that workload.
    """

    selector: str
    max_cost: int
    pods: Mapping[str, int]
    routing: Routing = Routing.ANY


class NodeScore(NamedTuple):
    """A node's score over all placed pods of all dependencies.

    Attributes:
        satisfied: dependencies within their maxNetworkCost.
        violated: dependencies beyond it.
        cost: accumulated network cost.
        unknown: placed pods to which no cost is known; each counts `controller.cluster.costs.UNKNOWN_COST`.
    """

    satisfied: int = 0
    violated: int = 0
    cost: int = 0
    unknown: int = 0

    @property
    def passes(self) -> bool:
        """Whether the filter lets the node through: a tie passes."""
        return self.violated <= self.satisfied


class ScoreTable(msgspec.Struct, frozen=True):
    """The answer for one pod over the whole cluster.

    Attributes:
        neutral: why all nodes are equal; empty when they are not.
        by_location: the score per location, in the order of the locations given.
        by_node: scores of nodes that hold pods of dependencies or dependants themselves.
    """

    neutral: str
    by_location: Sequence[NodeScore] = ()
    by_node: Mapping[str, NodeScore] = {}

    def node_score(self, node: str, index: int) -> NodeScore:
        """The score of a node, by its name and the index of its location; a neutral answer refuses no node."""
        return NodeScore() if self.neutral else self.by_node.get(node) or self.by_location[index]


def score_locations(
    dependencies: Iterable[PeerWorkload],
    dependants: Iterable[PeerWorkload],
    locations: Sequence[Location],
    location_index: Mapping[str, int],
    costs: CostTable,
) -> ScoreTable:
    """Score every location for one pod.

    Args:
        dependencies: what the pod depends on; decides filter and score.
        dependants: what depends on the pod; adds to the score alone. Empty in upstream parity.
        locations: every location there is, `controller.cluster.costs.NOWHERE` included where a node may be there.
        location_index: node name -> index in ``locations``.
        costs: the weight in use.
    """
    sums = _Sums(locations, location_index, costs)
    for peer in dependencies:
        sums.add_dependency(peer)
    for peer in dependants:
        sums.add_dependant(peer)
    return sums.result()


class _Sums:
    """Sums in the making: per location, and the corrections of nodes that hold pods themselves."""

    def __init__(self, locations: Sequence[Location], location_index: Mapping[str, int], costs: CostTable) -> None:
        self._locations, self._location_index, self._costs = locations, location_index, costs
        self._satisfied, self._violated = [0] * len(locations), [0] * len(locations)
        self._cost, self._unknown = [0] * len(locations), [0] * len(locations)
        self._here: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])

    def add_dependency(self, peer: PeerWorkload) -> None:
        """Add a dependency. Only replicas that kube-proxy would route to count."""
        by_location = self._by_location(peer)
        near = self._answered_near(peer, by_location)
        for index, count in by_location.items():
            peer_location = self._locations[index]
            for i, candidate in enumerate(self._locations):
                if i in near:
                    continue
                verdict, cost = self._costs.check_limit(candidate, peer_location, peer.max_cost)
                self._cost[i] += count * cost
                self._satisfied[i] += count * (verdict == "satisfied")
                self._violated[i] += count * (verdict == "violated")
                self._unknown[i] += count * (verdict == "unknown")
        for index in near:
            self._satisfied[index] += by_location[index]
            self._cost[index] += by_location.total() * SAME_ZONE_COST
        for node, count in peer.pods.items():
            if peer.routing is Routing.NODE or near:
                self._answer_here(peer, node, by_location, near)
                continue
            here, verdict = self._correct(node, count)
            here[0] += count * (verdict != "satisfied")
            here[1] -= count * (verdict == "violated")

    def _answered_near(self, peer: PeerWorkload, by_location: Mapping[int, int]) -> frozenset[int]:
        """Locations whose nodes are answered from their own zone; none while a replica is on a node without a zone."""
        zones = (self._locations[index].zone for index in by_location)
        return frozenset(by_location) if has_zone_hints(peer.routing, zones) else frozenset()

    def _answer_here(self, peer: PeerWorkload, node: str, by_location: Counter[int], near: Collection[int]) -> None:
        """Correct the score of a node that holds replicas itself.

        Costs keep the weight of all replicas, so that dependencies with many are not taken for cheap ones.
        """
        index, count = self._location_index[node], peer.pods[node]
        here, total = self._here[node], by_location.total()
        saved = SAME_ZONE_COST - SAME_HOST_COST
        if peer.routing is Routing.ZONE:
            here[2] -= round(total * count / by_location[index] * saved)
        elif index in near:
            here[0] += count - by_location[index]
            here[2] -= total * saved
        else:
            for peer_index, others in by_location.items():
                verdict, cost = self._costs.check_limit(
                    self._locations[index], self._locations[peer_index], peer.max_cost
                )
                here[0] -= others * (verdict == "satisfied")
                here[1] -= others * (verdict == "violated")
                here[2] -= others * cost
            here[0] += count
            here[2] += total * SAME_HOST_COST

    def add_dependant(self, peer: PeerWorkload) -> None:
        for index, count in self._by_location(peer).items():
            origin = self._locations[index]
            for i, candidate in enumerate(self._locations):
                verdict, cost = self._costs.check_limit(origin, candidate, peer.max_cost)
                self._cost[i] += count * cost
                self._unknown[i] += count * (verdict == "unknown")
        for node, count in peer.pods.items():
            self._correct(node, count)

    def result(self) -> ScoreTable:
        by_location = [
            NodeScore(*node_score)
            for node_score in zip(self._satisfied, self._violated, self._cost, self._unknown, strict=True)
        ]
        by_node: dict[str, NodeScore] = {}
        for node, (satisfied, violated, cost) in self._here.items():
            base = by_location[self._location_index[node]]
            by_node[node] = base._replace(
                satisfied=base.satisfied + satisfied, violated=base.violated + violated, cost=base.cost + cost
            )
        return ScoreTable("", by_location, by_node)

    def _by_location(self, peer: PeerWorkload) -> Counter[int]:
        found: Counter[int] = Counter()
        for node, count in peer.pods.items():
            found[self._location_index[node]] += count
        return found

    def _correct(self, node: str, count: int) -> tuple[list[int], LimitCheck]:
        """Replace the in-zone cost of pods on this node by the same-host cost; returns the correction and the in-zone verdict."""
        location, here = self._locations[self._location_index[node]], self._here[node]
        verdict, cost = self._costs.check_limit(location, location, 0)
        here[2] += count * (SAME_HOST_COST - cost)
        return here, verdict


def normalise(cost: int, low: int, high: int) -> int:
    """A score of 0 to 100 from a cost and the lowest and highest cost among the scored nodes; lower costs score higher."""
    if low == high:
        return 0 if high == 0 else MAX_SCORE
    return MAX_SCORE - MAX_SCORE * (cost - low) // (high - low)


def refusal(node: str, node_score: NodeScore) -> str:
    """Why a node is refused, in the words that users of upstream know."""
    return (
        f"Node {node} does not meet several network requirements from Workload dependencies: "
        f"Satisfied: {node_score.satisfied} Violated: {node_score.violated}"
    )


def raw_score(allocatable: Mapping[str, int], args: AllocatableArgs) -> int:
    """NodeResourcesAllocatable (docs/contracts, section 5): weighted mean of a node's allocatable, negative in mode ``Least``.

    Nodes are preferred by how much they could hold, not by what is free: requests do not matter. Cpu counts in millicores, the rest as
    integers; what is absent, or no quantity, counts as 0.
    """
    sign = -1 if args.mode == "Least" else 1
    total = weights = 0
    for resource in args.resources:
        total += sign * allocatable.get(resource.name, 0) * resource.weight
        weights += resource.weight
    # Go's division truncates toward zero, Python's floors.
    return total // weights if total >= 0 else -(-total // weights)


def normalise_allocatable(value: int, low: int, high: int) -> int:
    """One score from the lowest and highest raw score."""
    return (value - low) * MAX_SCORE // (high - low) if high > low else 0
