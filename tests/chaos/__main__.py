"""``python -m tests.chaos``: faults drawn from a seed on a lab with all our programs and load, then quiet, then a check.

What is checked comes from the API server's audit log, from objects and from /proc, never from what our programs say of themselves.
Exit code 0 when no invariant was broken, 1 when one was. A run that is killed leaves what ``python -m lab down --name NAME`` or the
next run of that name takes away.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from kubekit import logs
from kubekit.errors import ConfigError
from kubekit.runtime import EXIT_FAILED, EXIT_USAGE, run_program
from lab.build import find_or_build
from lab.commands import arguments
from lab.netperf_install import find_or_fetch
from lab.reclaim import place_of
from lab.unprivileged import plan_this_command
from tests.chaos.faults import KINDS
from tests.chaos.run import ChaosReport, run_chaos

_LONGEST_MINUTES = 24 * 60.0


def build_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_topology(parser)
    arguments.add_json(parser)
    parser.add_argument("--name", default="chaos", help="name of the run's own lab (%(default)s)")
    parser.add_argument("--seed", type=int, help="which faults come when; by default another one each time")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults come (%(default)s)")
    told = "; ".join(f"{name} ({kind.text})" for name, kind in KINDS.items())
    parser.add_argument(
        "--kinds", default=",".join(KINDS), metavar="KIND,...", help=f"faults to draw from, by default all: {told}"
    )
    parser.add_argument(
        "--journal", type=Path, metavar="FILE", help="one JSON line per fault; by default beside the lab's own files"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Run it; one JSON object on stdout with --json; progress on stderr."""
    topology = arguments.read_topology(args.topology)
    if topology is None or topology.real_nodes:
        raise ConfigError("--topology", "nodes are needed, and those that kwok plays", "name another topology")
    if not 0 < args.minutes <= _LONGEST_MINUTES:
        raise ConfigError("--minutes", f"{args.minutes:g} is out of range", f"above 0, up to {_LONGEST_MINUTES:g}")
    kinds = tuple(args.kinds.split(","))
    if unknown := sorted(set(kinds) - set(KINDS)):
        raise ConfigError("--kinds", f"unknown: {', '.join(unknown)}", f"some of {', '.join(KINDS)}")
    seed = random.SystemRandom().randrange(1 << 31) if args.seed is None else args.seed
    journal = args.journal or place_of(args.name).state_dir.with_suffix(f".{seed}.jsonl")
    launch = plan_this_command("tests.chaos")
    find_or_build()
    find_or_fetch()
    launch.enter()
    say = arguments.told_since_now()
    found: list[ChaosReport] = []

    async def main() -> None:
        report = await run_chaos(
            topology,
            name=args.name,
            faults_of=(seed, args.minutes),
            kinds=kinds,
            journal_path=journal.absolute(),
            say=say,
        )
        found.append(report)
        _print(report, as_json=args.json)

    code = run_program(main)
    return EXIT_FAILED if code == 0 and (not found or found[0].violations) else code


def _print(report: ChaosReport, *, as_json: bool) -> None:
    if as_json:
        arguments.print_json(report)
        return
    for kind, count in report.faults_by_kind.items():
        print(f"{count:5} {kind}")
    recovery = report.recovery_s
    print(
        f"{report.faults} faults of seed {report.seed}; well again after {recovery.p50:.1f} s in the median,"
        f" {recovery.p99:.1f} s p99, {recovery.max:.1f} s at worst"
    )
    for text in report.violation_list:
        print(f"violated: {text}")
    print(f"{report.violations} violations; journal: {report.journal}")


if __name__ == "__main__":
    logs.set_up()
    try:
        sys.exit(run(build_parser().parse_args()))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
