"""``python -m tests.scale``: ten thousand nodes in a hundred zones on the real API server, our controller, and what it takes.

There are no kubelets, agents are simulated, everything else is real. Needs no privileges, 6 GB of memory, and some minutes to fill the
cluster before the time that is measured begins. Prints one JSON object; exit code 0 when the Lease never changed hands, else 1.
"""

from __future__ import annotations

import argparse
import sys

from kubekit import logs
from kubekit.runtime import EXIT_FAILED, run_program
from lab.build import find_or_build_programs
from lab.commands import arguments
from tests.scale.figures import ScaleReport
from tests.scale.populate import Sizes
from tests.scale.run import run_scale


def main() -> int:
    """Run it; progress on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__)
    parser.add_argument("--name", default="scale", help="name of the run's own lab (%(default)s)")
    for field in Sizes.__struct_fields__:
        default = getattr(Sizes(), field)
        parser.add_argument(f"--{field.replace('_', '-')}", type=type(default), default=default, help="%(default)s")
    args = parser.parse_args()
    sizes = Sizes(**{field: getattr(args, field) for field in Sizes.__struct_fields__})
    find_or_build_programs()
    found: list[ScaleReport] = []

    async def run() -> None:
        found.append(await run_scale(sizes, name=args.name, say=arguments.make_progress_printer()))
        arguments.print_json(found[0])

    code = run_program(run)
    return EXIT_FAILED if code == 0 and (not found or found[0].lease_transitions) else code


if __name__ == "__main__":
    logs.configure()
    sys.exit(main())
