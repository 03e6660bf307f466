"""What the loss of a zone would stop in a group. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from controller.cluster.costs import Location, count_by_location
from controller.cluster.graph import Edge

SHOWN = 5


class Kept(msgspec.Struct, frozen=True, rename="camel"):
    """Replicas that a workload keeps, of how many."""

    left: int
    of: int


class ZoneLoss(msgspec.Struct, frozen=True, rename="camel"):
    """What the loss of one zone stops.

    Attributes:
        zone: its name; ``region`` may be empty.
        stops: workloads that would have no replica left, in the group's order.
        cut_off: workloads that go on and call one that stops.
        keeps: workloads that would lose replicas and go on.
    """

    region: str
    zone: str
    stops: tuple[str, ...]
    cut_off: tuple[str, ...]
    keeps: Mapping[str, Kept]


class Survival(msgspec.Struct, frozen=True, rename="camel"):
    """What the loss of each zone of a group stops.

    Attributes:
        losses: one per zone that holds a replica, sorted.
    """

    losses: tuple[ZoneLoss, ...] = ()


def survival_of(
    workloads: Sequence[str],
    members: Sequence[Mapping[str, int]],
    locations: Mapping[str, Location],
    calls: Sequence[Edge] = (),
) -> Survival:
    """Compute what the loss of each zone stops.

    Args:
        workloads: names.
        members: per workload, node -> replicas there; nodes that are gone count nowhere.
        locations: node -> where it is; nodes without a zone are no zone that could be lost.
        calls: who calls whom, by position.
    """
    found = [count_by_location(nodes, locations) for nodes in members]
    totals = [counts.total() for counts in found]
    losses = []
    for location in sorted({where for counts in found for where in counts if where.zone}):
        left = [total - counts[location] for total, counts in zip(totals, found, strict=True)]
        stops = {w for w, total in enumerate(totals) if total and not left[w]}
        cut_off = {call.dependant for call in calls if call.dependency in stops and left[call.dependant]}
        losses.append(
            ZoneLoss(
                location.region,
                location.zone,
                tuple(workloads[w] for w in sorted(stops)),
                tuple(workloads[w] for w in sorted(cut_off)),
                {workloads[w]: Kept(n, totals[w]) for w, n in enumerate(left) if 0 < n < totals[w]},
            )
        )
    return Survival(tuple(losses))


def describe(loss: ZoneLoss) -> str:
    """One line: what stops, who calls it, what goes on with fewer."""
    parts = [f"{_names(loss.stops)} would stop"] if loss.stops else ["nothing would stop"]
    if loss.cut_off:
        parts.append(f"{_names(loss.cut_off)} would go on without what it calls")
    if loss.keeps:
        kept = [f"{name} {kept.left} of {kept.of}" for name, kept in loss.keeps.items()]
        parts.append(f"{_names(kept)} would be left")
    return "; ".join(parts)


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
