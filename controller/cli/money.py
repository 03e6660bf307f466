"""`money`: what traffic between zones costs, per dependency, group and pair of zones."""

from __future__ import annotations

import argparse

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from controller.cli.command import Command
from controller.cli.session import Session
from controller.cli.style import BAD, FAINT, STRONG, grid, money, percent, rate
from controller.cli.traffic_reading import add_traffic_arguments, read_traffic
from controller.traffic.drift import groups_of_workloads
from controller.traffic.graph import TrafficGraph
from controller.traffic.money import DependencyCost, TrafficCost, compute_cost
from controller.traffic.prices import PRESETS

_MAX_ROWS = 15


class MoneyView(msgspec.Struct, frozen=True):
    """The bill, where traffic is known from, and over how long."""

    source: str
    window_s: int
    bill: TrafficCost


class MoneyCommand(Command):
    examples = (("money", "bytes between zones, and whose they are"),)
    description = (
        "Bytes between workloads, by pairs of zones, times prices, as money per month of 730 hours. Prices are the controller's "
        "(traffic.prices), or the list prices that --prices names; without any only bytes are shown. Where the source of traffic "
        "tells no zones, bytes are shared out as if every replica called every replica; such rows are marked ~. With -n only "
        "dependencies of that namespace's workloads."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_traffic_arguments(parser)
        parser.add_argument(
            "--prices", choices=PRESETS, help="list prices of a cloud (default: the controller's prices)"
        )

    async def run(self, session: Session, options: argparse.Namespace) -> MoneyView:
        """Read traffic and prices."""
        traffic = await read_traffic(session, options.source, options.window)
        graph, snapshot = traffic.graph, traffic.snapshot
        if options.namespace:
            mine = tuple(d for d in graph.dependencies if options.namespace in {d.client.namespace, d.server.namespace})
            graph = TrafficGraph(mine, graph.left_out)
        prices = PRESETS[options.prices] if options.prices else snapshot.prices
        bill = compute_cost(graph, traffic.workloads, prices, groups_of_workloads(snapshot.membership))
        return MoneyView(traffic.source.name, traffic.window_s, bill)

    def render(self, answer: MoneyView, options: argparse.Namespace, width: int) -> RenderableType:  # noqa: ARG002
        """The sum, the greatest dependencies, then pairs of zones."""
        bill = answer.bill
        head = Text()
        if bill.month is not None:
            head.append(f"{money(bill.month, bill.currency)} a month", style=STRONG)
            head.append("  ")
        crossing = percent(bill.crossing_bytes_per_s, bill.bytes_per_s) if bill.bytes_per_s else "none"
        head.append(f"{rate(bill.bytes_per_s * 8)} between workloads, {crossing} of it across zones")
        parts: list[RenderableType] = [head]
        if bill.source:
            parts.append(Text(f"prices: {bill.source}", style=FAINT))
        if bill.dependencies:
            parts += [Text(), _dependencies(bill.dependencies, bill.currency)]
        crossings = [p for p in bill.zone_pairs if p.reach != "zone"]
        if crossings:
            table = grid("FROM ZONE", "TO ZONE", "RATE", "A MONTH", right=["RATE", "A MONTH"])
            for pair in crossings[:_MAX_ROWS]:
                table.add_row(
                    pair.client_zone, pair.server_zone, rate(pair.bytes_per_s * 8), money(pair.month, bill.currency)
                )
            parts += [Text(), table]
        return Group(*parts)


def _dependencies(bills: tuple[DependencyCost, ...], currency: str) -> RenderableType:
    table = grid("FROM", "TO", "GROUP", "RATE", "ACROSS ZONES", "A MONTH", right=["RATE", "ACROSS ZONES", "A MONTH"])
    for bill in bills[:_MAX_ROWS]:
        mark = "" if bill.measured else "~"
        crossing = Text(mark + rate(bill.crossing_bytes_per_s * 8), style=BAD if bill.crossing_bytes_per_s else FAINT)
        table.add_row(
            bill.client, bill.server, bill.group, rate(bill.bytes_per_s * 8), crossing, money(bill.month, currency)
        )
    if len(bills) > _MAX_ROWS:
        table.add_row(Text(f"... and {len(bills) - _MAX_ROWS} more; -o json has all", style=FAINT))
    return table
