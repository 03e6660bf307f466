"""`costs`: the zone matrix as a heat map."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controller.cli.command import Command
from controller.cli.session import Session
from controller.cli.shared import UNMEASURED, note_unused
from controller.cli.style import FAINT, STRONG, age, heat, number, steps
from controller.cluster.resources import NETWORK_TOPOLOGIES
from controller.diagnosis.model import NetworkView, PairView, View
from controller.diagnosis.zones import build_network, by_pair

_SIGNS = {"stale": "~", "inferred": "*", "unreachable": "x"}
_MEANINGS = {
    "~": "old measurement",
    "*": "inferred from a path",
    "x": "unreachable",
    "!": "newest sample not trusted",
    "·": "none",
}
CORNER = "from \\ to"


class _Cell(NamedTuple):
    """A number, None for none, and the sign behind it."""

    value: float | None
    sign: str

    def text(self, room: int, has_signs: bool) -> str:
        shown = "·" if self.value is None else number(self.value)
        return f" {shown.rjust(room)}{self.sign.ljust(has_signs)}"


class CostsView(View, frozen=True):
    """The network, and when it was looked at (unix seconds)."""

    at: float
    network: NetworkView


class ShowCosts(Command):
    """See `controller.cli.command.Command`."""

    name = "costs"
    examples = (
        ("costs", "the zones as a heat map"),
        ("costs --percentile p90", "in milliseconds"),
    )
    description = (
        "The matrix of costs between zones as the scheduler reads them, or with --percentile the round trips behind them in "
        "milliseconds. Rows are origins, columns destinations. Behind a number: ~ rests on an old measurement, * is "
        "inferred from a path over other zones, ! the newest sample is not trusted. A dot means no cost: the scheduler "
        "counts 100."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Arguments of this command."""
        parser.add_argument(
            "--percentile", choices=("p50", "p90", "p99"), help="show measured round trips in ms instead of costs"
        )

    async def ask(self, session: Session, options: argparse.Namespace) -> CostsView:
        """Read the network."""
        snapshot = await session.snapshot()
        if not options.percentile:
            session.require(NETWORK_TOPOLOGIES)
        network = build_network(snapshot)
        note_unused(session, network)
        return CostsView(at=snapshot.now_s, network=network)

    def show(self, answer: CostsView, options: argparse.Namespace, width: int) -> RenderableType:
        """The heat map, in blocks of columns if it is wider than the terminal."""
        pairs = {key: _cell(pair, options.percentile) for key, pair in by_pair(answer.network.pairs).items()}
        blocks = _blocks([(zone.name, zone.region) for zone in answer.network.zones], pairs, width)
        return Group(_headline(answer, options.percentile), Text(), *blocks, Text(), _foot(list(pairs.values())))

    def is_bad(self, answer: CostsView) -> bool:
        """Some pair has no measurement of its own, or an old one."""
        return any(pair.basis in UNMEASURED for pair in answer.network.pairs)


def _cell(pair: PairView, percentile: str | None) -> _Cell:
    sign = "!" if pair.quality_flags else _SIGNS.get(pair.basis, "")
    if percentile is None:
        return _Cell(pair.cost, sign)
    value_us = pair.percentiles_us[percentile]
    # Where a round trip is shown, it was measured.
    return _Cell(None if value_us is None else value_us / 1000, sign if sign in {"!", "~"} else "")


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
        text.append(f"  newest sample {age(answer.at - network.measured_at)} ago", style=FAINT)
    return text


def _blocks(
    zones: Sequence[tuple[str, str]], pairs: Mapping[tuple[str, str], _Cell], width: int
) -> Iterator[RenderableType]:
    """The matrix; columns are numbered, since names of zones are longer than numbers are wide.

    Args:
        zones: names with their regions, in order.
        pairs: cells by origin and destination.
        width: of the terminal; what is wider is drawn in blocks of columns.
    """
    ends = steps(cell.value for cell in pairs.values() if cell.value is not None)
    digits = len(str(len(zones)))
    # The sign stands right of the number, so that numbers stay aligned.
    room = max([digits, 2, *(len(number(cell.value)) for cell in pairs.values())])
    has_signs = any(cell.sign for cell in pairs.values())
    label = max(len(CORNER), *(len(name) + digits + 1 for name, _ in zones), *(len(region) for _, region in zones), 0)
    per_block = max(1, (width - label - 1) // (room + has_signs + 2))
    for start in range(0, len(zones), per_block):
        columns = range(start, min(start + per_block, len(zones)))
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style=STRONG)
        table.add_column(Text(CORNER, style=FAINT), no_wrap=True)
        for column in columns:
            table.add_column(Text(f"{column + 1} ".rjust(room + has_signs + 1)), no_wrap=True)
        for row, (name, region) in enumerate(zones):
            if row == 0 or region != zones[row - 1][1]:
                table.add_row(Text(region or "(no region)", style=f"{FAINT} italic"))
            cells = (pairs.get((name, zones[column][0])) for column in columns)
            line = (
                Text(" " if cell is None else cell.text(room, has_signs), style=_style(cell, ends)) for cell in cells
            )
            table.add_row(Text.assemble((f"{row + 1:>{digits}} ", FAINT), name), *line)
        yield from ((Text(), table) if start else (table,))


def _style(cell: _Cell | None, ends: Sequence[float]) -> str:
    return "" if cell is None else FAINT if cell.value is None else heat(cell.value, ends)


def _foot(cells: Sequence[_Cell]) -> Text:
    used = {cell.sign for cell in cells} | {"·" for cell in cells if cell.value is None}
    return Text("  ".join(f"{sign} {meaning}" for sign, meaning in _MEANINGS.items() if sign in used), style=FAINT)
