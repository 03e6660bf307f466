"""`latency A B`: cost and round trips between two zones, in both directions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.session import MissingInputError, Session
from controller.cli.style import BAD, STRONG, format_age, format_milliseconds, make_table
from controller.diagnosis.cluster_views import PairBasis, PairView, View
from controller.diagnosis.zones import build_network

_UNMEASURED_BASES: Sequence[PairBasis] = ("stale", "inferred", "absent", "unreachable")
"""Bases of costs that no recent measurement of the pair supports."""


class LatencyView(View, frozen=True):
    """Both directions of a pair of zones, and ``read_at``, when they were read (unix seconds)."""

    read_at: float
    forward: PairView
    reverse: PairView


class LatencyCommand(Command):
    examples = (("latency eu-1a eu-1b", "both directions"),)
    description = (
        "Costs and round trips between two zones. Usually only one direction is measured, and its samples count for both. "
        "LOSS is the share of lost datagrams or retransmitted segments. "
        "History is on the Grafana dashboard Latency."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("origin", metavar="A", help="a zone")
        parser.add_argument("destination", metavar="B", help="the other zone")

    async def run(self, session: Session, options: argparse.Namespace) -> LatencyView:
        snapshot = await session.read_snapshot()
        network = build_network(snapshot)
        session.note_unused_costs(network)
        pairs, origin, destination = network.pairs_by_zones, options.origin, options.destination
        if (origin, destination) not in pairs:
            zones = ", ".join(zone.name for zone in network.zones) or "none"
            raise MissingInputError(f"there is no pair of zones {origin!r} and {destination!r}; zones: {zones}")
        return LatencyView(
            read_at=snapshot.now_s, forward=pairs[origin, destination], reverse=pairs[destination, origin]
        )

    def render(self, answer: LatencyView, options: argparse.Namespace, width: int) -> RenderableType:
        """A line for each direction."""
        numeric_headers = ("COST", "P50", "P90", "P99", "JITTER", "LOSS", "AGE")
        table = make_table("", *numeric_headers, "BASIS", "PROBER", numeric=numeric_headers)
        for direction, pair in (("forward", answer.forward), ("reverse", answer.reverse)):
            table.add_row(
                direction,
                "-" if pair.cost is None else str(pair.cost),
                *map(format_milliseconds, (*pair.percentiles_us.values(), pair.jitter_us)),
                "-" if pair.loss_ratio is None else f"{pair.loss_ratio:.2%}",
                format_age(None if pair.measured_at is None else answer.read_at - pair.measured_at),
                Text(pair.basis, style=BAD if pair.basis in _UNMEASURED_BASES else ""),
                pair.prober or "-",
            )
        headline = Text(f"{answer.forward.origin} to {answer.forward.destination}", style=STRONG)
        parts: list[RenderableType] = [headline, Text(), table]
        flags = dict.fromkeys((*answer.forward.quality_flags, *answer.reverse.quality_flags))
        if flags:
            parts.append(Text(f"sample not trusted: {', '.join(flags)}", style=BAD))
        return Group(*parts)
