"""``python -m lab history FILE``: an audit log read by two checkers, from measurements to costs and from pods to nodes.

The log needs writes of agents, of the controller and of pods, with requests and answers, as a storm's policy keeps them
(lab/storm/audit-policy.yaml). Exit code 0 when nothing was violated, 1 when something was.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from kubekit.errors import ConfigError
from kubekit.runtime import EXIT_FAILED
from lab.commands import arguments
from lab.storm.audit import read
from lab.storm.history import check


def add_parser(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("history", help="what an audit log tells of costs and pods", description=__doc__)
    arguments.add_json(parser)
    parser.add_argument("file", type=Path, metavar="FILE", help="of the API server, one JSON line per event")
    parser.add_argument(
        "--lifetime", type=float, default=3700.0, help="of a measurement, seconds, with leeway (%(default)s)"
    )
    parser.add_argument("--gate", type=float, default=150.0, help="longest wait of a gated pod, seconds (%(default)s)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read the log; one JSON object on stdout with --json."""
    try:
        with args.file.open("rb") as file:
            events = read(file)
    except OSError as error:
        raise ConfigError("FILE", f"{args.file}: {error.strerror}", "name the API server's audit log") from error
    found = check(events, lifetime_s=args.lifetime, gate_s=args.gate)
    if args.json:
        arguments.print_json(found)
    else:
        console = Console()
        for name, value in msgspec.to_builtins(found).items():
            if name != "violations":
                console.print(f"{name}: {value}", highlight=False, soft_wrap=True)
        for text in found.violations:
            console.print(f"[red]violated[/] {text}", highlight=False, soft_wrap=True)
        console.print(f"{len(found.violations)} violations")
    return EXIT_FAILED if found.violations else 0
