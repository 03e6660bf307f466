"""``python -m lab fetch``: gets everything a lab needs beforehand: builds the control plane, finds or fetches netperf.

With ``--nodes real`` also what real nodes run. With ``--tests`` all that tests need: that too, Prometheus to try rules on,
Helm, actionlint, and Chromium to try the page in.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from lab.build import find_or_build
from lab.chromium_install import find_or_fetch as find_or_fetch_chromium
from lab.commands import arguments
from lab.debian import Missing
from lab.errors import UnsupportedError
from lab.netperf_install import find_or_fetch
from lab.realnode.programs import CNI_CHECKSUMS, find_or_build_node_programs
from lab.tool_builds import ACTIONLINT, HELM, PROMETHEUS, find_or_build_tools, find_or_fetch_operator_definitions
from lab.topology import REAL


def add_parser(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("fetch", help="build the control plane and fetch netperf, once", description=__doc__)
    arguments.add_json(parser)
    arguments.add_nodes(parser)
    parser.add_argument(
        "--tests", action="store_true", help="also what tests need: real nodes, Prometheus, Helm, actionlint, Chromium"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Build and fetch what is not there yet; a missing netperf is said, not fatal: the echo prober stands in."""
    binaries = find_or_build()
    netperf = find_or_fetch()
    if args.nodes == REAL:
        find_or_build_node_programs()
    if args.tests:
        _fetch_for_tests()
    if args.json:
        found = {
            "version": binaries.version,
            "programs": {name: str(path) for name, path in binaries.paths.items()},
            "netperf": None if isinstance(netperf, Missing) else str(netperf.netperf),
        }
        arguments.print_json(found)
    if isinstance(netperf, Missing):
        print(f"{netperf.reason}; the built-in echo prober stands in", file=sys.stderr)
    print(f"control plane {binaries.version} is ready", file=sys.stderr)
    return 0


def _fetch_for_tests() -> None:
    try:
        find_or_build_node_programs(CNI_CHECKSUMS)
    except UnsupportedError as error:
        print(f"{error}; tests on real nodes are skipped", file=sys.stderr)
    for module in (PROMETHEUS, HELM, ACTIONLINT):
        find_or_build_tools(module)
    find_or_fetch_operator_definitions()
    chromium = find_or_fetch_chromium()
    if isinstance(chromium, Missing):
        print(f"{chromium.reason}; tests of the page are skipped", file=sys.stderr)
