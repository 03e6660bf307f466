"""``python -m lab fetch``: gets everything a lab needs beforehand: builds the control plane, finds or fetches netperf.

With ``--nodes real`` also what real nodes run.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from lab.build import find_or_build
from lab.commands import arguments
from lab.debian import Missing
from lab.netperf_install import find_or_fetch
from lab.realnode.programs import find_or_build_node_programs
from lab.topology import REAL


def add_parser(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("fetch", help="build the control plane and fetch netperf, once", description=__doc__)
    arguments.add_json(parser)
    arguments.add_nodes(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Build and fetch what is not there yet; a missing netperf is said, not fatal: datagrams measure instead."""
    binaries = find_or_build()
    netperf = find_or_fetch()
    if args.nodes == REAL:
        find_or_build_node_programs()
    if args.json:
        found = {
            "version": binaries.version,
            "programs": {name: str(path) for name, path in binaries.paths.items()},
            "netperf": None if isinstance(netperf, Missing) else str(netperf.netperf),
        }
        arguments.print_json(found)
    if isinstance(netperf, Missing):
        print(f"{netperf.reason}; datagrams measure instead", file=sys.stderr)
    print(f"control plane {binaries.version} is ready", file=sys.stderr)
    return 0
