"""What a placement of an AppGroup costs a month, before it happens. Pure.

Every caller's replica is taken to call every replica alike, or where the callee's Service keeps calls near, those of its zone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from controller.cluster.pods import GroupPod
from controller.cluster.routing import has_zone_hints
from controller.cluster.services import Routing, ServiceIndex
from controller.traffic.prices import PriceTable, per_month
from controller.traffic.workloads import Place

Placed = Mapping[str, Counter[Place]]
"""Selector of a workload -> its pods by (region, zone)."""


class Priced(Protocol):
    """What a way is worth: money, time, or whether it leaves its zone."""

    def per_gb(self, origin: Place, destination: Place, /) -> float:
        """Of one unit between two places."""
        ...


CROSSING = PriceTable(between_zones=1.0, between_regions=1.0)
"""With prices of one, the mean price is the share of bytes that leave their zone."""
ONE = PriceTable(same_zone=1.0)
"""Everything counts."""


class GroupTraffic(msgspec.Struct, frozen=True):
    """Bytes per second of a group.

    Attributes:
        rates: by (caller's selector, callee's selector).
        near: selectors of workloads whose Service sends calls to replicas of the caller's zone where there are any.
    """

    rates: Mapping[tuple[str, str], float]
    near: frozenset[str] = frozenset()


def kept_near(services: ServiceIndex, namespace: str, labels: Mapping[str, Mapping[str, str]]) -> frozenset[str]:
    """Workloads whose Services keep calls in their zone; ``labels`` are those of pods, by selector."""
    return frozenset(w for w, own in labels.items() if services.routing_to(namespace, own) is not Routing.ANY)


def near_of(pods: Iterable[GroupPod], services: ServiceIndex) -> frozenset[str]:
    """The same of pods as they are; of those in several namespaces the Service counts that keeps least near."""
    near: dict[str, bool] = {}
    for pod in pods:
        found = services.routing_to(pod.metadata.namespace, pod.metadata.labels or {})
        near[pod.workload] = near.get(pod.workload, True) and found is not Routing.ANY
    return frozenset(workload for workload, kept in near.items() if kept)


def weighed(traffic: GroupTraffic, placed: Placed, price: Priced) -> float:
    """Bytes per second times the price of their way; a dependency with an end that is not placed counts nothing."""
    return sum(
        rate * _mean_price(placed.get(caller), placed.get(called), price, near=called in traffic.near)
        for (caller, called), rate in traffic.rates.items()
    )


def month_of(traffic: GroupTraffic, placed: Placed, prices: PriceTable) -> float:
    """Money a month for a whole group."""
    return per_month(weighed(traffic, placed, prices), 1.0)


def crossing_of(traffic: GroupTraffic, placed: Placed) -> float:
    """Bytes per second of a whole group that leave their zone."""
    return weighed(traffic, placed, CROSSING)


def _mean_price(
    callers: Counter[Place] | None, called: Counter[Place] | None, prices: Priced, *, near: bool = False
) -> float:
    if not callers or not called:
        return 0.0
    return sum(share * prices.per_gb(here, there) for here, there, share in _ways(callers, called, near=near))


def _ways(callers: Counter[Place], called: Counter[Place], *, near: bool) -> Iterator[tuple[Place, Place, float]]:
    """From where to where calls go, and their share of all; neither side is empty."""
    total = callers.total()
    near = near and has_zone_hints(Routing.ZONE, (zone for (_, zone), count in called.items() if count))
    for here, calling in callers.items():
        answering = {here: called[here]} if near and called.get(here) else called
        everybody = sum(answering.values())
        for there, n in answering.items():
            yield here, there, calling * n / everybody / total
