"""``python -m lab wan``: prints and changes the links between the zones of a running lab, while packets flow."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from kubekit.errors import ConfigError
from lab.commands import arguments
from lab.errors import LabError
from lab.paths import lab_paths
from lab.reclaim import find_running_pid
from lab.topology import Link, parse_duration_us, parse_loss
from lab.wan.control import WanControl


def add_parser(commands: Any) -> None:
    """Register the subcommand with its two actions."""
    parser = commands.add_parser("wan", help="show or change the delays between zones", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="show|set")
    show_parser = actions.add_parser("show", help="all links between and inside zones")
    set_parser = actions.add_parser(
        "set", help="change a link in both directions; options that are left out keep their value"
    )
    for action_parser in (show_parser, set_parser):
        arguments.add_name(action_parser)
        arguments.add_json(action_parser)
    set_parser.add_argument(
        "zones", nargs=2, metavar="ZONE", help="the two zones; the same twice for the link inside it"
    )
    set_parser.add_argument("--delay", metavar="RTT", help="round trip, such as 500us or 30ms")
    set_parser.add_argument("--jitter", metavar="RTT", help="largest addition to a round trip")
    set_parser.add_argument("--loss", metavar="PERCENT", help="packets lost in each direction, such as 0.1%%")
    show_parser.set_defaults(run=run_show)
    set_parser.set_defaults(run=run_set)


def run_show(args: argparse.Namespace) -> int:
    _print_links(_connect(args.name).read_links(), as_json=args.json)
    return 0


def run_set(args: argparse.Namespace) -> int:
    """Change a link and print its new values."""
    changes = _read_changes(args)
    zone, other = args.zones
    link = _connect(args.name).change_link(zone, other, **changes)
    _print_links({(zone, other): link}, as_json=args.json)
    return 0


def describe_links(links: Mapping[tuple[str, str], Link]) -> list[dict[str, Any]]:
    """Return links as plain data, for JSON and `build_link_table`."""
    return [{"zones": list(pair), **msgspec.to_builtins(link)} for pair, link in links.items()]


def build_link_table(links: Iterable[Mapping[str, Any]]) -> Table:
    """Return a table of the result of `describe_links`."""
    table = Table("zone", "zone", "round trip", "jitter", "loss")
    for link in links:
        cells = f"{link['rtt_us'] / 1e3:g} ms", f"+ 0 to {link['jitter_us'] / 1e3:g} ms", f"{link['loss']:.2%}"
        table.add_row(*link["zones"], *cells)
    return table


def _connect(name: str) -> WanControl:
    """Return the control of a running lab. Raises LabError if it does not run."""
    paths = lab_paths(name)
    if find_running_pid(paths) is None:
        raise LabError(f"no lab named {name} is running; `python -m lab up` starts one")
    return WanControl(paths.wan_socket)


def _read_changes(args: argparse.Namespace) -> dict[str, float]:
    changes: dict[str, float] = {}
    for option, field in (("delay", "rtt_us"), ("jitter", "jitter_us")):
        if getattr(args, option) is not None:
            changes[field] = parse_duration_us(getattr(args, option), f"--{option}")
    if args.loss is not None:
        changes["loss"] = parse_loss(args.loss, "--loss")
    if not changes:
        raise ConfigError("wan set", "nothing to change", "give --delay, --jitter or --loss")
    return changes


def _print_links(links: dict[tuple[str, str], Link], *, as_json: bool) -> None:
    if as_json:
        arguments.print_json({"links": describe_links(links)})
    else:
        Console().print(build_link_table(describe_links(links)))
