"""``python -m tests.scale``: measures our controller with ten thousand nodes in a hundred zones on a real API server.

There are no kubelets, and agents are simulated. Needs 6 GB of memory, no privileges, and some minutes to fill the
cluster before the measurement. Prints one JSON object; the exit code is 0 if the Lease had no transitions, else 1.
"""

from __future__ import annotations

import argparse
import sys

from kubekit import logs
from kubekit.runtime import EXIT_FAILED, run_program
from lab.build import find_or_build_binaries
from lab.commands import arguments
from tests.scale.figures import ScaleReport
from tests.scale.populate import Sizes
from tests.scale.run import run_scale


def main() -> int:
    """Run the measurement; prints progress on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__)
    parser.add_argument("--name", default="scale", help="name of the run's own lab (%(default)s)")
    for field in Sizes.__struct_fields__:
        default = getattr(Sizes(), field)
        parser.add_argument(f"--{field.replace('_', '-')}", type=type(default), default=default, help="%(default)s")
    args = parser.parse_args()
    sizes = Sizes(**{field: getattr(args, field) for field in Sizes.__struct_fields__})
    find_or_build_binaries()
    reports: list[ScaleReport] = []

    async def run() -> None:
        reports.append(await run_scale(sizes, name=args.name, print_progress=arguments.make_progress_printer()))
        arguments.print_json(reports[0])

    code = run_program(run)
    return EXIT_FAILED if code == 0 and (not reports or reports[0].lease_transitions) else code


if __name__ == "__main__":
    logs.configure()
    sys.exit(main())
