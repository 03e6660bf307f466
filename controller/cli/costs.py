"""`costs`: the zone matrix as a heat map."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.session import NotFoundError, Session
from controller.cli.shared import UNMEASURED, add_costs_arguments, note_unused
from controller.cli.style import FAINT, STRONG, age, heat, legend, number, steps
from controller.cluster.resources import NETWORK_TOPOLOGIES
from controller.diagnosis.model import NetworkView, PairView, View
from controller.diagnosis.zones import build_network, by_pair

_SIGNS = {"stale": "~", "inferred": "*", "unreachable": "x"}
_BARE_WIDTH = 2
CORNER = "from \\ to"


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
        add_costs_arguments(parser)
        parser.add_argument(
            "--percentile", choices=("p50", "p90", "p99"), help="show measured round trips in ms instead of costs"
        )

    async def ask(self, session: Session, options: argparse.Namespace) -> CostsView:
        """Read the network and the weights that were asked for."""
        snapshot = await session.snapshot()
        if not options.percentile:
            session.require(NETWORK_TOPOLOGIES)
        network = build_network(snapshot, options.topology, options.weights)
        if options.topology and network.topology is None:
            msg = f"there is no NetworkTopology {options.topology!r}"
            raise NotFoundError(msg)
        if options.weights and network.weights is None:
            names = ", ".join(network.weights_available) or "none"
            msg = f"{network.topology} has no weight {options.weights!r}; it has: {names}"
            raise NotFoundError(msg)
        note_unused(session, network)
        return CostsView(at=snapshot.now_s, network=network)

    def show(self, answer: CostsView, options: argparse.Namespace, width: int) -> RenderableType:
        """The heat map, in blocks of columns if it is wider than the terminal."""
        network = answer.network
        pairs = by_pair(network.pairs)
        values = {key: _value(pair, options.percentile) for key, pair in pairs.items()}
        names = [(zone.name, zone.region) for zone in network.zones]
        unit = f"{options.percentile} round trip, ms" if options.percentile else "cost"
        signs = {key: _sign(pair, latency=bool(options.percentile)) for key, pair in pairs.items()}
        matrix = _Matrix(names, values, signs)
        return Group(_headline(answer, options.percentile), Text(), *matrix.draw(width), Text(), *_foot(matrix, unit))

    def is_bad(self, answer: CostsView) -> bool:
        """Some pair has no measurement of its own, or an old one."""
        return any(pair.basis in UNMEASURED for pair in answer.network.pairs)


def _value(pair: PairView, percentile: str | None) -> float | None:
    if percentile is None:
        return pair.cost
    value_us = pair.percentiles_us[percentile]
    return None if value_us is None else value_us / 1000


def _sign(pair: PairView, *, latency: bool) -> str:
    if pair.quality_flags:
        return "!"
    return _SIGNS.get(pair.basis, "") if not latency or pair.basis == "stale" else ""


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


@dataclass(frozen=True)
class _Matrix:
    """A matrix of numbers to draw; ``names`` are zones with their regions, in order."""

    names: Sequence[tuple[str, str]]
    values: Mapping[tuple[str, str], float | None]
    signs: Mapping[tuple[str, str], str]

    @cached_property
    def ends(self) -> tuple[float, ...]:
        return steps(v for v in self.values.values() if v is not None)

    @cached_property
    def texts(self) -> dict[tuple[str, str], str]:
        return {key: number(value) if value is not None else "·" for key, value in self.values.items()}

    @cached_property
    def cell(self) -> int:
        """Width of a cell: its number, room for a sign if there is any, and a blank on either side."""
        digits = len(str(len(self.names)))
        return max([len(t) for t in self.texts.values()] + [digits, _BARE_WIDTH]) + 2 + any(self.signs.values())

    def draw(self, width: int) -> Iterator[RenderableType]:
        """Lines; columns are numbered, since names of zones are longer than numbers are wide."""
        digits = len(str(len(self.names)))
        label = max([len(name) for name, _ in self.names] + [len(CORNER)]) + digits + 2
        per_block = max(1, (width - label) // self.cell)
        for start in range(0, len(self.names), per_block):
            columns = self.names[start : start + per_block]
            if start:
                yield Text()
            head = Text(CORNER.ljust(label), style=FAINT)
            for column in range(start, start + len(columns)):
                head.append(f"{column + 1}".rjust(self.cell - 1) + " ", style=STRONG)
            yield head
            previous = None
            for index, (name, region) in enumerate(self.names):
                if region != previous:
                    yield Text(region or "(no region)", style=f"{FAINT} italic")
                    previous = region
                line = Text.assemble((f"{index + 1}".rjust(digits) + " ", FAINT), name.ljust(label - digits - 1))
                for column_name, _ in columns:
                    self._draw_cell(line, (name, column_name))
                yield line

    def _draw_cell(self, line: Text, pair: tuple[str, str]) -> None:
        value = self.values.get(pair)
        sign = self.signs.get(pair, "")
        # The sign stands right of the number, so that numbers stay aligned.
        room = self.cell - 1 - any(self.signs.values())
        text = self.texts.get(pair, "").rjust(room) + sign.ljust(self.cell - room)
        line.append(text, style=FAINT if value is None else heat(value, self.ends))


def _foot(matrix: _Matrix, unit: str) -> Iterator[RenderableType]:
    known = [v for v in matrix.values.values() if v is not None]
    if known:
        yield legend(matrix.ends, unit, min(known))
    used = set(matrix.signs.values())
    meanings = {
        "~": "old measurement",
        "*": "inferred from a path",
        "x": "unreachable",
        "!": "newest sample not trusted",
    }
    notes = [f"{sign} {meaning}" for sign, meaning in meanings.items() if sign in used]
    if any(value is None for value in matrix.values.values()):
        notes.append("· none")
    if notes:
        yield Text("  ".join(notes), style=FAINT)
