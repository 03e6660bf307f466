"""The rules of upstream's plugins: NetworkOverhead's filter and score by placed pods, and NodeResourcesAllocatable's score.

Upstream computes NetworkOverhead (docs/contracts.md, section 4) for every pair of node and placed pod. All nodes of a location have the
same score, except nodes with a peer's pod. So scores are computed here once per location, and once per node with a peer's pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import msgspec

from controller.cluster.costs import SAME_HOST_COST, SAME_ZONE_COST, CostTable, LimitResult, Location
from controller.cluster.services import Endpoints, Routing
from controller.scheduler.config import AllocatableArgs

MAX_SCORE = 100


class PeerWorkload(NamedTuple):
    """The placed pods of a workload that the scored pod depends on, or that depends on the scored pod.

    Attributes:
        selector: the workload's selector.
        max_cost: maxNetworkCost of the dependency.
        pods_by_node: node -> number of the workload's placed pods; only existing nodes.
        routing: routing of calls to the workload.
    """

    selector: str
    max_cost: int
    pods_by_node: Mapping[str, int]
    routing: Routing = Routing.ANY


class NodeScore(NamedTuple):
    """A node's score over all placed pods of all peers, or of one.

    Attributes:
        satisfied, violated: number of placed pods of dependencies that may answer calls, within and beyond maxNetworkCost.
        cost: network cost, summed over the placed pods of all peers.
        unknown: number of placed pods of peers without a known cost; each costs `controller.cluster.costs.UNKNOWN_COST`.
    """

    satisfied: int = 0
    violated: int = 0
    cost: int = 0
    unknown: int = 0

    @property
    def passes(self) -> bool:
        """Whether the filter passes the node: not more dependencies' pods violate their limit than satisfy it."""
        return self.violated <= self.satisfied


class ScoreTable(msgspec.Struct, frozen=True):
    """The scores of all nodes for one pod.

    Attributes:
        neutral_reason: why all nodes are equal, in which case there are no scores; else empty.
        by_location: score of each location, in the order of `State.locations`.
        by_node: node -> score, for nodes with pods of peers.
    """

    neutral_reason: str
    by_location: Sequence[NodeScore] = ()
    by_node: Mapping[str, NodeScore] = {}

    def node_score(self, node: str, location_index: int) -> NodeScore:
        """The score of a node; in a neutral table every node passes."""
        return NodeScore() if self.neutral_reason else self.by_node.get(node) or self.by_location[location_index]


def score_locations(
    dependencies: Iterable[PeerWorkload],
    dependents: Iterable[PeerWorkload],
    locations: Sequence[Location],
    location_index: Mapping[str, int],
    costs: CostTable,
) -> ScoreTable:
    """Score every location for one pod. Dependents add only costs; with ``scheduler.parity: upstream`` there are none.

    ``locations`` contains `controller.cluster.costs.NO_LOCATION` if a node may be there; ``location_index`` is node -> its index.
    """
    tables = [_score_by_dependency(peer, locations, location_index, costs.compare_with_limit) for peer in dependencies]
    tables += [_score_by_dependent(peer, locations, location_index, costs) for peer in dependents]
    peer_scores_by_location = zip(*(table.by_location for table in tables), strict=True)
    by_location = [NodeScore(*map(sum, zip(*scores, strict=True))) for scores in peer_scores_by_location]
    by_node: dict[str, NodeScore] = {}
    for table in tables:
        for node, score in table.by_node.items():
            index = location_index[node]
            totals = by_node.get(node) or by_location[index]
            # The totals contain the score of the location by this peer.
            values = zip(totals, score, table.by_location[index], strict=True)
            by_node[node] = NodeScore(*(total + by_peer - replaced for total, by_peer, replaced in values))
    return ScoreTable("", by_location or [NodeScore()] * len(locations), by_node)


_LimitRule = Callable[[Location, Location, int], tuple[LimitResult, int]]
"""(candidate, location of a peer's pod, maxNetworkCost) -> (result, cost), see `CostTable.compare_with_limit`."""


def _score_by_dependency(
    peer: PeerWorkload, locations: Sequence[Location], location_index: Mapping[str, int], limit_rule: _LimitRule
) -> ScoreTable:
    """The scores by one dependency, by the replicas that answer the pod's calls. Costs and limits are those of ``limit_rule``."""
    index_of = {node: location_index[node] for node in peer.pods_by_node}
    endpoints = Endpoints(peer.routing, index_of, lambda index: locations[index].zone)
    replicas_at: Counter[int] = Counter()
    for node, count in peer.pods_by_node.items():
        replicas_at[index_of[node]] += count
    replica_count = replicas_at.total()
    replicas = [(locations[index], count) for index, count in replicas_at.items()]
    by_all_replicas = [_score_by_replicas(candidate, replicas, peer.max_cost, limit_rule) for candidate in locations]

    @cache
    def score_node(routing: Routing, index: int, on_node: int) -> NodeScore:
        match routing:
            case Routing.NODE:
                return NodeScore(on_node, 0, replica_count * SAME_HOST_COST)
            case Routing.ZONE:
                # The cost is scaled to all replicas, so that a dependency weighs the same with each routing.
                saved_cost = round(replica_count * on_node / replicas_at[index] * (SAME_ZONE_COST - SAME_HOST_COST))
                return NodeScore(replicas_at[index], 0, replica_count * SAME_ZONE_COST - saved_cost)
        satisfied, violated, cost, unknown = by_all_replicas[index]
        # `by_all_replicas` counts the node's own replicas as if they were on another node of its location.
        result, other_node_cost = limit_rule(locations[index], locations[index], peer.max_cost)
        if result == "violated":
            satisfied, violated = satisfied + on_node, violated - on_node
        return NodeScore(satisfied, violated, cost - on_node * (other_node_cost - SAME_HOST_COST), unknown)

    by_location = [score_node(endpoints.routing_from("", index), index, 0) for index in range(len(locations))]
    by_node = {
        node: score_node(endpoints.routing_from(node, index), index, peer.pods_by_node[node])
        for node, index in index_of.items()
    }
    return ScoreTable("", by_location, by_node)


def _score_by_replicas(
    candidate: Location, replicas: Iterable[tuple[Location, int]], max_cost: int, limit_rule: _LimitRule
) -> NodeScore:
    """The score of a node without replicas if any replica may answer, by locations and numbers of replicas."""
    satisfied = violated = total_cost = unknown = 0
    for location, count in replicas:
        result, cost = limit_rule(candidate, location, max_cost)
        total_cost += count * cost
        if result == "satisfied":
            satisfied += count
        elif result == "violated":
            violated += count
        else:
            unknown += count
    return NodeScore(satisfied, violated, total_cost, unknown)


def _score_by_dependent(
    peer: PeerWorkload, locations: Sequence[Location], location_index: Mapping[str, int], costs: CostTable
) -> ScoreTable:
    """The scores by one dependent: only the costs of calls from its pods."""

    def limit_rule(candidate: Location, caller: Location, max_cost: int) -> tuple[LimitResult, int]:
        return costs.compare_with_limit(caller, candidate, max_cost)

    table = _score_by_dependency(peer._replace(routing=Routing.ANY), locations, location_index, limit_rule)
    by_location = [NodeScore(0, 0, score.cost, score.unknown) for score in table.by_location]
    by_node = {node: NodeScore(0, 0, score.cost, score.unknown) for node, score in table.by_node.items()}
    return ScoreTable("", by_location, by_node)


def normalise_cost(cost: int, low: int, high: int) -> int:
    """The score of a cost: 100 for the lowest cost of the scored nodes, 0 for the highest; if all are equal, 100, or 0 if they are 0."""
    if low == high:
        return 0 if high == 0 else MAX_SCORE
    return MAX_SCORE - MAX_SCORE * (cost - low) // (high - low)


def failed_filter_message(node: str, node_score: NodeScore) -> str:
    """Why the filter refuses a node, in upstream's words."""
    counts = f"Satisfied: {node_score.satisfied} Violated: {node_score.violated}"
    return f"Node {node} does not meet several network requirements from Workload dependencies: {counts}"


def raw_allocatable_score(allocatable: Mapping[str, int], args: AllocatableArgs) -> int:
    """NodeResourcesAllocatable's score (docs/contracts.md, section 5): weighted mean of allocatable, negative in mode ``Least``.

    The score depends on the size of a node, not on its free resources. An absent resource counts as 0.
    """
    sign = -1 if args.mode == "Least" else 1
    weights = sum(resource.weight for resource in args.resources)
    total = sum(sign * allocatable.get(resource.name, 0) * resource.weight for resource in args.resources)
    # Division in Go truncates toward zero, in Python it floors.
    return total // weights if total >= 0 else -(-total // weights)


def normalise_allocatable_score(value: int, low: int, high: int) -> int:
    """The score of a raw score: 0 for the lowest raw score of the scored nodes, 100 for the highest; 0 if all are equal."""
    return (value - low) * MAX_SCORE // (high - low) if high > low else 0
