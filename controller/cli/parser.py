"""Parses a command line, with kubectl's flags before or after the subcommand."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from controller.cli.command import Command
from controller.cli.commands import COMMAND_BY_ALIAS, HELP_BY_COMMAND, load_command
from kubekit.version import installed_version
from netperf.contract import NETAWARE_NAMESPACE

DESCRIPTION_WIDTH = 100
FORMATS = ("table", "json", "yaml")
DESCRIPTION = (
    "Shows the cluster's network as the scheduler sees it: latency, costs, placement, bandwidth, and findings."
)
EPILOG = """\
examples:
  kubectl netaware status                           all parts and findings, on one screen
  kubectl netaware explain pod NAME -n shop         why a pod is on its node, and which nodes it could be on
  kubectl netaware graph online-boutique -n shop    an AppGroup, and the cost of each dependency
  kubectl netaware costs --percentile p90           round trips between zones, in milliseconds

exit codes:
  0    success
  1    failure: the cluster cannot be reached, refuses, or has no such object
  2    wrong usage or configuration
  3    status and diagnose with --exit-code: there are findings worse than info
  130  interrupted

environment:
  KUBECONFIG            as for kubectl
  NETAWARE_PROMETHEUS   default of --prometheus
  NO_COLOR              no colours
  COLUMNS               width of the output
"""

_DEFAULTS: Mapping[str, Any] = {
    "namespace": "",
    "all_namespaces": False,
    "context": "",
    "kubeconfig": "",
    "output": "table",
    "prometheus": "",
    "netaware_namespace": NETAWARE_NAMESPACE,
    "timeout": 15.0,
    "exit_code": False,
}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; exits for help and with 2 for wrong usage, as argparse does."""
    # Defaults are set here, because a subcommand's own defaults would overwrite flags before it.
    return build_parser(argv).parse_args(argv or ["--help"], argparse.Namespace(**_DEFAULTS))


def build_parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser, with arguments only of commands that ``argv`` names, because importing all commands is slow."""
    shared = _build_shared_flags()
    parser = argparse.ArgumentParser(
        prog="kubectl netaware",
        description=DESCRIPTION,
        epilog=EPILOG,
        parents=[shared],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kubectl-netaware {installed_version()}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", required=True)
    for name, help_text in HELP_BY_COMMAND.items():
        aliases = [alias for alias, command_name in COMMAND_BY_ALIAS.items() if command_name == name]
        if not {name, *aliases} & set(argv):
            subparsers.add_parser(name, aliases=aliases, help=help_text)
            continue
        command = load_command(name)
        subparser = subparsers.add_parser(
            name,
            aliases=aliases,
            help=help_text,
            description=textwrap.fill(command.description, DESCRIPTION_WIDTH),
            epilog=_format_examples(command),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[shared],
            allow_abbrev=False,
        )
        command.configure(subparser)
    return parser


def _format_examples(command: Command) -> str:
    width = max(len(arguments) for arguments, _ in command.examples) + 3
    lines = [f"  kubectl netaware {arguments:<{width}}{effect}" for arguments, effect in command.examples]
    return "\n".join(["examples:", *lines])


def _build_shared_flags() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS, allow_abbrev=False)
    group = shared.add_argument_group("cluster")
    group.add_argument("-n", "--namespace", metavar="NAME", help="namespace of AppGroups and pods")
    group.add_argument("-A", "--all-namespaces", action="store_true", help="all namespaces")
    group.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    group.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig")
    group.add_argument(
        "--netaware-namespace", metavar="NAME", help=f"namespace of netaware (default: {NETAWARE_NAMESPACE})"
    )
    group.add_argument("--prometheus", metavar="URL", help="Prometheus, for traffic, usage and verdicts on limits")
    group.add_argument(
        "--timeout", type=float, metavar="SECONDS", help=f"time limit of a request (default: {_DEFAULTS['timeout']:g})"
    )
    group = shared.add_argument_group("output")
    group.add_argument("-o", "--output", choices=FORMATS, help="format (default: table)")
    return shared
