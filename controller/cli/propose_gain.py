"""What a proposed AppGroup would gain: one plan of all its pods, against where they are today."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from controller.cli.session import Session
from controller.cli.shared import read_inputs
from controller.cli.simulate import simulate
from controller.cli.traffic_reading import Traffic
from controller.cluster.costs import CostTable, Location
from controller.cluster.resources import AppGroup
from controller.cluster.services import ServiceIndex
from controller.scheduler.placement.tables import latency_us
from controller.traffic.placed import CROSSING, ONE, GroupTraffic, Priced, kept_near, month_of, weighed
from controller.traffic.prices import PriceTable, per_month
from controller.traffic.proposals import Proposal
from controller.traffic.workloads import Place


class Gain(msgspec.Struct, frozen=True):
    """Of one proposal, with the traffic that was measured; ``then`` is one plan of all pods.

    Attributes:
        group: name of the AppGroup.
        crossing_now, crossing_then: bytes per second that leave their zone.
        call_now_us, call_then_us: round trip of a call in µs, the mean over all bytes between workloads that are placed; within a
            zone 100 µs where nobody measured it.
        month_now, month_then: money a month; null without prices.
        unplaced: pods that find no room; they count nowhere.
        places_now, places_then: workload -> zone -> pods.
    """

    group: str
    crossing_now: float
    crossing_then: float
    call_now_us: float = 0.0
    call_then_us: float = 0.0
    month_now: float | None = None
    month_then: float | None = None
    currency: str = ""
    unplaced: int = 0
    places_then: Mapping[str, Mapping[str, int]] = {}
    places_now: Mapping[str, Mapping[str, int]] = {}


async def gain_of(
    session: Session,
    proposal: Proposal,
    traffic: Traffic,
    prices: PriceTable | None,
    existing: AppGroup | None = None,
) -> Gain:
    """Plan the group for the cluster as it is; ``existing`` is the group as it stands.

    Today's zones are those that were measured: connections stay with the replica that they found, so that two replicas need
    not get the same. Where a source tells no zones, and for the plan, calls go as the Services say.

    Raises:
        KubekitError: no answer.
    """
    group = msgspec.convert(proposal.manifest, AppGroup)
    if existing is not None:
        # Applying leaves them as they are, and they say how its pods are spread and judged.
        annotations = (existing.metadata.annotations or {}) | (group.metadata.annotations or {})
        metadata = msgspec.structs.replace(group.metadata, annotations=annotations)
        group = msgspec.structs.replace(group, metadata=metadata)
    namespace = proposal.namespace
    named = {(item.workload.kind, item.workload.name): item.workload for item in group.spec.workloads or ()}
    templates = {(c.kind, c.metadata.name): c for c in await session.controllers(namespace)}
    known = {ref.selector: templates[which] for which, ref in named.items() if which in templates}
    own = {f"{namespace}/{kind}/{name}" for kind, name in named}
    inputs, _ = await read_inputs(session, traffic.snapshot)
    inputs = inputs._replace(prices=prices or inputs.prices)
    inputs.node_cache.drop(lambda pod: pod.workload in own)
    planned = await asyncio.to_thread(simulate, inputs, group, known)
    selectors = {f"{namespace}/{name}": ref.selector for (_, name), ref in named.items()}
    labels = {selector: controller.labels for selector, controller in known.items()}
    near = kept_near(ServiceIndex.among(traffic.snapshot.services), namespace, labels)
    rates = {(selectors[d.client], selectors[d.server]): d.bytes_per_s for d in proposal.dependencies}
    measured, modelled = _zones_of(proposal, traffic, selectors)
    all_rates = GroupTraffic(rates, near=near)
    zoneless = GroupTraffic(modelled, near=near)
    now = {
        selectors[end.key]: places
        for end, places in traffic.workloads.places.items()
        if end.namespace == namespace and (end.kind, end.name) in named
    }
    then = planned.network_aware.placed(inputs.node_cache.hosts)
    costs = inputs.state.costs(namespace)
    latency = PathLatency(costs.table, measured=bool(costs.topology))

    def of_today(priced: Priced) -> float:
        """Sum of rate times price of the way, of today's traffic."""
        known = sum(rate * priced.per_gb(a, b) for a, b, rate in measured)
        return known + weighed(zoneless, now, priced)

    total, placed = of_today(ONE), weighed(all_rates, then, ONE)
    return Gain(
        proposal.name,
        crossing_now=of_today(CROSSING),
        crossing_then=weighed(all_rates, then, CROSSING),
        call_now_us=round(of_today(latency) / total, 1) if total else 0.0,
        call_then_us=round(weighed(all_rates, then, latency) / placed, 1) if placed else 0.0,
        month_now=per_month(of_today(prices), 1.0) if prices else None,
        month_then=month_of(all_rates, then, prices) if prices else None,
        currency=prices.currency if prices else "",
        unplaced=planned.network_aware.unplaced,
        places_then=_zones(then),
        places_now=_zones(now),
    )


def _zones(placed: Mapping[str, Counter[Place]]) -> dict[str, dict[str, int]]:
    return {workload: dict(Counter(zone for _, zone in places.elements())) for workload, places in placed.items()}


def _zones_of(
    proposal: Proposal, traffic: Traffic, selectors: Mapping[str, str]
) -> tuple[list[tuple[Place, Place, float]], dict[tuple[str, str], float]]:
    """Bytes per second from place to place as measured; and by selectors, those whose zones nobody told."""
    inside = {(d.client, d.server) for d in proposal.dependencies}
    measured: list[tuple[Place, Place, float]] = []
    modelled: dict[tuple[str, str], float] = {}
    for d in traffic.graph.dependencies:
        if (d.client.key, d.server.key) not in inside:
            continue
        place_of = traffic.workloads.place_of
        measured += [(place_of(a), place_of(b), rate) for (a, b), rate in d.zones.items()]
        if d.zoneless_bytes_per_s:
            modelled[selectors[d.client.key], selectors[d.server.key]] = d.zoneless_bytes_per_s
    return measured, modelled


@dataclass(frozen=True)
class PathLatency:
    """The time of a call as a price of the way."""

    costs: CostTable
    measured: bool

    def per_gb(self, origin: Place, destination: Place) -> float:
        """Microseconds between two hosts."""
        return latency_us(Location(*origin), Location(*destination), self.costs, measured=self.measured)
