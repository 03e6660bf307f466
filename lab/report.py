"""The result of the demo, and its output as one JSON object or as tables."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

_LOW_STYLE, _MEDIUM_STYLE, _HIGH_STYLE, _FAULT_STYLE = "green", "yellow", "red", "bold red"


class MatrixEntry(msgspec.Struct, frozen=True):
    """A directed zone pair: configured round trip, measured percentiles (None after too few transactions), cost (None if unknown)."""

    origin: str
    destination: str
    configured_us: float
    p50_us: float | None
    p90_us: float | None
    p99_us: float | None
    cost: int | None


class Edge(msgspec.Struct, frozen=True, rename={"origin": "from", "destination": "to"}):
    """A dependency: its maximum cost, and for each scheduler the median round trip between its nodes and whether it is violated."""

    origin: str
    destination: str
    max_network_cost: int
    default_p50_us: float
    network_aware_p50_us: float
    default_violated: bool
    network_aware_violated: bool


class Summary(msgspec.Struct, frozen=True):
    """For each scheduler, the sum of all dependencies' median round trips and the number of violated dependencies; and the reduction."""

    default_total_us: float
    network_aware_total_us: float
    reduction_percent: float
    default_violations: int
    network_aware_violations: int


class Placements(msgspec.Struct, frozen=True):
    """For each scheduler: workload -> node."""

    default: dict[str, str]
    network_aware: dict[str, str]


class RequestLatency(msgspec.Struct, frozen=True):
    """Latency of requests to the application's frontend. ``requests`` counts all, percentiles are of successful ones."""

    p50_ms: float
    p99_ms: float
    requests: int
    errors: int


class ApplicationReport(msgspec.Struct, frozen=True):
    """For each scheduler, the latency of requests to the running application."""

    default: RequestLatency
    network_aware: RequestLatency


class DemoReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of the demo.

    Attributes:
        control_plane: ``version`` -> version of Kubernetes, such as ``v1.37.2``.
        nodes, zones: names.
        prober: ``netperf``, or ``datagrams`` if netperf is not available.
        placement: ``extender`` or ``affinity``.
        pairs_planned, pairs_probed: numbers of undirected zone pairs.
        matrix, edges: zone pairs and dependencies.
        elapsed_s: duration of the demo.
        nodes_kind: ``real``, or ``namespace`` for nodes without a kubelet, which have neither ``images`` nor ``application``.
        seed: of the random order in which pods were created; None if the order was fixed.
        images: program -> image that ran.
        application: latency of requests to the running application.
    """

    control_plane: dict[str, str]
    nodes: list[str]
    zones: list[str]
    prober: str
    placement: str
    pairs_planned: int
    pairs_probed: int
    matrix: list[MatrixEntry]
    placements: Placements
    edges: list[Edge]
    summary: Summary
    elapsed_s: float
    nodes_kind: str
    seed: int | None = None
    images: dict[str, str] | None = None
    application: ApplicationReport | None = None


def summarize(edges: Sequence[Edge]) -> Summary:
    """Return the sums of all dependencies."""
    default_us = sum(edge.default_p50_us for edge in edges)
    network_aware_us = sum(edge.network_aware_p50_us for edge in edges)
    return Summary(
        default_total_us=round(default_us, 1),
        network_aware_total_us=round(network_aware_us, 1),
        reduction_percent=round(100 * (1 - network_aware_us / default_us), 1) if default_us else 0.0,
        default_violations=sum(edge.default_violated for edge in edges),
        network_aware_violations=sum(edge.network_aware_violated for edge in edges),
    )


def print_report(console: Console, report: DemoReport, zone_by_node: dict[str, str]) -> None:
    _print_matrix(console, report.matrix)
    _print_placements(console, report, zone_by_node)
    if report.application is not None:
        _print_application(console, report.application, report.images or {})
    if report.prober != "netperf":
        console.print("[yellow]netperf is not available: datagrams measured instead.[/]")
    _print_summary(console, report)


def _print_matrix(console: Console, rows: list[MatrixEntry]) -> None:
    """Print a table of configured and measured latencies, and the cost matrix in colours."""
    title = "Latency between zones, configured and measured (round trip, ms)"
    table = _start_table(console, title, ["zones"], ["configured", "p50", "p90", "p99", "cost"])
    for row in rows:
        if row.origin > row.destination:
            continue
        table.add_row(
            f"{row.origin} ↔ {row.destination}",
            _format_ms(row.configured_us),
            Text(_format_ms(row.p50_us), "bold"),
            _format_ms(row.p90_us),
            _format_ms(row.p99_us),
            _format_cost(row.cost, rows),
        )
    console.print(table)
    _print_costs(console, rows)


def _print_costs(console: Console, rows: list[MatrixEntry]) -> None:
    """Print the cost matrix. The cost inside a zone is 1."""
    zones = sorted({row.origin for row in rows})
    costs = {(r.origin, r.destination): r.cost for r in rows}
    table = _start_table(console, "NetperfCosts: what the scheduler reads", ["from \\ to"], zones)
    for a in zones:
        table.add_row(a, *(Text("1", "dim") if a == b else _format_cost(costs.get((a, b)), rows) for b in zones))
    console.print(table)


def _print_placements(console: Console, report: DemoReport, zone_by_node: dict[str, str]) -> None:
    """Print for both schedulers the node of each workload and the latency of each dependency."""
    table = _start_table(console, "Placement of the Online Boutique", ["workload", "default", "netaware"])
    for workload in sorted(report.placements.default):
        nodes = (report.placements.default[workload], report.placements.network_aware[workload])
        table.add_row(workload, *(f"{zone_by_node[node]}  {node}" for node in nodes))
    console.print(table)
    title = "Dependencies, measured between the nodes of their pods (p50, ms)"
    table = _start_table(console, title, ["dependency"], ["max cost", "default", "netaware"])
    for edge in report.edges:
        table.add_row(
            f"{edge.origin} → {edge.destination}",
            str(edge.max_network_cost),
            _format_latency(edge.default_p50_us, violated=edge.default_violated),
            _format_latency(edge.network_aware_p50_us, violated=edge.network_aware_violated),
        )
    console.print(table)


def _print_summary(console: Console, report: DemoReport) -> None:
    """Print the reduction of latency, the violations and the measurement, in a line each."""
    summary = report.summary
    console.print(
        f"Total dependency latency: [bold]{summary.default_total_us / 1e3:.1f} ms[/] with the default scheduler, "
        f"[bold green]{summary.network_aware_total_us / 1e3:.1f} ms[/] network-aware: "
        f"[bold]{abs(summary.reduction_percent):.0f} % {'less' if summary.reduction_percent >= 0 else 'more'}[/]."
    )
    console.print(
        f"Dependencies above their maxNetworkCost: [bold]{summary.default_violations}[/] with the default scheduler, "
        f"[bold]{summary.network_aware_violations}[/] network-aware, of {len(report.edges)}."
    )
    console.print(
        f"{report.pairs_probed} of {report.pairs_planned} zone pairs measured with {report.prober} on Kubernetes "
        f"{report.control_plane['version']}, {len(report.nodes)} nodes in {len(report.zones)} zones; "
        f"{report.elapsed_s:.0f} s in all.",
        highlight=False,
    )


def _print_application(console: Console, application: ApplicationReport, images: dict[str, str]) -> None:
    title = "A request to the application's frontend, through Services (ms)"
    table = _start_table(console, title, ["scheduler"], ["p50", "p99", "requests", "failed"])
    for name, latency in (("default", application.default), ("netaware", application.network_aware)):
        failed = Text(str(latency.errors), _FAULT_STYLE if latency.errors else "")
        table.add_row(name, f"{latency.p50_ms:.1f}", f"{latency.p99_ms:.1f}", str(latency.requests), failed)
    console.print(table)
    console.print(f"Real kubelets ran {', '.join(images.values())} with the shipped overlay.", highlight=False)


def _start_table(
    console: Console, title: str, text_headings: Sequence[str], number_headings: Sequence[str] = ()
) -> Table:
    """Print a title; return a table with these columns of texts, then of numbers."""
    # Printed apart from the table, because Rich wraps a title to the table's width.
    console.print(f"\n[bold]{title}[/]")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in (*text_headings, *number_headings):
        table.add_column(
            heading, justify="right" if heading in number_headings else "left", no_wrap=heading in text_headings
        )
    return table


def _format_ms(us: float | None) -> str:
    return "-" if us is None else f"{us / 1e3:.2f}"


def _format_cost(cost: int | None, rows: list[MatrixEntry]) -> Text:
    if cost is None:
        return Text("-", "dim")
    highest = max((r.cost or 0 for r in rows), default=1)
    if cost <= highest / 3:
        return Text(str(cost), _LOW_STYLE)
    return Text(str(cost), _MEDIUM_STYLE if cost <= 2 * highest / 3 else _HIGH_STYLE)


def _format_latency(us: float, *, violated: bool) -> Text:
    return Text(_format_ms(us) + (" ✗" if violated else "  "), _FAULT_STYLE if violated else "")
