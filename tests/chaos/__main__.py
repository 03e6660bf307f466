"""``python -m tests.chaos``: faults drawn from a seed on a lab with all our programs and load, then quiet, then a check.

What is checked comes from the API server's audit log, from objects and from /proc, never from what our programs say of themselves.
Exit code 0 when no invariant was broken, 1 when one was. A run that is killed leaves what ``python -m lab down --name NAME`` or the
next run of that name takes away.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys

import msgspec
import yaml

from kubekit.errors import ConfigError
from kubekit.runtime import EXIT_FAILED, EXIT_USAGE, run_program
from lab.build import find_or_build_programs
from lab.commands import arguments
from lab.netperf_install import find_netperf_if_available
from lab.reclaim import lab_paths
from lab.unprivileged import plan_relaunch
from tests.chaos.run import ChaosReport, run_chaos


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
    return parser


def run(args: argparse.Namespace) -> int:
    """Run it; its report on stdout, what happens on stderr."""
    topology = arguments.read_topology(args.topology)
    if topology is None or topology.real_nodes:
        raise ConfigError("--topology", "nodes are needed, and those that kwok plays", "name another topology")
    seed = random.SystemRandom().randrange(1 << 31) if args.seed is None else args.seed
    launch = plan_relaunch("tests.chaos")
    find_or_build_programs()
    find_netperf_if_available()
    launch.exec_if_wrapped()
    found: list[ChaosReport] = []

    async def main() -> None:
        kept = lab_paths(args.name).state_dir.with_suffix(f".{seed}.logs")
        found.append(await run_chaos(topology, name=args.name, seed=seed, minutes=args.minutes, kept=kept))
        if args.json:
            arguments.print_json(found[0])
        else:
            print(yaml.safe_dump(msgspec.to_builtins(found[0]), sort_keys=False), end="")

    code = run_program(main)
    return EXIT_FAILED if code == 0 and (not found or found[0].violations) else code


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        sys.exit(run(build_parser().parse_args()))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
