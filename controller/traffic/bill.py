"""Computes the price of traffic by dependency, AppGroup and pair of zones. No I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import product

import msgspec

from controller.cluster.costs import Location
from controller.cluster.membership import Membership
from controller.traffic.graph import ObservedDependency, TrafficGraph
from controller.traffic.prices import Distance, PriceTable, distance_between
from controller.traffic.workloads import Workloads

LocationPair = tuple[Location, Location]
"""The client's location, and the server's."""


class DependencyPrice(msgspec.Struct, frozen=True, rename="camel"):
    """Traffic of one dependency, and its price.

    Attributes:
        client, server: as ``namespace/name``.
        group: the AppGroup of the client, as ``namespace/name``; empty if it has none.
        bytes_per_s: requests and responses.
        crossing_bytes_per_s: the part of ``bytes_per_s`` between zones.
        monthly_price: None without prices.
        has_all_zones: whether the zones of all bytes are known; see `rates_between_locations`.
    """

    client: str
    server: str
    group: str
    bytes_per_s: float
    crossing_bytes_per_s: float
    monthly_price: float | None
    has_all_zones: bool


class ZonePairPrice(msgspec.Struct, frozen=True, rename="camel"):
    """Requests and responses of calls between a client zone and a server zone, which may be equal, and their price."""

    client_zone: str
    server_zone: str
    distance: Distance
    bytes_per_s: float
    monthly_price: float | None


class TrafficBill(msgspec.Struct, frozen=True, rename="camel"):
    """Traffic and prices of all dependencies and pairs of zones.

    Attributes:
        currency, price_source: of the price table; empty without prices.
        monthly_price: of all dependencies; None without prices.
        bytes_per_s, crossing_bytes_per_s: sums over the dependencies.
        dependencies, zone_pairs: highest price first, then most traffic.
        monthly_price_by_group: by the client's AppGroup, highest first; "" for clients without one. Empty without prices.
    """

    currency: str
    price_source: str
    monthly_price: float | None
    bytes_per_s: float
    crossing_bytes_per_s: float
    dependencies: tuple[DependencyPrice, ...] = ()
    zone_pairs: tuple[ZonePairPrice, ...] = ()
    monthly_price_by_group: Mapping[str, float] = {}


def rates_between_locations(dependency: ObservedDependency, workloads: Workloads) -> dict[LocationPair, float]:
    """Locations of client and server -> bytes per second of a dependency.

    Bytes without zones are spread evenly over all pairs of placed replicas, as by a Service without `trafficDistribution`. They are
    omitted, and so have no price, if one side has no placed replica.
    """
    rates: dict[LocationPair, float] = defaultdict(float)
    for (client_zone, server_zone), bytes_per_s in dependency.zones.items():
        rates[workloads.location_of(client_zone), workloads.location_of(server_zone)] += bytes_per_s
    if dependency.zoneless_bytes_per_s:
        ends = dependency.client, dependency.server
        clients, servers = (workloads.location_counts.get(end, Counter()) for end in ends)
        pair_count = clients.total() * servers.total()
        for (client, client_count), (server, server_count) in product(clients.items(), servers.items()):
            share = client_count * server_count / pair_count
            rates[client, server] += share * dependency.zoneless_bytes_per_s
    return rates


def compute_bill(
    graph: TrafficGraph, workloads: Workloads, prices: PriceTable | None, group_by_workload: Mapping[str, str]
) -> TrafficBill:
    """Price the traffic of a graph; ``group_by_workload`` has workloads and their AppGroups as ``namespace/name``."""
    dependencies: list[DependencyPrice] = []
    rates: dict[LocationPair, float] = defaultdict(float)
    price_by_group: dict[str, float] = defaultdict(float)
    for dependency in graph.dependencies:
        crossing = price = 0.0
        for (client, server), bytes_per_s in rates_between_locations(dependency, workloads).items():
            rates[client, server] += bytes_per_s
            crossing += bytes_per_s if client != server else 0.0  # Unknown zones count as one.
            price += prices.monthly_price(bytes_per_s, client, server) if prices else 0.0
        client_key, server_key = dependency.client.key, dependency.server.key
        group = group_by_workload.get(client_key, "")
        if prices:
            price_by_group[group] += price
        dependencies.append(
            DependencyPrice(
                client=client_key,
                server=server_key,
                group=group,
                bytes_per_s=dependency.bytes_per_s,
                crossing_bytes_per_s=crossing,
                monthly_price=price if prices else None,
                has_all_zones=not dependency.zoneless_bytes_per_s,
            )
        )
    return TrafficBill(
        currency=prices.currency if prices else "",
        price_source=prices.source if prices else "",
        monthly_price=sum(d.monthly_price or 0.0 for d in dependencies) if prices else None,
        bytes_per_s=graph.bytes_per_s,
        crossing_bytes_per_s=sum(d.crossing_bytes_per_s for d in dependencies),
        dependencies=tuple(sorted(dependencies, key=lambda d: (*_price_order(d), d.client, d.server))),
        zone_pairs=_price_zone_pairs(rates, prices),
        monthly_price_by_group=dict(sorted(price_by_group.items(), key=lambda item: -item[1])),
    )


def _price_zone_pairs(rates: Mapping[LocationPair, float], prices: PriceTable | None) -> tuple[ZonePairPrice, ...]:
    pairs: list[ZonePairPrice] = []
    for (client, server), bytes_per_s in rates.items():
        price = prices.monthly_price(bytes_per_s, client, server) if prices else None
        distance = distance_between(client, server)
        pairs.append(ZonePairPrice(client.zone, server.zone, distance, bytes_per_s, price))
    return tuple(sorted(pairs, key=lambda p: (*_price_order(p), p.client_zone, p.server_zone)))


def _price_order(item: DependencyPrice | ZonePairPrice) -> tuple[float, float]:
    """Sort key: highest price first, then most traffic."""
    return -(item.monthly_price or 0.0), -item.bytes_per_s


def map_workloads_to_groups(membership: Membership) -> dict[str, str]:
    """``namespace/workload`` -> ``namespace/AppGroup`` that its pods belong to; groups of its own namespace take precedence."""
    same_namespace: dict[str, str] = {}
    other_namespaces: dict[str, str] = {}
    for key, group in membership.groups.items():
        group_namespace = group.metadata.namespace
        for item in group.spec.workloads or ():
            namespace = item.workload.namespace or group_namespace
            if membership.group_key_of(namespace, group.metadata.name) == key:
                groups = same_namespace if namespace == group_namespace else other_namespaces
                groups.setdefault(f"{namespace}/{item.workload.name}", key)
    return other_namespaces | same_namespace
