"""Filter and score: NetworkOverhead by placed pods, NodeResourcesAllocatable by nodes' allocatable.

NetworkOverhead (docs/contracts, section 4) is computed per location and not per node.

Upstream looks at every placed pod for every node. All nodes of one region and zone get the same answer, but for those that
hold a pod of a dependency themselves. So a pod's answer is one score per (region, zone), plus one per node of such a pod:
its cost does not grow with nodes x placed pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import msgspec

from controller.cluster.costs import SAME_HOST_COST, SAME_ZONE_COST, CostTable, LimitCheck, Location
from controller.cluster.services import Endpoints, Routing
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
        locations: every location there is, `controller.cluster.costs.NO_LOCATION` included where a node may be there.
        location_index: node name -> index in ``locations``.
        costs: the weight in use.
    """
    tables = [_dependency_table(peer, locations, location_index, costs.check_limit) for peer in dependencies]
    tables += [_dependant_table(peer, locations, location_index, costs) for peer in dependants]
    scores_of = zip(*(table.by_location for table in tables), strict=True)
    by_location = [NodeScore(*map(sum, zip(*scores, strict=True))) for scores in scores_of]
    by_node: dict[str, NodeScore] = {}
    for table in tables:
        for node, score in table.by_node.items():
            index = location_index[node]
            satisfied, violated, cost, unknown = by_node.get(node) or by_location[index]
            replaced = table.by_location[index]
            by_node[node] = NodeScore(
                satisfied + score.satisfied - replaced.satisfied,
                violated + score.violated - replaced.violated,
                cost + score.cost - replaced.cost,
                unknown + score.unknown - replaced.unknown,
            )
    return ScoreTable("", by_location or [NodeScore()] * len(locations), by_node)


_LimitRule = Callable[[Location, Location, int], tuple[LimitCheck, int]]
"""Candidate, location of a peer's pod, maxNetworkCost -> see `CostTable.check_limit`."""


def _dependency_table(
    peer: PeerWorkload, locations: Sequence[Location], location_index: Mapping[str, int], check_limit: _LimitRule
) -> ScoreTable:
    """Scores by one dependency: by the replicas that answer calls."""
    index_of = {node: location_index[node] for node in peer.pods}
    endpoints = Endpoints(peer.routing, index_of, lambda index: locations[index].zone)
    replicas_at: Counter[int] = Counter()
    for node, count in peer.pods.items():
        replicas_at[index_of[node]] += count
    total = replicas_at.total()

    replicas = [(locations[index], count) for index, count in replicas_at.items()]
    of_all = [_score_by_all(candidate, replicas, peer.max_cost, check_limit) for candidate in locations]

    @cache
    def score(routing: Routing, index: int, on_node: int) -> NodeScore:
        match routing:
            case Routing.NODE:
                return NodeScore(on_node, 0, total * SAME_HOST_COST)
            case Routing.ZONE:
                # Costs keep the weight of all replicas, so that dependencies with many are not taken for cheap ones.
                saved = round(total * on_node / replicas_at[index] * (SAME_ZONE_COST - SAME_HOST_COST))
                return NodeScore(replicas_at[index], 0, total * SAME_ZONE_COST - saved)
        found = of_all[index]
        if not on_node:
            return found
        verdict, cost = check_limit(locations[index], locations[index], peer.max_cost)
        satisfied, violated = on_node * (verdict != "satisfied"), on_node * (verdict == "violated")
        saved = on_node * (cost - SAME_HOST_COST)
        return NodeScore(found.satisfied + satisfied, found.violated - violated, found.cost - saved, found.unknown)

    by_location = [score(endpoints.routing_from("", index), index, 0) for index in range(len(locations))]
    by_node = {
        node: score(endpoints.routing_from(node, index), index, peer.pods[node]) for node, index in index_of.items()
    }
    return ScoreTable("", by_location, by_node)


def _score_by_all(
    candidate: Location, replicas: Iterable[tuple[Location, int]], max_cost: int, check_limit: _LimitRule
) -> NodeScore:
    """The score of a node without replicas where any replica may answer."""
    satisfied = violated = total = unknown = 0
    for location, count in replicas:
        verdict, cost = check_limit(candidate, location, max_cost)
        total += count * cost
        if verdict == "satisfied":
            satisfied += count
        elif verdict == "violated":
            violated += count
        else:
            unknown += count
    return NodeScore(satisfied, violated, total, unknown)


def _dependant_table(
    peer: PeerWorkload, locations: Sequence[Location], location_index: Mapping[str, int], costs: CostTable
) -> ScoreTable:
    """Scores by one dependant: only costs, from each of its pods to the candidate."""
    table = _dependency_table(
        peer._replace(routing=Routing.ANY),
        locations,
        location_index,
        lambda candidate, caller, max_cost: costs.check_limit(caller, candidate, max_cost),
    )
    by_location = [NodeScore(0, 0, score.cost, score.unknown) for score in table.by_location]
    by_node = {node: NodeScore(0, 0, score.cost, score.unknown) for node, score in table.by_node.items()}
    return ScoreTable("", by_location, by_node)


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
