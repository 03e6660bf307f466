"""The command line of ``python -m agent``: runs the agent, removes what it wrote, or prints this node's links and capacity."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from types import ModuleType, SimpleNamespace
from typing import cast

from agent.config import AgentConfig, add_flags, read_config, set_up_logs
from kubekit.errors import ConfigError
from kubekit.runtime import EXIT_USAGE, run_program

_HELP_BY_COMMAND = {
    "run": "run the agent of this node",
    "capacity": "print the links of this node and its capacity as JSON",
}
_STAY, _ONCE = "stay", "once"
"""Values of --cleanup."""


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and check the command line, run the command, and return the exit code."""
    # The image has no docstrings, so the description cannot be the module's.
    description = "Run the agent of a node, or print the node's links and capacity."
    parser = argparse.ArgumentParser(prog="agent", description=description)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, help_ in _HELP_BY_COMMAND.items():
        command = commands.add_parser(name, help=help_, description=help_)
        add_flags(command)
        if name == "run":
            command.add_argument(
                "--cleanup",
                nargs="?",
                const=_STAY,
                choices=(_STAY, _ONCE),
                help="remove what the agent wrote on the node (with --bandwidth enforce also its limits); stay (default):"
                " then idle and be ready, for the rollout of a DaemonSet; once: then exit",
            )
    arguments = parser.parse_args(argv)
    try:
        set_up_logs(arguments)
        config = read_config(arguments, is_node_required=arguments.command == "run")
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    return _run_command(arguments, config)


def _run_command(arguments: argparse.Namespace, config: AgentConfig) -> int:
    # Late imports, so that a wrong flag is reported at once.
    with _minimal_pyroute2():
        from agent import capacity_command, program

    if arguments.command == "capacity":
        return run_program(lambda: capacity_command.show_capacity(config))
    if arguments.cleanup:
        return run_program(lambda: program.clean_up(config, stay=arguments.cleanup == _STAY))
    return run_program(lambda: program.run_agent(config))


@contextmanager
def _minimal_pyroute2() -> Iterator[None]:
    """Inside this context, imports of pyroute2's modules do not import the whole package, which saves memory.

    The package itself imports a module for each netlink protocol. One module that we need imports unittest.mock for a class that only
    pyroute2's tests use. If an upgrade of pyroute2 needs more, the unit test that runs the agent with this import fails.
    """
    spec = find_spec("pyroute2")
    if spec is None or {"pyroute2", "unittest"} & sys.modules.keys():
        yield
        return
    sys.modules["pyroute2"] = module_from_spec(spec)  # not executed; the path is enough to find submodules
    sys.modules["unittest"] = cast("ModuleType", SimpleNamespace(mock=SimpleNamespace(Mock=object)))
    try:
        yield
    finally:
        del sys.modules["unittest"]


if __name__ == "__main__":
    sys.exit(main())
