"""An overview in the shape that the browser gets: compact where there is much of it, and as differences once it has one.

At 100 zones there are 9,900 pairs. As objects they would be 5 MB; as columns, one list per quantity in the order of the
zones, they are 0.7 MB, which compress to a fifth, and a change of one pair is a line of 100 bytes. Lists of nodes, pods and
groups are told row by row likewise, since every probe changes some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from controller.diagnosis.model import PairView, View
from controller.views.model import Overview

SHOWN_NODES = 500
SHOWN_PODS = 500
SECTIONS = ("network", "agents", "bandwidth", "findings")
ROWS: dict[str, tuple[str, ...]] = {
    "agent_rows": ("node",),
    "groups": ("namespace", "name"),
    "node_rows": ("node",),
    "pod_rows": ("namespace", "name"),
}
"""Lists that are told row by row, and the fields that name a row."""

BASES = {
    "measured": "m",
    "mirrored": "r",
    "stale": "s",
    "inferred": "i",
    "unreachable": "u",
    "given": "g",
    "absent": "a",
}

T = TypeVar("T")
Cell = tuple[Any, ...]


class PageData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the browser holds.

    Attributes:
        version: counts the changes of this program's page; grows.
        at: unix seconds.
        prometheus: ``{"url", "error"}``, the url empty without one.
        network: everything of `NetworkView` but the pairs.
        matrix: columns of equal length over all ordered pairs, zones times zones with the diagonal left out: origin by
            origin, and for each the destinations in order. See `CELL` for the names.
        agents: ``{"total", "states"}``.
        agent_rows: as `AgentView`; of many nodes those that need attention first.
        groups: as `GroupView`.
        bandwidth: ``{"totalNodes", "totalPods", "known", "capacityBps", "allocatedBps"}``.
        node_rows: as `NodeBandwidthView`, the fullest first.
        pod_rows: as `PodBandwidthView`, those with a problem first.
        findings: as `controller.diagnosis.findings.Finding`.
        runbook: where each alert has a section of its name.
    """

    version: int
    at: float
    prometheus: dict[str, str]
    network: dict[str, Any]
    matrix: list[Cell]
    agents: dict[str, Any]
    agent_rows: list[Any]
    groups: list[Any]
    bandwidth: dict[str, Any]
    node_rows: list[Any]
    pod_rows: list[Any]
    findings: list[Any]
    runbook: str


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
    "traffic",
    "month",
)
"""Fields of a cell of the matrix; latencies in whole microseconds, rates in bits per second, times in unix seconds."""


def encode(overview: Overview, version: int, runbook: str = "") -> PageData:
    """The page of an overview. Pure."""
    network = msgspec.to_builtins(overview.network)
    network.pop("pairs")
    return PageData(
        version=version,
        at=overview.at,
        prometheus={"url": overview.prometheus, "error": overview.prometheus_error},
        network=network,
        matrix=[_cell(pair) for pair in overview.network.pairs],
        agents={"total": len(overview.agents), "states": _states(overview)},
        agent_rows=_agents(overview),
        groups=_plain_views(overview.groups),
        bandwidth=_bandwidth(overview),
        node_rows=_nodes(overview),
        pod_rows=_pods(overview),
        findings=[msgspec.to_builtins(finding) for finding in overview.findings],
        runbook=runbook,
    )


def plain(page: PageData) -> dict[str, Any]:
    """The page as JSON has it, the matrix as columns."""
    found: dict[str, Any] = msgspec.to_builtins(page)
    columns = zip(*page.matrix, strict=True) if page.matrix else ([] for _ in CELL)
    found["matrix"] = {name: list(column) for name, column in zip(CELL, columns, strict=True)}
    return found


def difference(old: PageData, new: PageData) -> dict[str, Any]:
    """What to tell a browser that has ``old``: whole sections where they differ, of the matrix single cells.

    The answer always has ``version``, ``since`` (the old version) and ``at``; a browser with another version asks for
    everything. ``cells`` are ``[index, ...fields]``. ``rows`` has, by list, the rows that are new or differ, and ``order``,
    the names of all rows, where rows came, went or changed places.
    """
    told: dict[str, Any] = {"version": new.version, "since": old.version, "at": new.at}
    if old.prometheus != new.prometheus:
        told["prometheus"] = new.prometheus
    for name in SECTIONS:
        if getattr(old, name) != getattr(new, name):
            told[name] = getattr(new, name)
    rows = {_camel(name): told_rows for name in ROWS if (told_rows := _rows_difference(name, old, new))}
    if rows:
        told["rows"] = rows
    if old.network["zones"] != new.network["zones"] or len(old.matrix) != len(new.matrix):
        told["matrix"] = plain(new)["matrix"]
    else:
        changed = [
            [i, *cell] for i, (cell, before) in enumerate(zip(new.matrix, old.matrix, strict=True)) if cell != before
        ]
        if changed:
            told["cells"] = changed
    return told


def row_name(row: dict[str, Any], fields: Sequence[str]) -> str:
    """What a row is called in differences."""
    return "/".join(str(row[field]) for field in fields)


def _rows_difference(name: str, old: PageData, new: PageData) -> dict[str, Any]:
    fields = ROWS[name]
    before = {row_name(row, fields): row for row in getattr(old, name)}
    after = {row_name(row, fields): row for row in getattr(new, name)}
    told: dict[str, Any] = {}
    changed = [row for key, row in after.items() if before.get(key) != row]
    if changed:
        told["changed"] = changed
    if list(before) != list(after):
        told["order"] = list(after)
    return told


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


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
        # Of a pair that is measured one way, the way that was measured has the names.
        f"{pair.origin_node} {pair.destination_node}" if pair.origin_node and pair.basis != "mirrored" else "",
        _whole(pair.traffic_bps),
        None if pair.month is None else round(pair.month, 2),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _states(overview: Overview) -> dict[str, int]:
    return {state: sum(agent.state == state for agent in overview.agents) for state in _ATTENTION}


_ATTENTION = {"down": 0, "away": 1, "up": 2}


def _agents(overview: Overview) -> list[Any]:
    shown = _first(overview.agents, SHOWN_NODES, lambda a: (_ATTENTION[a.state], a.zone, a.node))
    return _plain_views(shown)


def _bandwidth(overview: Overview) -> dict[str, Any]:
    nodes = overview.bandwidth.nodes
    return {
        "totalNodes": len(nodes),
        "totalPods": len(overview.bandwidth.pods),
        "known": sum(n.allocatable_bps is not None for n in nodes),
        "capacityBps": sum(n.allocatable_bps or 0 for n in nodes),
        "allocatedBps": sum(n.allocated_bps for n in nodes),
    }


def _nodes(overview: Overview) -> list[Any]:
    nodes = overview.bandwidth.nodes
    shown = _first(nodes, SHOWN_NODES, lambda n: (-n.allocated_bps / (n.allocatable_bps or 1), n.node))
    return _plain_views(shown)


def _pods(overview: Overview) -> list[Any]:
    pods = overview.bandwidth.pods
    shown = _first(pods, SHOWN_PODS, lambda p: (not p.problem, -p.requested_bps, p.namespace, p.name))
    return _plain_views(shown)


def _first(items: Sequence[T], count: int, key: Callable[[T], Any]) -> list[T]:
    return sorted(items, key=key)[:count]


def _plain_views(views: Iterable[View]) -> list[Any]:
    return [msgspec.to_builtins(view) for view in views]
