"""``python -m lab wan``: shows and changes the delays between the zones of a running lab, while packets flow."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from kubekit.errors import ConfigError
from lab.commands import arguments
from lab.topology import Link, parse_duration_us, parse_loss
from lab.wan.control import WanControl

if TYPE_CHECKING:
    from rich.table import Table


def add_parser(commands: Any) -> None:
    """Register the subcommand with its two actions."""
    parser = commands.add_parser("wan", help="show or change the delays between zones", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="show|set")
    show = actions.add_parser("show", help="all links between and inside zones")
    change = actions.add_parser(
        "set", help="change a link in both directions; options that are left out keep their value"
    )
    for action in (show, change):
        arguments.add_name(action)
        arguments.add_json(action)
    change.add_argument("zones", nargs=2, metavar="ZONE", help="the two zones; the same twice for the link inside it")
    change.add_argument("--delay", metavar="RTT", help="round trip, such as 500us or 30ms")
    change.add_argument("--jitter", metavar="RTT", help="round trips take up to this much longer")
    change.add_argument("--loss", metavar="PERCENT", help="packets lost in each direction, such as 0.1%%")
    show.set_defaults(run=run_show)
    change.set_defaults(run=run_set)


def run_show(args: argparse.Namespace) -> int:
    """Print every link."""
    _print(_control(args.name).read_links(), as_json=args.json)
    return 0


def run_set(args: argparse.Namespace) -> int:
    """Change a link and print its new values."""
    changes = _changes(args)
    pair = (args.zones[0], args.zones[1])
    link = _control(args.name).change_link(*pair, **changes)
    _print({pair: link}, as_json=args.json)
    return 0


def rows(links: Mapping[tuple[str, str], Link]) -> list[dict[str, Any]]:
    """Links as plain data, for JSON and tables."""
    return [{"zones": list(pair), **msgspec.to_builtins(link)} for pair, link in links.items()]


def _control(name: str) -> WanControl:
    return WanControl(arguments.find_running_lab(name).wan_socket)


def _changes(args: argparse.Namespace) -> dict[str, float]:
    changes: dict[str, float] = {}
    for option, field in (("delay", "rtt_us"), ("jitter", "jitter_us")):
        if getattr(args, option) is not None:
            changes[field] = parse_duration_us(getattr(args, option), f"--{option}")
    if args.loss is not None:
        changes["loss"] = parse_loss(args.loss, "--loss")
    if not changes:
        raise ConfigError("wan set", "nothing to change", "give --delay, --jitter or --loss")
    return changes


def _print(links: dict[tuple[str, str], Link], *, as_json: bool) -> None:
    if as_json:
        arguments.print_json({"links": rows(links)})
        return
    from rich.console import Console

    Console().print(table_of(rows(links)))


def table_of(links: Iterable[Mapping[str, Any]]) -> Table:
    """A table of `rows`."""
    from rich.table import Table

    table = Table("zone", "zone", "round trip", "jitter", "loss")
    for link in links:
        cells = f"{link['rtt_us'] / 1e3:g} ms", f"+ 0 to {link['jitter_us'] / 1e3:g} ms", f"{link['loss']:.2%}"
        table.add_row(*link["zones"], *cells)
    return table
