"""`costs`: the matrix of costs, or of round trips, between zones."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.session import Session
from controller.cli.style import COLUMN_GAP, FAINT, STRONG, format_age, format_number, make_table
from controller.cluster.crds import NETPERF_COSTS, NETWORK_TOPOLOGIES
from controller.diagnosis.cluster_views import NetworkView, PairView, View, ZoneView
from controller.diagnosis.zones import build_network
from netperf.latencies import ZonePair

_SIGN_BY_BASIS = {"stale": "~", "inferred": "*", "unreachable": "x"}
"""Basis of a cost -> sign behind the cost."""
_MEANING_BY_SIGN = {
    "~": "old measurement",
    "*": "inferred from a path over other zones",
    "x": "unreachable",
    "!": "sample not trusted",
    "·": "no value; a missing cost counts as 100",
}
_CORNER_HEADER = "from \\ to"


class CostsView(View, frozen=True):
    """The network, and ``read_at``, when it was read (unix seconds)."""

    read_at: float
    network: NetworkView


class CostsCommand(Command):
    examples = (
        ("costs", "costs between zones"),
        ("costs --percentile p90", "round trips (p90) in milliseconds"),
    )
    description = (
        "The matrix of costs between zones as the scheduler reads them; with --percentile, of round trips in milliseconds. "
        f"Rows are origins, columns destinations. Signs: {', '.join(map(' '.join, _MEANING_BY_SIGN.items()))}."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--percentile", choices=("p50", "p90", "p99"), help="show round trips instead of costs")

    async def run(self, session: Session, options: argparse.Namespace) -> CostsView:
        snapshot = await session.read_snapshot()
        if not options.percentile:
            session.require_readable(NETWORK_TOPOLOGIES)
        network = build_network(snapshot)
        session.note_unused_costs(network)
        return CostsView(read_at=snapshot.now_s, network=network)

    def render(self, answer: CostsView, options: argparse.Namespace, width: int) -> RenderableType:
        """The matrix, in blocks of columns if it is wider than the terminal."""
        pairs = answer.network.pairs_by_zones
        cells = {zones: _format_cell(pair, options.percentile) for zones, pair in pairs.items()}
        all_cells = "".join(cells.values())
        legend = "  ".join(f"{sign} {meaning}" for sign, meaning in _MEANING_BY_SIGN.items() if sign in all_cells)
        blocks = _make_blocks(answer.network.zones, cells, width)
        return Group(_make_headline(answer, options.percentile), Text(), *blocks, Text(), Text(legend, style=FAINT))


def _format_cell(pair: PairView, percentile: str | None) -> str:
    """The value, or a dot if it is unknown, then its sign, or a space without one."""
    # Round trips are always measured: signs of inferred and unreachable costs, which use no sample, do not apply.
    is_measured = percentile is not None or pair.basis not in {"inferred", "unreachable"}
    sign = "!" if is_measured and pair.quality_flags else _SIGN_BY_BASIS.get(pair.basis, " ")
    if percentile is None:
        return f"{'·' if pair.cost is None else pair.cost}{sign}"
    value_us = pair.percentiles_us[percentile]
    text = "·" if value_us is None else format_number(value_us / 1000)
    return f"{text}{sign}" if sign in {"!", "~"} else f"{text} "


def _make_headline(answer: CostsView, percentile: str | None) -> Text:
    network = answer.network
    text = Text()
    text.append(network.topology or "no NetworkTopology", style=STRONG)
    if network.weight_name:
        text.append(f"  {network.weight_name}")
    if percentile is None and network.weight_name == NETPERF_COSTS:
        unit_ms = network.unit_us / 1000
        text.append(f"  1 = {unit_ms:g} ms of {network.percentile}", style=FAINT)
    text.append(f"  {len(network.zones)} zones, {len(network.pairs)} pairs", style=FAINT)
    if network.measured_at is not None:
        text.append(f"  newest sample {format_age(answer.read_at - network.measured_at)} ago", style=FAINT)
    return text


def _make_blocks(zones: Sequence[ZoneView], cells: Mapping[ZonePair, str], width: int) -> Iterator[RenderableType]:
    """Tables, each with as many of the matrix's columns as fit into ``width``."""
    row_names = [f"{number} {zone.name}" for number, zone in enumerate(zones, 1)]
    # Zone names are too wide for headers. The space stands over the signs of the cells.
    headers = [f"{number} " for number in range(1, len(zones) + 1)]
    column_width = max(map(len, (*headers, *cells.values())), default=0) + COLUMN_GAP
    name_width = max(map(len, (_CORNER_HEADER, *row_names))) + COLUMN_GAP
    columns_per_block = max(1, (width - name_width) // column_width)
    for start in range(0, len(zones), columns_per_block):
        columns = slice(start, start + columns_per_block)
        table = make_table(_CORNER_HEADER, *headers[columns], numeric=headers[columns])
        for row_name, origin in zip(row_names, zones, strict=True):
            table.add_row(row_name, *(cells.get((origin.name, zone.name), "") for zone in zones[columns]))
        yield from ((Text(), table) if start else (table,))
