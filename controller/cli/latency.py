"""`latency A B`: the newest sample between two zones."""

from __future__ import annotations

import argparse

from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.session import NotFoundError, Session
from controller.cli.shared import UNMEASURED, note_unused
from controller.cli.style import BAD, FAINT, STRONG, age, grid, milliseconds
from controller.cluster.zones import build_zone_map
from controller.diagnosis.model import PairView, View
from controller.diagnosis.zones import build_network, by_pair


class LatencyView(View, frozen=True):
    """Both directions of a pair; ``at`` is unix seconds."""

    at: float
    there: PairView
    back: PairView


class Latency(Command):
    """See `controller.cli.command.Command`."""

    name = "latency"
    examples = (("latency eu-1a eu-1b", "both directions"),)
    description = (
        "Round trips between two zones, or the zones of two nodes. One node per zone measures, so usually one direction has "
        "samples and stands for both. Its history is on the Grafana dashboard Latency."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Arguments of this command."""
        parser.add_argument("origin", metavar="A", help="zone or node")
        parser.add_argument("destination", metavar="B", help="zone or node")

    async def ask(self, session: Session, options: argparse.Namespace) -> LatencyView:
        """Read the pair."""
        snapshot = await session.snapshot()
        network, places = build_network(snapshot), build_zone_map(snapshot.nodes).places
        note_unused(session, network)
        pairs = by_pair(network.pairs)
        known = {zone.name for zone in network.zones}
        ends = [places[name].zone if name in places else name for name in (options.origin, options.destination)]
        for name, zone in zip((options.origin, options.destination), ends, strict=True):
            if zone not in known:
                msg = f"there is no zone or node {name!r}; zones: {', '.join(z.name for z in network.zones) or 'none'}"
                raise NotFoundError(msg)
        if ends[0] == ends[1]:
            msg = f"{options.origin} and {options.destination} are in one zone, {ends[0]}; its latency is not measured"
            raise NotFoundError(msg)
        return LatencyView(at=snapshot.now_s, there=pairs[ends[0], ends[1]], back=pairs[ends[1], ends[0]])

    def show(self, answer: LatencyView, options: argparse.Namespace, width: int) -> RenderableType:  # noqa: ARG002
        """The newest sample as a table."""
        return Group(_headline(answer), Text(), _now(answer))

    def is_bad(self, answer: LatencyView) -> bool:
        """There is no measurement, an old one, or one that is not trusted."""
        return answer.there.basis in UNMEASURED or bool(answer.there.quality_flags)


def _headline(answer: LatencyView) -> Text:
    there = answer.there
    text = Text.assemble((f"{there.origin} to {there.destination}", STRONG))
    text.append(f"  cost {there.cost if there.cost is not None else 'unknown'}")
    if answer.back.cost != there.cost:
        text.append(f", {answer.back.cost if answer.back.cost is not None else 'unknown'} back")
    text.append(f"  {there.basis}", style=BAD if there.basis in UNMEASURED else FAINT)
    if there.quality_flags:
        text.append(f"  newest sample not trusted: {', '.join(there.quality_flags)}", style=BAD)
    return text


def _now(answer: LatencyView) -> RenderableType:
    pair = answer.there
    if pair.measured_at is None and pair.p50_us is None:
        return Text("not measured", style=BAD)
    numbers = ("P50", "P90", "P99", "JITTER", "LOSS", "AGE")
    table = grid(*numbers, "PROBER", "MEASURED BY", right=numbers)
    loss = "-" if pair.loss_ratio is None else f"{pair.loss_ratio:.2%}"
    seconds = None if pair.measured_at is None else answer.at - pair.measured_at
    nodes = f"{pair.origin_node} to {pair.destination_node}"
    values = [milliseconds(value) for value in pair.percentiles_us.values()]
    table.add_row(*values, milliseconds(pair.jitter_us), loss, age(seconds), pair.prober or "-", nodes)
    return table
