"""The invariants of an audit log: who wrote, from measurements to costs, and every pod's way from creation to its node.

Pure: events in, violations out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from controller.cluster.resources import NETPERF_COSTS, NetworkTopology
from controller.topology.weights import written_costs
from netperf.contract import CONTROLLER
from tests.chaos.audit import (
    ACCOUNTS,
    AuditEvent,
    CostSnapshot,
    foreign_keys,
    foreign_writes,
    handovers,
    measured,
    unsupported_costs,
)

Span = tuple[float, float]
"""Begin and end, seconds since 1970."""


def check(
    events: list[AuditEvent],
    *,
    lifetime_s: float,
    gate_s: float,
    seen: Iterable[CostSnapshot] = (),
    away: Sequence[Span] = (),
) -> list[str]:
    """What a log violates.

    Args:
        events: in any order.
        lifetime_s: how long a measurement supports a cost that is written, with leeway.
        gate_s: how long a pod may be gated, with leeway.
        seen: costs that were read at other times, beside those that were written.
        away: when nobody could have opened a gate: no API server, no leader.
    """
    ways = pod_ways(events)
    until = max((e.when for e in events if e.stage_timestamp), default=0.0)
    costs = [*cost_writes(events), *seen]
    return [
        *foreign_writes(events, CONTROLLER),
        *foreign_keys(events),
        *unsupported_costs(costs, measured(events), lifetime_s, handovers(events, CONTROLLER)),
        *misplaced(ways),
        *gated_too_long(ways, until, gate_s, away),
    ]


def cost_writes(events: Iterable[AuditEvent]) -> list[CostSnapshot]:
    """The costs as the controller's writes left them, in order of time."""
    found = []
    for event in events:
        body = event.response_object
        if event.object_ref.resource != "networktopologies" or event.object_ref.subresource or not event.succeeded:
            continue
        if event.verb == "delete" or event.user.username != ACCOUNTS + CONTROLLER:
            continue
        try:
            weight = msgspec.convert(body, NetworkTopology).weight(NETPERF_COSTS)
        except msgspec.ValidationError:
            continue
        found.append(CostSnapshot(event.when, written_costs(weight)))
    return sorted(found, key=lambda seen: seen.at)


class PodWay(msgspec.Struct):
    """One pod's way; times in seconds since 1970.

    Attributes:
        released: when the opening of its gate was answered; ``opening`` is when it was asked for.
        bound: when and to which node, of each binding that was accepted.
    """

    name: str
    uid: str
    created: float
    gated: bool
    released: float | None = None
    opening: float | None = None
    bound: list[tuple[float, str]] = msgspec.field(default_factory=list)
    deleted: float | None = None


def pod_ways(events: Iterable[AuditEvent]) -> list[PodWay]:
    """Every pod that the log saw created. A killed API server may have lost lines: then a part of a way is missing."""
    ways: dict[str, PodWay] = {}
    newest: dict[str, PodWay] = {}
    ours = [e for e in events if e.object_ref.resource == "pods" and e.succeeded]
    for event in sorted(ours, key=lambda e: e.when):
        ref, meta = event.object_ref, _part(event.response_object, "metadata")
        name = f"{ref.namespace}/{meta.get('name') or ref.name}"
        if event.verb == "create" and not ref.subresource:
            way = PodWay(name, str(meta.get("uid", "")), event.when, _is_gated(event.response_object))
            ways[way.uid] = newest[name] = way
            if node := _part(event.response_object, "spec").get("nodeName"):
                way.bound.append((event.when, str(node)))
            continue
        if event.verb == "deletecollection":
            # The end of a namespace: a pod without a node is gone by it, and no line of its own says so.
            for gone in _items(event.response_object):
                if left := ways.get(str(_part(gone, "metadata").get("uid", ""))):
                    left.deleted = left.deleted or event.when
            continue
        found = ways.get(str(meta.get("uid", ""))) or newest.get(f"{ref.namespace}/{ref.name}")
        if found is not None:
            _follow(found, event)
    return list(ways.values())


def _follow(way: PodWay, event: AuditEvent) -> None:
    sub = event.object_ref.subresource
    if sub == "binding" and event.verb == "create":
        way.bound.append((event.when, str(_part(event.request_object, "target").get("name", ""))))
    elif event.verb == "delete" and not sub:
        way.deleted = way.deleted or event.when
    elif event.verb in {"patch", "update"} and not sub and way.gated and _is_open(event.response_object):
        way.released = way.released or event.when
        way.opening = way.opening or event.begun


def misplaced(ways: Iterable[PodWay]) -> list[str]:
    """Pods with two nodes, and pods with a node while they were gated."""
    violations = []
    for way in ways:
        nodes = sorted({node for _, node in way.bound})
        if len(nodes) > 1:
            violations.append(f"bound twice: pod {way.name} to {' and '.join(nodes)}")
        # An opening takes effect before it is answered, and the scheduler may be told first: what counts is when it was asked.
        if way.opening is not None and way.bound and way.bound[0][0] < way.opening:
            violations.append(f"bound while gated: pod {way.name}, {way.opening - way.bound[0][0]:.1f} s too early")
    return violations


def gated_too_long(ways: Iterable[PodWay], until: float, limit_s: float, away: Sequence[Span]) -> list[str]:
    """Pods whose gate stayed shut beyond the limit, without the time in which nobody could open it."""
    violations = []
    for way in ways:
        if not way.gated:
            continue
        # A binding without a release: the line of the release was lost.
        ends = [t for t in (way.released, way.deleted, *(t for t, _ in way.bound[:1])) if t is not None]
        end = min(ends, default=until)
        lost_s = sum(max(0.0, min(end, b) - max(way.created, a)) for a, b in away)
        if end - way.created - lost_s > limit_s:
            violations.append(
                f"gated: pod {way.name} for {end - way.created:.0f} s, {lost_s:.0f} s of it with nobody to open it"
            )
    return violations


def _items(body: Any) -> Sequence[Any]:
    items = body.get("items") if isinstance(body, dict) else None
    return items if isinstance(items, list) else ()


def _part(body: Any, name: str) -> Mapping[str, Any]:
    part = body.get(name) if isinstance(body, dict) else None
    return part if isinstance(part, dict) else {}


def _is_gated(pod: Any) -> bool:
    return bool(_part(pod, "spec").get("schedulingGates"))


def _is_open(pod: Any) -> bool:
    # An answer that is no pod, as in a log of another level, tells nothing.
    return bool(_part(pod, "spec")) and not _is_gated(pod)
