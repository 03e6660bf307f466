"""An overview in the shape that the browser gets: compact where there is much of it, and as differences once it has one.

At 100 zones there are 9,900 pairs. As objects they would be 3 MB; as columns, one list per quantity in the order of the
zones, they are 300 kB, and a change of one pair is a line of 60 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from controller.views.model import Overview, PairView, View

SHOWN_NODES = 500
SHOWN_PODS = 500
SECTIONS = ("network", "agents", "groups", "bandwidth", "problems")
BASES = {"measured": "m", "mirrored": "r", "stale": "s", "inferred": "i", "given": "g", "absent": "a"}

T = TypeVar("T")
Cell = tuple[Any, ...]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What the browser holds.

    Attributes:
        version: counts the changes of this program's page; grows.
        at: unix seconds.
        prometheus: ``{"url", "error"}``, the url empty without one.
        network: everything of `NetworkView` but the pairs.
        matrix: columns of equal length over all ordered pairs, zones times zones with the diagonal left out: origin by
            origin, and for each the destinations in order. See `CELL` for the names.
        agents: ``{"total", "shown", "states", "nodes"}``; of many nodes those that need attention first.
        groups: as `GroupView`.
        bandwidth: ``{"totalNodes", "totalPods", "capacityBps", "allocatedBps", "nodes", "pods"}``, the fullest first.
        problems: as `ProblemView`.
    """

    version: int
    at: float
    prometheus: dict[str, str]
    network: dict[str, Any]
    matrix: list[Cell]
    agents: dict[str, Any]
    groups: list[Any]
    bandwidth: dict[str, Any]
    problems: list[Any]


CELL = (
    "cost",
    "basis",
    "p50",
    "p90",
    "p99",
    "at",
    "doubts",
    "prober",
    "jitter",
    "loss",
    "capacity",
    "allocated",
    "nodes",
)
"""Fields of a cell of the matrix; latencies in whole microseconds, rates in bits per second, times in unix seconds."""


def encode(overview: Overview, version: int) -> Page:
    """The page of an overview. Pure."""
    network = msgspec.to_builtins(overview.network)
    network.pop("pairs")
    return Page(
        version=version,
        at=overview.at,
        prometheus={"url": overview.prometheus, "error": overview.prometheus_error},
        network=network,
        matrix=[_cell(pair) for pair in overview.network.pairs],
        agents=_agents(overview),
        groups=msgspec.to_builtins(overview.groups),
        bandwidth=_bandwidth(overview),
        problems=msgspec.to_builtins(overview.problems),
    )


def plain(page: Page) -> dict[str, Any]:
    """The page as JSON has it, the matrix as columns."""
    found: dict[str, Any] = msgspec.to_builtins(page)
    columns = zip(*page.matrix, strict=True) if page.matrix else ([] for _ in CELL)
    found["matrix"] = {name: list(column) for name, column in zip(CELL, columns, strict=True)}
    return found


def difference(old: Page, new: Page) -> dict[str, Any]:
    """What to tell a browser that has ``old``: whole sections where they differ, of the matrix single cells.

    The answer always has ``version``, ``since`` (the old version) and ``at``; a browser with another version asks for
    everything. ``cells`` are ``[index, ...fields]``.
    """
    told: dict[str, Any] = {"version": new.version, "since": old.version, "at": new.at}
    if old.prometheus != new.prometheus:
        told["prometheus"] = new.prometheus
    for name in SECTIONS:
        if getattr(old, name) != getattr(new, name):
            told[name] = getattr(new, name)
    if old.network["zones"] != new.network["zones"] or len(old.matrix) != len(new.matrix):
        told["matrix"] = plain(new)["matrix"]
    else:
        changed = [
            [i, *cell] for i, (cell, before) in enumerate(zip(new.matrix, old.matrix, strict=True)) if cell != before
        ]
        if changed:
            told["cells"] = changed
    return told


def says_something(told: dict[str, Any]) -> bool:
    """Whether a difference is more than the time."""
    return len(told) > len(("version", "since", "at"))


def _cell(pair: PairView) -> Cell:
    return (
        pair.cost,
        BASES[pair.basis],
        _whole(pair.p50_us),
        _whole(pair.p90_us),
        _whole(pair.p99_us),
        None if pair.measured_at is None else round(pair.measured_at, 1),
        " ".join(pair.doubts),
        pair.prober,
        _whole(pair.jitter_us),
        pair.loss_ratio,
        pair.bandwidth_capacity_bps,
        pair.bandwidth_allocated_bps,
        f"{pair.origin_node} {pair.destination_node}" if pair.origin_node else "",
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _agents(overview: Overview) -> dict[str, Any]:
    rank = {"down": 0, "away": 1, "up": 2}
    states = {state: sum(agent.state == state for agent in overview.agents) for state in rank}
    shown = _first(overview.agents, SHOWN_NODES, lambda a: (rank[a.state], a.zone, a.node))
    return {"total": len(overview.agents), "states": states, "nodes": _plain_views(shown)}


def _bandwidth(overview: Overview) -> dict[str, Any]:
    nodes, pods = overview.bandwidth.nodes, overview.bandwidth.pods
    fullest = _first(nodes, SHOWN_NODES, lambda n: (-n.allocated_bps / (n.allocatable_bps or 1), n.node))
    worst = _first(pods, SHOWN_PODS, lambda p: (not p.problem, -p.requested_bps, p.namespace, p.name))
    return {
        "totalNodes": len(nodes),
        "totalPods": len(pods),
        "known": sum(n.allocatable_bps is not None for n in nodes),
        "capacityBps": sum(n.allocatable_bps or 0 for n in nodes),
        "allocatedBps": sum(n.allocated_bps for n in nodes),
        "nodes": _plain_views(fullest),
        "pods": _plain_views(worst),
    }


def _first(items: Sequence[T], count: int, key: Callable[[T], Any]) -> list[T]:
    return sorted(items, key=key)[:count]


def _plain_views(views: Iterable[View]) -> list[Any]:
    return [msgspec.to_builtins(view) for view in views]
