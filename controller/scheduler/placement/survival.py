"""What the loss of a zone would take from a group, and what its plan pays for surviving one. Pure.

Plans, `explain`, `simulate` and the page ask here, so that they say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from controller.cluster.costs import Location, count_by_location
from controller.cluster.graph import Edge
from controller.scheduler.placement.judge import judge
from controller.scheduler.placement.problem import Ints
from controller.scheduler.placement.problem_builder import CompiledProblem, PlacementRequest, compile_problem
from controller.scheduler.placement.solve import solve

SHOWN = 5


class Kept(msgspec.Struct, frozen=True, rename="camel"):
    """Replicas that a workload keeps, of how many."""

    left: int
    of: int


class ZoneLoss(msgspec.Struct, frozen=True, rename="camel"):
    """What goes with one zone.

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
    """Of a group.

    Attributes:
        losses: one per zone that holds a replica, sorted.
        price_us: what an expected call pays in microseconds for surviving, against a plan with ``spread: none``; None where
            nobody has worked it out.
    """

    losses: tuple[ZoneLoss, ...] = ()
    price_us: float | None = None

    @property
    def survives(self) -> bool:
        """Whether the loss of any one zone would leave every workload with a replica."""
        return not any(loss.stops for loss in self.losses)


def survival_of(
    workloads: Sequence[str],
    members: Sequence[Mapping[str, int]],
    locations: Mapping[str, Location],
    calls: Sequence[Edge] = (),
    price_us: float | None = None,
) -> Survival:
    """What the loss of each zone would take.

    Args:
        workloads: names.
        members: per workload, node -> replicas there; nodes that are gone count nowhere.
        locations: node -> where it is; nodes without a zone are no zone that could be lost.
        calls: who calls whom, by position.
        price_us: see `Survival`.
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
    return Survival(tuple(losses), price_us)


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


def pays(request: PlacementRequest) -> bool:
    """Whether there is anything to pay: some workload asked to survive a zone, and calls are timed."""
    return "zone" in request.spreads and request.objective == "time" and bool(request.dependencies)


def price_us(
    request: PlacementRequest, compiled: CompiledProblem, at: Ints, *, seed: int, deadline_s: float
) -> float | None:
    """What an expected call pays for surviving, in microseconds: a plan against the one without spreading. None where no call
    has both its ends placed.

    Args:
        request: what was planned.
        compiled: its arrays.
        at: [replica] host, the plan.
        seed: of the search.
        deadline_s: for the other plan.
    """
    free = compile_problem(msgspec.structs.replace(request, spreads=["none"] * len(request.spreads))).problem
    alone = solve(free, at, seed=seed, deadline_s=deadline_s)
    spread, packed = judge(compiled.problem, at), judge(free, alone)
    if not any(edge.answered for edge in spread.edges) or not any(edge.answered for edge in packed.edges):
        return None
    return max(spread.latency - packed.latency, 0.0)
