"""``python -m agent``: run the agent, or show what it sees on this node."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from agent.config import add_run_flags, read_config, set_up_logs
from kubekit.errors import ConfigError
from kubekit.runtime import EXIT_USAGE, run_program


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, check everything, run; return the exit code."""
    parser = argparse.ArgumentParser(prog="agent", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run the agent of this node")
    add_run_flags(run)
    run.add_argument("--cleanup", action="store_true", help="take back what the agent wrote on its node, and end")
    parsed = parser.parse_args(arguments)
    try:
        set_up_logs(parsed)
        config = read_config(parsed)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    # Imported late: a wrong flag should be told at once, and the tables need none of the program's parts.
    from agent.program import clean_up, run_agent

    if parsed.cleanup:
        return run_program(lambda: clean_up(config))
    return run_program(lambda: run_agent(config))


if __name__ == "__main__":
    sys.exit(main())
