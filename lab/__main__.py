"""``python -m lab``: the command line. Exit codes: 0 done, 1 failed, 2 wrong usage or topology, 3 `status`: the lab does not run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from kubekit import logs
from kubekit.errors import ConfigError, KubekitError
from kubekit.runtime import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from lab.commands import demo, down, status, up, wan

# Addresses of labs (lab.network, lab.controlplane), which no proxy reaches.
_LAB_ADDRESS_RANGES = "198.18.0.0/15,100.64.0.0/10,10.96.0.0/16"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab",
        description="A Kubernetes cluster on one machine: a real control plane, nodes as network namespaces, and an"
        " emulated wide-area network between their zones. Pods are simulated by kwok, unless nodes have real kubelets.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (up, down, status, wan, demo):
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    args = build_parser().parse_args(argv)
    logs.configure()
    no_proxy = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
    os.environ["NO_PROXY"] = ",".join(filter(None, (no_proxy, _LAB_ADDRESS_RANGES)))
    try:
        return int(args.run(args))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KubekitError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
