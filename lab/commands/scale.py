"""``python -m lab scale``: ten thousand nodes in a hundred zones on the real API server, our controller, and what it takes.

Kubelets are played, agents are simulated, everything else is real, a Prometheus that scrapes a tenth of the agents too. Needs no
privileges, 6 GB of memory, and some minutes to fill the cluster before the time that is measured begins. Exit code 0 when the Lease never changed hands
and kubelets, agents and viewers lived to the end, else 1: the figures are printed all the same.
"""

from __future__ import annotations

import argparse
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape

from kubekit.errors import ConfigError
from kubekit.runtime import EXIT_FAILED, run_program
from lab.build import find_or_build
from lab.commands import arguments
from lab.scale.figures import Latency, ScaleReport
from lab.scale.populate import Sizes
from lab.scale.run import run_scale

_DEFAULTS = Sizes()
_LIMITS = {
    "zones": (2, 1000),
    "nodes_per_zone": (1, 1000),
    "pods": (0, 200_000),
    "groups": (0, 5000),
    "viewers": (0, 50),
}


def add_parser(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("scale", help="a cluster of 10,000 nodes, and what it takes", description=__doc__)
    arguments.add_json(parser)
    parser.add_argument("--name", default="scale", help="name of the run's own lab (%(default)s)")
    parser.add_argument("--zones", type=int, default=_DEFAULTS.zones, help="zones (%(default)s)")
    parser.add_argument(
        "--nodes-per-zone", type=int, default=_DEFAULTS.nodes_per_zone, help="nodes in each (%(default)s)"
    )
    parser.add_argument("--pods", type=int, default=_DEFAULTS.pods, help="all pods, agents included (%(default)s)")
    parser.add_argument(
        "--groups", type=int, default=_DEFAULTS.groups, help="AppGroups of eleven workloads (%(default)s)"
    )
    parser.add_argument("--viewers", type=int, default=_DEFAULTS.viewers, help="open pages (%(default)s)")
    parser.add_argument("--minutes", type=float, default=_DEFAULTS.minutes, help="how long is measured (%(default)s)")
    parser.set_defaults(run=run)


def read_sizes(args: argparse.Namespace) -> Sizes:
    """The sizes asked for. Raises ConfigError when one is out of range."""
    for field, (least, most) in _LIMITS.items():
        value = getattr(args, field)
        if not least <= value <= most:
            raise ConfigError(f"--{field.replace('_', '-')}", f"{value} is out of range", f"{least} to {most}")
    arguments.check_minutes(args.minutes)
    return Sizes(**{field: getattr(args, field) for field in Sizes.__struct_fields__})


def run(args: argparse.Namespace) -> int:
    """Run it; one JSON object on stdout with --json; progress on stderr."""
    sizes = read_sizes(args)
    find_or_build()
    say = arguments.told_since_now()
    found: list[ScaleReport] = []

    async def main() -> None:
        found.append(await run_scale(sizes, name=args.name, say=say))
        _print(found[0], as_json=args.json)

    code = run_program(main)
    return EXIT_FAILED if code == 0 and (not found or found[0].lease_transitions or found[0].failures) else code


def _print(report: ScaleReport, *, as_json: bool) -> None:
    if as_json:
        arguments.print_json(report)
        return
    from rich.table import Table

    console = Console()
    sizes = report.sizes
    table = Table(
        "API call", "calls", "p50", "p99", "objective",
        title=f"{sizes.nodes} nodes in {sizes.zones} zones, {sizes.pods} pods, {report.seconds / 60:.1f} minutes",
    )  # fmt: skip
    for name, call in report.calls.items():
        table.add_row(name, str(call.count), _ms(call.p50), _ms(call.p99), _verdict(call))
    console.print(table)
    for failure in report.failures:
        console.print(f"[red]failed while it was measured:[/] {escape(failure)}", highlight=False, soft_wrap=True)
    if report.failures:
        console.print("the figures are not those of a whole cluster", highlight=False, soft_wrap=True)
    rest = msgspec.to_builtins(report)
    for name in ("sizes", "calls", "failures"):
        rest.pop(name)
    for name, value in rest.items():
        console.print(f"{name}: {value}", highlight=False, soft_wrap=True)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f} ms"


def _verdict(call: Latency) -> str:
    if call.objective is None or call.ok is None:
        return "-"
    return f"{call.objective:g} s: {'met' if call.ok else '[red]missed[/]'}"
