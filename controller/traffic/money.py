"""Prices traffic: per dependency, group and pair of zones. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec

from controller.cluster.costs import Location
from controller.traffic.graph import ObservedDependency, TrafficGraph
from controller.traffic.prices import PriceTable, Reach, reach_of
from controller.traffic.workloads import Workloads


class Bill(msgspec.Struct, frozen=True):
    """Traffic and price of one dependency.

    Attributes:
        client, server: as ``namespace/name``.
        group: the AppGroup of the client, as ``namespace/name``; empty without one.
        bytes_per_s: all of it; ``crossing_bytes_per_s`` the part that leaves its zone.
        month: money a month; None where no price is known.
        measured: whether the zones of all bytes were measured; others are shared out as if every replica called every replica.
    """

    client: str
    server: str
    group: str
    bytes_per_s: float
    crossing_bytes_per_s: float
    month: float | None
    measured: bool


class ZonePairBill(msgspec.Struct, frozen=True):
    """Bytes from zone to zone, both ways of calls made that way, and their price."""

    client_zone: str
    server_zone: str
    reach: Reach
    bytes_per_s: float
    month: float | None


class Money(msgspec.Struct, frozen=True):
    """The whole bill, greatest first.

    Attributes:
        currency, source: of the price table; empty without one.
        groups: price a month by AppGroup.
        month: all together; None without prices.
    """

    currency: str
    source: str
    month: float | None
    bytes_per_s: float
    crossing_bytes_per_s: float
    dependencies: tuple[Bill, ...] = ()
    zone_pairs: tuple[ZonePairBill, ...] = ()
    groups: Mapping[str, float] = {}


def spread_over_zones(
    dependency: ObservedDependency, workloads: Workloads
) -> Iterator[tuple[Location, Location, float]]:
    """A dependency's bytes per second by the client's and the server's location.

    For bytes without zones, each client replica is assumed to call each server replica alike, as with a Service without
    `trafficDistribution`.
    """
    for (client_zone, server_zone), rate in sorted(dependency.zones.items()):
        yield workloads.location_of(client_zone), workloads.location_of(server_zone), rate
    unplaced = dependency.zoneless_bytes_per_s
    if not unplaced:
        return
    clients, servers = workloads.locations.get(dependency.client), workloads.locations.get(dependency.server)
    if not clients or not servers:
        return
    pairs = clients.total() * servers.total()
    for client, calling in sorted(clients.items()):
        for server, answering in sorted(servers.items()):
            yield client, server, unplaced * calling * answering / pairs


def bill_of(graph: TrafficGraph, workloads: Workloads, prices: PriceTable | None, groups: Mapping[str, str]) -> Money:
    """The bill of a graph; ``groups`` maps a workload's ``namespace/name`` to its AppGroup's."""
    bills: list[Bill] = []
    pairs: dict[tuple[Location, Location], float] = defaultdict(float)
    by_group: dict[str, float] = defaultdict(float)
    for dependency in graph.dependencies:
        crossing = month = 0.0
        for client, server, rate in spread_over_zones(dependency, workloads):
            pairs[client, server] += rate
            crossing += rate if client != server else 0.0
            month += prices.per_month(rate, client, server) if prices else 0.0
        client_key, server_key = dependency.client.key, dependency.server.key
        group = groups.get(client_key, "")
        if prices is not None:
            by_group[group] += month
        total, measured = dependency.bytes_per_s, not dependency.zoneless_bytes_per_s
        bills.append(Bill(client_key, server_key, group, total, crossing, month if prices else None, measured))
    zone_pairs = [
        ZonePairBill(
            client.zone,
            server.zone,
            reach_of(client, server),
            rate,
            prices.per_month(rate, client, server) if prices else None,
        )
        for (client, server), rate in pairs.items()
    ]
    return Money(
        currency=prices.currency if prices else "",
        source=prices.source if prices else "",
        month=sum(b.month or 0.0 for b in bills) if prices else None,
        bytes_per_s=graph.bytes_per_s,
        crossing_bytes_per_s=sum(b.crossing_bytes_per_s for b in bills),
        dependencies=tuple(sorted(bills, key=lambda b: (-(b.month or 0.0), -b.bytes_per_s, b.client, b.server))),
        zone_pairs=tuple(
            sorted(zone_pairs, key=lambda p: (-(p.month or 0.0), -p.bytes_per_s, p.client_zone, p.server_zone))
        ),
        groups=dict(sorted(by_group.items(), key=lambda item: -item[1])),
    )
