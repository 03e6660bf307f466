"""`money`: the price of traffic between zones, by dependency and by pair of zones."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controller.cli.command import Command
from controller.cli.session import Session
from controller.cli.style import BAD, FAINT, STRONG, format_money, format_percent, format_rate, make_table
from controller.cli.traffic import add_traffic_arguments, read_traffic
from controller.traffic.bill import DependencyPrice, TrafficBill, ZonePairPrice, compute_bill, map_workloads_to_groups
from controller.traffic.graph import TrafficGraph
from controller.traffic.prices import PRESETS

MAX_ROWS_SHOWN = 15


class BillView(msgspec.Struct, frozen=True, rename="camel"):
    """The bill of traffic, the name of the metrics from which the traffic was read, and the range of its rates."""

    source: str
    window_s: int
    bill: TrafficBill


class MoneyCommand(Command):
    examples = (("money --prometheus http://localhost:9090 --prices aws", "price of traffic by list prices"),)
    description = (
        "Bytes between workloads, by pairs of zones, times prices, as money per month of 730 hours. Needs --prometheus. Prices are "
        "the controller's (traffic.prices), or the list prices that --prices names; without prices only rates are shown. ~ marks "
        "traffic whose source has no zones: its bytes are divided as if every replica called every replica. -n shows "
        "only dependencies of that namespace's workloads."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_traffic_arguments(parser)
        parser.add_argument("--prices", choices=PRESETS, help="a cloud's list prices (default: the controller's)")

    async def run(self, session: Session, options: argparse.Namespace) -> BillView:
        traffic = await read_traffic(session, options.source, options.window)
        graph, snapshot = traffic.graph, traffic.snapshot
        if namespace := options.namespace:
            dependencies = (d for d in graph.dependencies if namespace in {d.client.namespace, d.server.namespace})
            graph = TrafficGraph(tuple(dependencies), graph.omitted)
        prices = PRESETS[options.prices] if options.prices else snapshot.prices
        bill = compute_bill(graph, traffic.workloads, prices, map_workloads_to_groups(snapshot.build_membership()))
        return BillView(traffic.source.name, traffic.window_s, bill)

    def render(self, answer: BillView, options: argparse.Namespace, width: int) -> RenderableType:
        """The price of all traffic, then the most expensive dependencies and pairs of zones."""
        bill = answer.bill
        headline = Text()
        if bill.monthly_price is not None:
            headline.append(f"{format_money(bill.monthly_price, bill.currency)} per month", style=STRONG).append("  ")
        crossing_share = format_percent(bill.crossing_bytes_per_s, bill.bytes_per_s) if bill.bytes_per_s else "none"
        headline.append(f"{format_rate(bill.bytes_per_s * 8)} between workloads, {crossing_share} of it across zones")
        parts: list[RenderableType] = [headline]
        if bill.price_source:
            parts.append(Text(f"prices: {bill.price_source}", style=FAINT))
        if bill.dependencies:
            parts += [Text(), _make_dependency_table(bill.dependencies, bill.currency)]
        crossing_pairs = [pair for pair in bill.zone_pairs if pair.distance != "zone"]
        if crossing_pairs:
            parts += [Text(), _make_zone_pair_table(crossing_pairs, bill.currency)]
        return Group(*parts)


def _make_dependency_table(dependencies: Sequence[DependencyPrice], currency: str) -> RenderableType:
    numeric_headers = ("RATE", "ACROSS ZONES", "PER MONTH")
    table = make_table("FROM", "TO", "GROUP", *numeric_headers, numeric=numeric_headers)
    for dependency in dependencies[:MAX_ROWS_SHOWN]:
        mark = "" if dependency.has_all_zones else "~"
        style = BAD if dependency.crossing_bytes_per_s else FAINT
        crossing_cell = Text(mark + format_rate(dependency.crossing_bytes_per_s * 8), style=style)
        rate, price = format_rate(dependency.bytes_per_s * 8), format_money(dependency.monthly_price, currency)
        table.add_row(dependency.client, dependency.server, dependency.group, rate, crossing_cell, price)
    _add_row_of_hidden_count(table, len(dependencies))
    return table


def _make_zone_pair_table(zone_pairs: Sequence[ZonePairPrice], currency: str) -> RenderableType:
    table = make_table("FROM ZONE", "TO ZONE", "RATE", "PER MONTH", numeric=["RATE", "PER MONTH"])
    for pair in zone_pairs[:MAX_ROWS_SHOWN]:
        rate = format_rate(pair.bytes_per_s * 8)
        table.add_row(pair.client_zone, pair.server_zone, rate, format_money(pair.monthly_price, currency))
    _add_row_of_hidden_count(table, len(zone_pairs))
    return table


def _add_row_of_hidden_count(table: Table, total: int) -> None:
    if total > MAX_ROWS_SHOWN:
        table.add_row(Text(f"and {total - MAX_ROWS_SHOWN} more; -o json has all", style=FAINT))
