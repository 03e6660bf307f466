"""``python -m lab demo``: boots a lab, measures latency, places an application twice, prints tables, and removes the lab."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from kubekit.errors import ConfigError
from kubekit.runtime import run_program
from lab import report
from lab.build import find_or_build_programs
from lab.cluster import find_or_build_binaries_for
from lab.commands import arguments
from lab.demo import OVERLAY_BY_PLACEMENT, run_demo
from lab.netperf_install import find_netperf_if_available
from lab.pod_installation import find_or_build_images
from lab.topology import Topology
from lab.unprivileged import plan_relaunch

_PICTURE_WIDTH = 96


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "demo", help="measure latency, compute costs, place pods, and show the gain", description=__doc__
    )
    arguments.add_topology(parser)
    arguments.add_nodes(parser)
    arguments.add_json(parser)
    parser.add_argument("--name", default="demo", help="name of the demo's own lab (%(default)s)")
    parser.add_argument(
        "--placement",
        choices=OVERLAY_BY_PLACEMENT,
        default="extender",
        help="who places pods: a scheduler with our extender, or the default scheduler with node affinity (%(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="create pods in a random order and, on real nodes, send requests at random times",
    )
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="also save the tables as a picture")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo; print tables, or one JSON object, on stdout, and progress on stderr."""
    topology = arguments.read_topology(args.topology, args.nodes)
    if topology is None:
        raise ConfigError("--topology", "the demo needs nodes", "name a topology")
    if args.json and args.picture is not None:
        raise ConfigError("--picture", "--json prints no tables", "use one of them")
    if args.seed is not None and args.seed < 1:
        raise ConfigError("--seed", f"{args.seed} is below 1", "write a number from 1")
    launch = plan_relaunch()
    # These fill the cache: a lab in a user namespace has no Internet.
    find_or_build_programs()
    find_netperf_if_available()
    find_or_build_binaries_for(topology)
    images = find_or_build_images() if topology.real_nodes else None
    launch.exec_if_wrapped()
    print_progress = arguments.make_progress_printer()

    async def main() -> None:
        result = await run_demo(
            topology,
            name=args.name,
            placement=args.placement,
            print_progress=print_progress,
            images=images,
            seed=args.seed,
        )
        if args.json:
            print(msgspec.json.format(msgspec.json.encode(result), indent=2).decode(), flush=True)
            return
        console = Console(record=args.picture is not None, width=_PICTURE_WIDTH if args.picture else None)
        print_report(console, result, topology)
        if args.picture is not None:
            args.picture.parent.mkdir(parents=True, exist_ok=True)
            args.picture.write_text(console.export_svg(title="make demo", code_format=_svg_format_without_web_fonts()))

    return run_program(main)


def _svg_format_without_web_fonts() -> str:
    """Rich's SVG format without the fonts that a browser would fetch from a public server."""
    # Imported here, because the module is private: if it moves, only --picture fails.
    from rich._export_format import CONSOLE_SVG_FORMAT

    return re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def print_report(console: Console, result: report.DemoReport, topology: Topology) -> None:
    """Print the demo's tables."""
    report.print_matrix(console, result.matrix)
    report.print_placements(console, result, {node.name: node.zone for node in topology.nodes})
    if result.application is not None:
        report.print_application(console, result.application, result.images or {})
    if result.prober != "netperf":
        console.print("[yellow]netperf is not available: datagrams measured instead.[/]")
    report.print_summary(console, result)
