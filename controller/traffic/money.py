"""Computes the cost of traffic by dependency, AppGroup and pair of zones. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec

from controller.cluster.costs import Location
from controller.traffic.graph import ObservedDependency, TrafficGraph
from controller.traffic.prices import Distance, PriceTable, distance_between
from controller.traffic.workloads import Workloads


class DependencyCost(msgspec.Struct, frozen=True, rename="camel"):
    """Traffic and cost of one dependency.

    Attributes:
        client, server: as ``namespace/name``.
        group: the AppGroup of the client, as ``namespace/name``; empty without one.
        bytes_per_s: requests and responses.
        crossing_bytes_per_s: the part of ``bytes_per_s`` between zones.
        month: cost of a month; None without prices.
        measured: False if the zones of some bytes are unknown; those are spread over all pairs of placed replicas.
    """

    client: str
    server: str
    group: str
    bytes_per_s: float
    crossing_bytes_per_s: float
    month: float | None
    measured: bool


class ZonePairCost(msgspec.Struct, frozen=True, rename="camel"):
    """Requests and responses of calls from clients in one zone to servers in another (or the same), and their cost in a month."""

    client_zone: str
    server_zone: str
    reach: Distance
    bytes_per_s: float
    month: float | None


class TrafficCost(msgspec.Struct, frozen=True, rename="camel"):
    """Traffic and cost of all dependencies and zone pairs, greatest first.

    Attributes:
        currency, source: of the price table; empty without one.
        month: cost of all dependencies in a month; None without prices.
        bytes_per_s, crossing_bytes_per_s: sums over the dependencies.
        groups: AppGroup of the client -> cost of a month; "" for workloads without one.
    """

    currency: str
    source: str
    month: float | None
    bytes_per_s: float
    crossing_bytes_per_s: float
    dependencies: tuple[DependencyCost, ...] = ()
    zone_pairs: tuple[ZonePairCost, ...] = ()
    groups: Mapping[str, float] = {}


def spread_over_zones(
    dependency: ObservedDependency, workloads: Workloads
) -> Iterator[tuple[Location, Location, float]]:
    """A dependency's bytes per second by the client's and the server's location.

    Bytes without zones are spread evenly over all pairs of replicas, as by a Service without `trafficDistribution`. They are
    omitted if one side has no placed replica.
    """
    for (client_zone, server_zone), rate in sorted(dependency.zones.items()):
        yield workloads.location_of(client_zone), workloads.location_of(server_zone), rate
    zoneless = dependency.zoneless_bytes_per_s
    clients, servers = workloads.locations.get(dependency.client), workloads.locations.get(dependency.server)
    if not zoneless or not clients or not servers:
        return
    pairs = clients.total() * servers.total()
    for client, client_replicas in sorted(clients.items()):
        for server, server_replicas in sorted(servers.items()):
            yield client, server, zoneless * client_replicas * server_replicas / pairs


def compute_cost(
    graph: TrafficGraph, workloads: Workloads, prices: PriceTable | None, groups: Mapping[str, str]
) -> TrafficCost:
    """The cost of a graph; ``groups`` maps workloads to their AppGroups, both as ``namespace/name``."""

    def month_of(rate: float, client: Location, server: Location) -> float | None:
        return prices.per_month(rate, client, server) if prices else None

    costs: list[DependencyCost] = []
    pairs: dict[tuple[Location, Location], float] = defaultdict(float)
    by_group: dict[str, float] = defaultdict(float)
    for dependency in graph.dependencies:
        crossing = month = 0.0
        for client, server, rate in spread_over_zones(dependency, workloads):
            pairs[client, server] += rate
            crossing += rate if client != server else 0.0
            month += month_of(rate, client, server) or 0.0
        client_key, server_key = dependency.client.key, dependency.server.key
        group = groups.get(client_key, "")
        if prices is not None:
            by_group[group] += month
        total, measured = dependency.bytes_per_s, not dependency.zoneless_bytes_per_s
        costs.append(
            DependencyCost(client_key, server_key, group, total, crossing, month if prices else None, measured)
        )
    zone_pairs = [
        ZonePairCost(client.zone, server.zone, distance_between(client, server), rate, month_of(rate, client, server))
        for (client, server), rate in pairs.items()
    ]
    zone_pairs.sort(key=lambda p: (-(p.month or 0.0), -p.bytes_per_s, p.client_zone, p.server_zone))
    return TrafficCost(
        currency=prices.currency if prices else "",
        source=prices.source if prices else "",
        month=sum(cost.month or 0.0 for cost in costs) if prices else None,
        bytes_per_s=graph.bytes_per_s,
        crossing_bytes_per_s=sum(cost.crossing_bytes_per_s for cost in costs),
        dependencies=tuple(sorted(costs, key=lambda c: (-(c.month or 0.0), -c.bytes_per_s, c.client, c.server))),
        zone_pairs=tuple(zone_pairs),
        groups=dict(sorted(by_group.items(), key=lambda item: -item[1])),
    )
