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

LimitCheck = Literal["satisfied", "violated", "unknown"]
"""How a cost compares with maxNetworkCost."""


class Location(NamedTuple):
    """Region and zone of a node, from its labels; either may be empty."""

    region: str = ""
    zone: str = ""


NO_LOCATION = Location()
"""Location of a node with neither label."""


def location_of(node: Node) -> Location:
    """A node's location, from its labels."""
    return Location(node.metadata.label(REGION_LABEL), node.metadata.label(ZONE_LABEL))


def locations_of(nodes: Iterable[Node]) -> dict[str, Location]:
    """Node name -> location."""
    return {node.metadata.name: location_of(node) for node in nodes}


def has_no_zone_labels(locations: Iterable[Location]) -> bool:
    """Whether no node has a zone label, so that all nodes form one zone. Not used in parity with upstream."""
    return not any(location.zone for location in locations)


def count_by_location(nodes: Mapping[str, int], locations: Mapping[str, Location]) -> Counter[Location]:
    """Sum counts of nodes by location, without deleted nodes."""
    counts: Counter[Location] = Counter()
    for node, count in nodes.items():
        if node in locations:
            counts[locations[node]] += count
    return counts


def cost_entries_of(weight: WeightInfo | None, level: str = ZONE_LABEL) -> dict[ZonePair, CostInfo]:
    """Entries of a weight by directed pair of zones (or of regions). A pair's first entry is used."""
    entries: dict[ZonePair, CostInfo] = {}
    for topology in weight.topology_list if weight is not None else ():
        if topology.topology_key == level:
            for origin in topology.origin_list:
                for entry in origin.cost_list:
                    entries.setdefault((origin.origin, entry.destination), entry)
    return entries


class CostTable:
    """Look-up table of one weight of a NetworkTopology. Without a weight it has no costs.

    Args:
        weight: the weight.
        latencies: the round trips that its costs come from; None for a weight that netaware did not write.
        is_one_zone: see `has_no_zone_labels`; else a node without labels violates every limit, as in upstream.
    """

    def __init__(
        self, weight: WeightInfo | None = None, latencies: Latencies | None = None, *, is_one_zone: bool = False
    ) -> None:
        self.is_one_zone = is_one_zone
        self._zones, self._regions = (
            {pair: entry.network_cost for pair, entry in cost_entries_of(weight, level).items()}
            for level in (ZONE_LABEL, REGION_LABEL)
        )
        self._latencies = latencies

    def cost(self, origin: Location, destination: Location) -> int | None:
        """NetworkCost of a pair of different locations: by zones inside a region, by regions otherwise. None if unknown."""
        if origin.region == destination.region:
            return self._zones.get((origin.zone, destination.zone))
        return self._regions.get((origin.region, destination.region))

    def latency_us(self, origin: Location, destination: Location) -> float | None:
        """Measured round trip between two zones in microseconds; None if unknown."""
        if self._latencies is None or not origin.zone or not destination.zone:
            return None
        return self._latencies.latency_us(origin.zone, destination.zone)

    def check_limit(self, candidate: Location, peer: Location, max_cost: int) -> tuple[LimitCheck, int]:
        """Compare the cost between two different nodes with a limit, as NetworkOverhead does (docs/contracts.md, section 4).

        Returns the result and the cost to count.
        """
        if peer == NO_LOCATION and not self.is_one_zone:
            return "violated", UNKNOWN_COST
        if candidate == peer:
            return "satisfied", SAME_ZONE_COST
        cost = self.cost(candidate, peer)
        if cost is None:
            return "unknown", UNKNOWN_COST
        return ("satisfied" if cost <= max_cost else "violated"), cost

    def total_cost(
        self, callers: Mapping[str, int], callees: Mapping[str, int], locations: Mapping[str, Location]
    ) -> int:
        """Cost of every pair of a caller and a callee together.

        Args:
            callers: node -> number of callers there.
            callees: node -> number of callees there.
            locations: node -> location; pairs with other nodes do not count.
        """
        total, by_location = 0, count_by_location(callees, locations)
        for origin, count in count_by_location(callers, locations).items():
            for destination, others in by_location.items():
                total += count * others * self.check_limit(origin, destination, 0)[1]
        # The sum by location is faster than by node, but counts pairs on one node as pairs in one zone: correct them.
        for node in callers.keys() & callees.keys() & locations.keys():
            cost = self.check_limit(locations[node], locations[node], 0)[1]
            total += callers[node] * callees[node] * (SAME_HOST_COST - cost)
        return total


def choose_topology(
    topologies: Mapping[str, NetworkTopology],
    rules: NetworkOverheadArgs,
    *,
    netaware_namespace: str,
    namespace: str = "",
) -> NetworkTopology | None:
    """The NetworkTopology whose costs the groups of a namespace use; None without one.

    Args:
        topologies: all of them, by ``namespace/name``.
        rules: namespaces and name to look for.
        netaware_namespace: where netaware is installed.
        namespace: of the groups; empty for the cluster as a whole.
    """
    everywhere = rules.search_everywhere
    for searched in (namespace, *rules.namespaces, netaware_namespace) if everywhere else rules.namespaces:
        topology = topologies.get(f"{searched}/{rules.network_topology_name}")
        if topology is not None:
            return topology
    return next(iter(topologies.values())) if everywhere and len(topologies) == 1 else None


def choose_weight(topology: NetworkTopology | None, rules: NetworkOverheadArgs) -> WeightInfo | None:
    """The requested weight, else the fallback; None if neither has entries."""
    for name in (rules.weights_name, rules.fallback_weights_name):
        weight = topology.weight(name) if topology is not None and name else None
        if weight is not None and weight.topology_list:
            return weight
    return None


class Costs(msgspec.Struct, frozen=True):
    """The costs that a namespace's groups use.

    Attributes:
        table: look-up table.
        topology: key of the NetworkTopology; empty without one.
        weight: name of the weight; empty if the NetworkTopology has none of the requested names.
        version: UID and resourceVersion of the NetworkTopology.
        problem: why latencies could not be read; empty if they could.
    """

    table: CostTable
    topology: str = ""
    weight: str = ""
    version: str = ""
    problem: str = ""


class CostIndex(Index):
    """The costs for the groups of each namespace, updated by watch events.

    Args:
        rules: which NetworkTopology and weight to use.
        netaware_namespace: where netaware is installed.
        is_one_zone: see `has_no_zone_labels`.
    """

    def __init__(self, rules: NetworkOverheadArgs, netaware_namespace: str, *, is_one_zone: bool = False) -> None:
        self._rules, self._netaware_namespace, self._one_zone = rules, netaware_namespace, is_one_zone
        self._topologies: dict[str, NetworkTopology] = {}
        self._costs_by_topology: dict[str, Costs] = {}

    @classmethod
    def from_objects(
        cls,
        topologies: Iterable[NetworkTopology],
        rules: NetworkOverheadArgs,
        netaware_namespace: str,
        *,
        is_one_zone: bool,
    ) -> CostIndex:
        """Build from NetworkTopologies."""
        index = cls(rules, netaware_namespace, is_one_zone=is_one_zone)
        for topology in topologies:
            index.on_change(topology.metadata.key, None, topology)
        return index

    def on_change(self, key: str, old: NetworkTopology | None, new: NetworkTopology | None) -> bool:
        """Update a NetworkTopology; returns whether a cost may have changed."""
        if new is None:
            self._topologies.pop(key, None)
        else:
            self._topologies[key] = new
        if are_costs_unchanged(old, new):
            return False
        self._costs_by_topology.pop(key, None)
        return True

    def on_nodes_change(self, locations: Iterable[Location]) -> None:
        """Update the nodes' locations. Not used in parity with upstream."""
        is_one_zone = has_no_zone_labels(locations)
        if is_one_zone != self._one_zone:
            self._one_zone = is_one_zone
            self._costs_by_topology.clear()

    def for_namespace(self, namespace: str) -> Costs:
        """The costs that the groups of a namespace use; namespaces with the same NetworkTopology share a table."""
        topology = choose_topology(
            self._topologies, self._rules, netaware_namespace=self._netaware_namespace, namespace=namespace
        )
        key = topology.metadata.key if topology is not None else ""
        if key not in self._costs_by_topology:
            self._costs_by_topology[key] = self._costs_of(topology)
        return self._costs_by_topology[key]

    def _costs_of(self, topology: NetworkTopology | None) -> Costs:
        if topology is None:
            return Costs(CostTable(is_one_zone=self._one_zone))
        meta, weight = topology.metadata, choose_weight(topology, self._rules)
        name = weight.name if weight is not None else ""
        # Only NetperfCosts is computed from the latencies in the annotation.
        latencies = decode_latencies(meta.annotation(LATENCY_ANNOTATION)) if name == NETPERF_COSTS else None
        table = CostTable(weight, latencies, is_one_zone=self._one_zone)
        problem = latencies.problem if latencies is not None else ""
        return Costs(table, meta.key, name, f"{meta.uid}/{meta.resource_version}", problem)


def are_costs_unchanged(old: NetworkTopology | None, new: NetworkTopology | None) -> bool:
    """Whether two versions of a NetworkTopology have the same costs, for example after a change of the status."""
    if old is None or new is None:
        return False
    same_latencies = old.metadata.annotation(LATENCY_ANNOTATION) == new.metadata.annotation(LATENCY_ANNOTATION)
    return same_latencies and old.spec.weights == new.spec.weights
