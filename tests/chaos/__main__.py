"""``python -m tests.chaos``: injects faults drawn from a seed into a lab with all our programs, and checks invariants.

Invariants are checked in the API server's audit log, in objects and in /proc, without trusting our programs. The exit
code is 0 if none was broken, 1 if one was or the run failed, 2 for wrong arguments. ``python -m lab down --name NAME``
or the next run of that name removes the lab of a killed run.
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
from lab.build import find_or_build_binaries
from lab.commands import arguments
from lab.netperf_install import find_netperf_if_available
from lab.paths import lab_paths
from lab.unprivileged import plan_relaunch
from tests.chaos.run import ChaosReport, run_chaos


def main() -> int:
    """Run chaos; prints the report on stdout and progress on stderr. Raises ConfigError for an invalid topology."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_topology(parser)
    arguments.add_json(parser)
    parser.add_argument("--name", default="chaos", help="name of the run's own lab (%(default)s)")
    parser.add_argument("--seed", type=int, help="seed of the faults (default: random)")
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="minutes for which faults are injected (%(default)s)"
    )
    args = parser.parse_args()
    topology = arguments.read_topology(args.topology)
    if topology is None or topology.real_nodes:
        raise ConfigError("--topology", "has no nodes, or real ones", "name a topology with simulated nodes")
    seed = random.SystemRandom().randrange(1 << 31) if args.seed is None else args.seed
    launch = plan_relaunch("tests.chaos")
    # Builds and downloads need the network, which a process in a user namespace does not have.
    find_or_build_binaries()
    find_netperf_if_available()
    launch.exec_if_wrapped()
    reports: list[ChaosReport] = []

    async def run() -> None:
        logs_dir = lab_paths(args.name).state_dir.with_suffix(f".{seed}.logs")
        reports.append(await run_chaos(topology, name=args.name, seed=seed, minutes=args.minutes, logs_dir=logs_dir))
        if args.json:
            arguments.print_json(reports[0])
        else:
            print(yaml.safe_dump(msgspec.to_builtins(reports[0]), sort_keys=False), end="")

    code = run_program(run)
    return EXIT_FAILED if code == 0 and (not reports or reports[0].violations) else code


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        sys.exit(main())
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
