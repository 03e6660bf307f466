"""Look-up of path costs, and the choice of NetworkTopology and weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.crds import NETPERF_COSTS, CostInfo, NetworkTopology, WeightInfo
from controller.cluster.index import Index
from kubekit.wire import Node
from netperf.contract import REGION_LABEL, ZONE_LABEL
from netperf.latencies import LATENCY_ANNOTATION, Latencies, ZonePair, decode_latencies

SAME_HOST_COST, SAME_ZONE_COST, UNKNOWN_COST = 0, 1, 100
"""Costs of paths that have no entry in a weight (docs/contracts.md, section 4)."""
LimitResult = Literal["satisfied", "violated", "unknown"]
"""Whether a cost is within maxNetworkCost; ``unknown`` if the cost is."""


class Location(NamedTuple):
    """Region and zone from a node's labels; either may be empty. `netperf.sample.NodeLocation` has the node's name too."""

    region: str = ""
    zone: str = ""


NO_LOCATION = Location()
"""Location of a node that has neither label."""


def location_of(node: Node) -> Location:
    """The location of a node."""
    return Location(node.metadata.label(REGION_LABEL), node.metadata.label(ZONE_LABEL))


def locations_of(nodes: Iterable[Node]) -> dict[str, Location]:
    """The locations of nodes, by node name."""
    return {node.metadata.name: location_of(node) for node in nodes}


def has_no_zone_labels(locations: Iterable[Location]) -> bool:
    """Whether no node has a zone label; all nodes then count as one zone, except in parity with upstream."""
    return not any(location.zone for location in locations)


def count_by_location(counts_by_node: Mapping[str, int], locations: Mapping[str, Location]) -> Counter[Location]:
    """Add counts by node up to counts by location; nodes without a location, which are deleted, do not count."""
    counts: Counter[Location] = Counter()
    for node, count in counts_by_node.items():
        if node in locations:
            counts[locations[node]] += count
    return counts


def cost_entries_of(weight: WeightInfo | None, topology_key: str = ZONE_LABEL) -> dict[ZonePair, CostInfo]:
    """Entries of a weight by directed pair of zones (or of regions, by ``topology_key``). The first entry of a pair counts."""
    entries: dict[ZonePair, CostInfo] = {}
    for topology_info in weight.topology_list if weight is not None else ():
        if topology_info.topology_key == topology_key:
            for origin in topology_info.origin_list:
                for entry in origin.cost_list:
                    entries.setdefault((origin.origin, entry.destination), entry)
    return entries


class CostTable:
    """Look-up of costs in one weight of a NetworkTopology; without a weight, no cost is known.

    ``latencies`` are the round trips from which the costs were computed; None for a weight that netaware did not write. A peer's node with
    neither zone nor region violates every limit, unless ``is_one_zone``: no node has a zone label (`has_no_zone_labels`).
    """

    def __init__(
        self, weight: WeightInfo | None = None, latencies: Latencies | None = None, *, is_one_zone: bool = False
    ) -> None:
        self.is_one_zone = is_one_zone
        self._cost_by_zone_pair, self._cost_by_region_pair = (
            {pair: entry.network_cost for pair, entry in cost_entries_of(weight, topology_key).items()}
            for topology_key in (ZONE_LABEL, REGION_LABEL)
        )
        self._latencies = latencies

    def cost(self, origin: Location, destination: Location) -> int | None:
        """Cost between two different locations: between their zones if they share a region, else between regions. None if unknown."""
        if origin.region == destination.region:
            return self._cost_by_zone_pair.get((origin.zone, destination.zone))
        return self._cost_by_region_pair.get((origin.region, destination.region))

    def latency_us(self, origin: Location, destination: Location) -> float | None:
        """Measured round trip between two zones in microseconds; None if unknown."""
        if self._latencies is None or not origin.zone or not destination.zone:
            return None
        return self._latencies.latency_us(origin.zone, destination.zone)

    def compare_with_limit(self, candidate: Location, peer: Location, max_cost: int) -> tuple[LimitResult, int]:
        """Whether the cost between two different nodes is within a limit, and the `effective_cost`.

        The rule is NetworkOverhead's (docs/contracts.md, section 4).
        """
        if peer == NO_LOCATION and not self.is_one_zone:
            return "violated", UNKNOWN_COST
        if candidate == peer:
            return "satisfied", SAME_ZONE_COST
        cost = self.cost(candidate, peer)
        if cost is None:
            return "unknown", UNKNOWN_COST
        return ("satisfied" if cost <= max_cost else "violated"), cost

    def effective_cost(self, origin: Location, destination: Location) -> int:
        """The cost that counts between two different nodes: `UNKNOWN_COST` if it is unknown."""
        return self.compare_with_limit(origin, destination, 0)[1]

    def total_cost(
        self, callers: Mapping[str, int], callees: Mapping[str, int], locations: Mapping[str, Location]
    ) -> int:
        """Sum of the costs of all pairs of a caller and a callee, given as node -> number of pods on it.

        Pods on nodes without a location, which are deleted, do not count.
        """
        callees_by_location = count_by_location(callees, locations)
        total = 0
        for origin, caller_count in count_by_location(callers, locations).items():
            for destination, callee_count in callees_by_location.items():
                total += caller_count * callee_count * self.effective_cost(origin, destination)
        # A sum by location is faster than by node, but counts pairs on one node as pairs in one zone: correct these.
        for node in callers.keys() & callees.keys() & locations.keys():
            zone_cost = self.effective_cost(locations[node], locations[node])
            total += callers[node] * callees[node] * (SAME_HOST_COST - zone_cost)
        return total


def choose_topology(
    topologies: Mapping[str, NetworkTopology],
    args: NetworkOverheadArgs,
    *,
    netaware_namespace: str,
    namespace: str = "",
) -> NetworkTopology | None:
    """The NetworkTopology whose costs the groups of a namespace use; None if there is none.

    All ``topologies`` are given by ``namespace/name``. `namespaces`, `search_everywhere` and `network_topology_name` of ``args`` decide
    where it is searched. ``namespace`` is empty for the cluster as a whole.
    """
    namespaces = args.namespaces
    if args.search_everywhere:
        namespaces = (namespace, *namespaces, netaware_namespace)
    for searched_namespace in namespaces:
        topology = topologies.get(f"{searched_namespace}/{args.network_topology_name}")
        if topology is not None:
            return topology
    return next(iter(topologies.values())) if args.search_everywhere and len(topologies) == 1 else None


def choose_weight(topology: NetworkTopology | None, args: NetworkOverheadArgs) -> WeightInfo | None:
    """The weight whose costs are used: the requested weight, else the fallback; None if neither has entries."""
    for name in (args.weights_name, args.fallback_weights_name):
        weight = topology.weight(name) if topology is not None and name else None
        if weight is not None and weight.topology_list:
            return weight
    return None


class Costs(msgspec.Struct, frozen=True):
    """The costs that a namespace's groups use.

    Attributes:
        network_topology: ``namespace/name`` of the NetworkTopology; empty without one.
        weight_name: name of the weight; empty if the NetworkTopology has none of the requested names.
        version: UID and resourceVersion of the NetworkTopology; empty without one.
        latency_error: why the latencies could not be read; empty if they could.
    """

    table: CostTable
    network_topology: str = ""
    weight_name: str = ""
    version: str = ""
    latency_error: str = ""


class CostIndex(Index):
    """The costs for the groups of each namespace, updated by watch events.

    ``args`` decide which NetworkTopology and weight are used.
    """

    def __init__(self, args: NetworkOverheadArgs, netaware_namespace: str) -> None:
        self._args, self._netaware_namespace = args, netaware_namespace
        self._is_one_zone = False
        self._topologies: dict[str, NetworkTopology] = {}
        self._costs_by_topology: dict[str, Costs] = {}

    def on_change(self, key: str, old: NetworkTopology | None, new: NetworkTopology | None) -> bool:
        """Update a NetworkTopology; returns whether costs may have changed."""
        if new is None:
            self._topologies.pop(key, None)
        else:
            self._topologies[key] = new
        if are_costs_unchanged(old, new):
            return False
        self._costs_by_topology.pop(key, None)
        return True

    def on_nodes_change(self, locations: Iterable[Location]) -> None:
        """Update the locations of all nodes; not called in upstream parity, where nodes without zone labels are never one zone."""
        is_one_zone = has_no_zone_labels(locations)
        if is_one_zone != self._is_one_zone:
            self._is_one_zone = is_one_zone
            self._costs_by_topology.clear()

    def for_namespace(self, namespace: str) -> Costs:
        """The costs that the groups of a namespace use; namespaces with the same NetworkTopology share them."""
        topology = choose_topology(
            self._topologies, self._args, netaware_namespace=self._netaware_namespace, namespace=namespace
        )
        key = topology.metadata.key if topology is not None else ""
        if key not in self._costs_by_topology:
            self._costs_by_topology[key] = self._build_costs(topology)
        return self._costs_by_topology[key]

    def _build_costs(self, topology: NetworkTopology | None) -> Costs:
        if topology is None:
            return Costs(CostTable(is_one_zone=self._is_one_zone))
        meta, weight = topology.metadata, choose_weight(topology, self._args)
        weight_name = weight.name if weight is not None else ""
        # Only NetperfCosts is computed from the latencies in the annotation.
        is_measured = weight_name == NETPERF_COSTS
        latencies = decode_latencies(meta.annotation(LATENCY_ANNOTATION)) if is_measured else None
        table = CostTable(weight, latencies, is_one_zone=self._is_one_zone)
        latency_error = latencies.problem if latencies is not None else ""
        return Costs(table, meta.key, weight_name, f"{meta.uid}/{meta.resource_version}", latency_error)


def are_costs_unchanged(old: NetworkTopology | None, new: NetworkTopology | None) -> bool:
    """Whether two versions of a NetworkTopology have the same costs, as after a change of the status."""
    if old is None or new is None:
        return False
    has_same_latencies = old.metadata.annotation(LATENCY_ANNOTATION) == new.metadata.annotation(LATENCY_ANNOTATION)
    return has_same_latencies and old.spec.weights == new.spec.weights
