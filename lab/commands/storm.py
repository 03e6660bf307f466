"""``python -m lab storm``: faults drawn from a seed on a lab with all our programs and load, then quiet, then invariants.

Exit code 0 when no invariant was broken, 1 when one was. A storm that is killed leaves what ``python -m lab down --name NAME`` or
the next storm of that name takes away.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

from rich.console import Console

from kubekit.errors import ConfigError
from kubekit.runtime import EXIT_FAILED, run_program
from lab.build import find_or_build
from lab.commands import arguments
from lab.netperf_install import find_or_fetch
from lab.reclaim import place_of
from lab.storm.faults import KINDS
from lab.storm.run import StormReport, run_storm
from lab.unprivileged import plan_this_command


def add_parser(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("storm", help="break everything at once, and judge what was kept", description=__doc__)
    arguments.add_topology(parser)
    arguments.add_json(parser)
    parser.add_argument("--name", default="storm", help="name of the storm's own lab (%(default)s)")
    parser.add_argument("--seed", type=int, help="which faults come when; by default another one each time")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults come (%(default)s)")
    parser.add_argument(
        "--kinds",
        default=",".join(KINDS),
        metavar="KIND,...",
        help="faults to draw from, by default all: "
        + "; ".join(f"{name} ({kind.text})" for name, kind in KINDS.items()),
    )
    parser.add_argument(
        "--journal", type=Path, metavar="FILE", help="one JSON line per fault; by default beside the lab's own files"
    )
    parser.add_argument(
        "--second-version",
        type=Path,
        metavar="DIR",
        help="checkout of another version of this project, from which the second controller runs, as during an upgrade",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the storm; one JSON object on stdout with --json; progress on stderr."""
    topology = arguments.read_topology(args.topology)
    if topology is None or topology.real_nodes:
        raise ConfigError("--topology", "a storm needs nodes, and those that kwok plays", "name another topology")
    arguments.check_minutes(args.minutes)
    kinds = tuple(args.kinds.split(","))
    if unknown := sorted(set(kinds) - set(KINDS)):
        raise ConfigError("--kinds", f"unknown: {', '.join(unknown)}", f"some of {', '.join(KINDS)}")
    if args.second_version is not None and not (args.second_version / "controller" / "__main__.py").exists():
        raise ConfigError("--second-version", f"{args.second_version} has no controller", "a checkout of this project")
    seed = random.SystemRandom().randrange(1 << 31) if args.seed is None else args.seed
    journal = args.journal or place_of(args.name).state_dir.with_suffix(f".{seed}.jsonl")
    launch = plan_this_command()
    find_or_build()
    find_or_fetch()
    launch.enter()
    say = arguments.told_since_now()
    found: list[StormReport] = []

    async def main() -> None:
        found.append(
            await run_storm(
                topology,
                name=args.name,
                seed=seed,
                minutes=args.minutes,
                journal_path=journal.absolute(),
                say=say,
                kinds=kinds,
                second_version=args.second_version.absolute() if args.second_version is not None else None,
            )
        )
        _print(found[0], as_json=args.json)

    code = run_program(main)
    return EXIT_FAILED if code == 0 and (not found or found[0].violations) else code


def _print(report: StormReport, *, as_json: bool) -> None:
    if as_json:
        arguments.print_json(report)
        return
    from rich.table import Table

    console = Console()
    table = Table("fault", "times", title=f"storm of seed {report.seed}")
    for kind, count in report.faults_by_kind.items():
        table.add_row(kind, str(count))
    console.print(table)
    recovery = report.recovery_s
    console.print(
        f"{report.faults} faults, {report.overlapping} of them before recovery from the last; well again after"
        f" {recovery.p50:.1f} s in the median, {recovery.p99:.1f} s p99, {recovery.max:.1f} s at worst"
    )
    for text in report.violation_list:
        console.print(f"[red]violated[/] {text}", highlight=False, soft_wrap=True)
    console.print(f"{report.violations} violations; journal: {report.journal}", soft_wrap=True)
