"""``python -m agent``: runs the agent, or shows what it finds on this node."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from agent.config import AgentConfig, add_run_flags, read_config, set_up_logs
from kubekit.errors import ConfigError
from kubekit.runtime import EXIT_USAGE, run_program

_COMMANDS = {
    "run": "run the agent of this node",
    "capacity": "show links and the capacity that follows from them",
    "bandwidth": "show whether pods are kept to their bandwidth annotations",
}
_STAY, _ONCE = "stay", "once"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, check everything, run; return the exit code."""
    parser = argparse.ArgumentParser(prog="agent", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, help_ in _COMMANDS.items():
        command = commands.add_parser(name, help=help_, description=help_)
        add_run_flags(command)
        if name == "run":
            command.add_argument(
                "--cleanup",
                nargs="?",
                const=_STAY,
                choices=(_STAY, _ONCE),
                help="take back what the agent wrote; then stay, idle and ready, so that a DaemonSet's rollout goes on from"
                " node to node, or with once end",
            )
        else:
            command.add_argument("--json", action="store_true", help="for machines")
    parsed = parser.parse_args(arguments)
    try:
        set_up_logs(parsed)
        config = read_config(parsed, need_node=parsed.command == "run")
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    return _run(parsed, config)


def _run(parsed: argparse.Namespace, config: AgentConfig) -> int:
    # Imported late, so that a wrong flag is reported at once.
    with _left_out("psutil"):  # 1 MB, which pyroute2 imports if it is installed, for a command of its own
        from agent import cli, program

    if parsed.command == "capacity":
        return run_program(lambda: cli.show_capacity(config, as_json=parsed.json))
    if parsed.command == "bandwidth":
        return run_program(lambda: cli.show_bandwidth(config, as_json=parsed.json))
    if parsed.cleanup:
        return run_program(lambda: program.clean_up(config, stay=parsed.cleanup == _STAY))
    return run_program(lambda: program.run_agent(config))


@contextmanager
def _left_out(module: str) -> Iterator[None]:
    """Make imports do without an optional module meanwhile; it can be imported later."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment] # as if it were not installed
    try:
        yield
    finally:
        del sys.modules[module]


if __name__ == "__main__":
    sys.exit(main())
