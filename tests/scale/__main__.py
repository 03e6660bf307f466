"""``python -m tests.scale``: ten thousand nodes in a hundred zones on the real API server, our controller, and what it takes.

Kubelets are played, agents are simulated, everything else is real. Needs no privileges, 6 GB of memory, and some minutes to fill the
cluster before the time that is measured begins. Exit code 0 when the Lease never changed hands and kubelets and agents lived to the
end, else 1: the figures are printed all the same.
"""

from __future__ import annotations

import argparse
import sys

import msgspec

from kubekit import logs
from kubekit.runtime import EXIT_FAILED, run_program
from lab.build import find_or_build
from lab.commands import arguments
from tests.scale.figures import ScaleReport
from tests.scale.populate import Sizes
from tests.scale.run import run_scale


def build_parser() -> argparse.ArgumentParser:
    """The command's options."""
    sizes = Sizes()
    parser = argparse.ArgumentParser(
        prog="python -m tests.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_json(parser)
    parser.add_argument("--name", default="scale", help="name of the run's own lab (%(default)s)")
    for option, default, what in (
        ("--zones", sizes.zones, "zones"),
        ("--nodes-per-zone", sizes.nodes_per_zone, "nodes in each"),
        ("--pods", sizes.pods, "all pods, agents included"),
        ("--groups", sizes.groups, "AppGroups of eleven workloads"),
    ):
        parser.add_argument(option, type=int, default=default, help=f"{what} (%(default)s)")
    parser.add_argument("--minutes", type=float, default=sizes.minutes, help="how long is measured (%(default)s)")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run it; one JSON object on stdout with --json; progress on stderr."""
    sizes = Sizes(**{field: getattr(args, field) for field in Sizes.__struct_fields__})
    find_or_build()
    say = arguments.told_since_now()
    found: list[ScaleReport] = []

    async def main() -> None:
        report = await run_scale(sizes, name=args.name, say=say)
        found.append(report)
        if args.json:
            arguments.print_json(report)
            return
        for name, value in msgspec.to_builtins(report).items():
            print(f"{name}: {value}")

    code = run_program(main)
    return EXIT_FAILED if code == 0 and (not found or found[0].lease_transitions or found[0].failures) else code


if __name__ == "__main__":
    logs.set_up()
    sys.exit(run(build_parser().parse_args()))
