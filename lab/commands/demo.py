"""``python -m lab demo``: boots a lab, measures latency, places an application twice, prints tables, and removes the lab."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec
from rich.console import Console

from kubekit.errors import ConfigError
from kubekit.runtime import run_program
from lab import report
from lab.build import find_or_build_binaries
from lab.cluster import find_or_build_node_binaries_if_needed
from lab.commands import arguments
from lab.demo import OVERLAY_BY_PLACEMENT, run_demo
from lab.netperf_install import find_netperf_if_available
from lab.pod_installation import find_or_build_images
from lab.unprivileged import plan_relaunch


def add_parser(commands: Any) -> None:
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
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo; print tables, or one JSON object, on stdout, and progress on stderr."""
    topology = arguments.read_topology(args.topology, args.nodes)
    if topology is None:
        raise ConfigError("--topology", "the demo needs nodes", "name a topology")
    if args.seed is not None and args.seed < 1:
        raise ConfigError("--seed", f"{args.seed} is below 1", "write a number from 1")
    launch = plan_relaunch()
    # These fill the cache: a lab in a user namespace has no Internet.
    find_or_build_binaries()
    find_netperf_if_available()
    find_or_build_node_binaries_if_needed(topology)
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
        else:
            report.print_report(Console(), result, {node.name: node.zone for node in topology.nodes})

    return run_program(main)
