"""`costs`: the matrix of costs, or of round trips, between zones."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.session import Session
from controller.cli.shared import note_unused_costs
from controller.cli.style import FAINT, STRONG, format_age, format_number, make_table
from controller.cluster.crds import NETWORK_TOPOLOGIES
from controller.diagnosis.model import NetworkView, PairView, View, ZoneView
from controller.diagnosis.zones import build_network, by_pair

_SIGNS = {"stale": "~", "inferred": "*", "unreachable": "x"}
"""Basis of a cost -> sign behind the cost."""
_MEANINGS = {
    "~": "old measurement",
    "*": "inferred from a path over other zones",
    "x": "unreachable",
    "!": "newest sample not trusted",
    "·": "no value; a missing cost counts as 100",
}
CORNER = "from \\ to"


class CostsView(View, frozen=True):
    """The network, and ``at``, when it was read (unix seconds)."""

    at: float
    network: NetworkView


class CostsCommand(Command):
    examples = (
        ("costs", "costs between zones"),
        ("costs --percentile p90", "round trips (p90) in milliseconds"),
    )
    description = (
        "The matrix of costs between zones as the scheduler reads them; with --percentile, of round trips in milliseconds. "
        f"Rows are origins, columns destinations. Signs: {', '.join(map(' '.join, _MEANINGS.items()))}."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--percentile", choices=("p50", "p90", "p99"), help="show round trips instead of costs")

    async def run(self, session: Session, options: argparse.Namespace) -> CostsView:
        snapshot = await session.read_snapshot()
        if not options.percentile:
            session.require_readable(NETWORK_TOPOLOGIES)
        network = build_network(snapshot)
        note_unused_costs(session, network)
        return CostsView(at=snapshot.now_s, network=network)

    def render(self, answer: CostsView, options: argparse.Namespace, width: int) -> RenderableType:
        """The matrix, in blocks of columns if it is wider than the terminal."""
        cells = {ends: _cell(pair, options.percentile) for ends, pair in by_pair(answer.network.pairs).items()}
        used = "".join(cells.values())
        legend = "  ".join(f"{sign} {meaning}" for sign, meaning in _MEANINGS.items() if sign in used)
        blocks = _blocks(answer.network.zones, cells, width)
        return Group(_headline(answer, options.percentile), Text(), *blocks, Text(), Text(legend, style=FAINT))


def _cell(pair: PairView, percentile: str | None) -> str:
    """The text of a cell: the value, or a dot, and its sign or a space."""
    # Round trips are always measured: signs of inferred and unreachable costs, which use no sample, do not apply.
    is_measured = percentile is not None or pair.basis not in {"inferred", "unreachable"}
    sign = "!" if is_measured and pair.quality_flags else _SIGNS.get(pair.basis, " ")
    if percentile is None:
        return f"{'·' if pair.cost is None else pair.cost}{sign}"
    value_us = pair.percentiles_us[percentile]
    return f"{'·' if value_us is None else format_number(value_us / 1000)}{sign if sign in {'!', '~'} else ' '}"


def _headline(answer: CostsView, percentile: str | None) -> Text:
    network = answer.network
    text = Text()
    text.append(network.topology or "no NetworkTopology", style=STRONG)
    if network.weights:
        text.append(f"  {network.weights}")
    if percentile is None and network.weights == "NetperfCosts":
        unit_ms = network.unit_us / 1000
        text.append(f"  1 = {unit_ms:g} ms of {network.percentile}", style=FAINT)
    text.append(f"  {len(network.zones)} zones, {len(network.pairs)} pairs", style=FAINT)
    if network.measured_at is not None:
        text.append(f"  newest sample {format_age(answer.at - network.measured_at)} ago", style=FAINT)
    return text


def _blocks(zones: Sequence[ZoneView], cells: Mapping[tuple[str, str], str], width: int) -> Iterator[RenderableType]:
    """The matrix in blocks of columns. Columns have the rows' numbers, because zone names are too wide."""
    names = [f"{row} {zone.name}" for row, zone in enumerate(zones, 1)]
    column_width = max(map(len, cells.values()), default=0) + 2
    name_width = max([len(CORNER), *map(len, names)]) + 2
    per_block = max(1, (width - name_width) // column_width)
    for start in range(0, len(zones), per_block):
        columns = range(start, min(start + per_block, len(zones)))
        numbers = [f"{column + 1} " for column in columns]
        table = make_table(CORNER, *numbers, right=numbers)
        for row, zone in enumerate(zones):
            table.add_row(names[row], *(cells.get((zone.name, zones[column].name), "") for column in columns))
        yield from ((Text(), table) if start else (table,))
