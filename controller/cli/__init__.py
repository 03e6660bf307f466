"""`kubectl netaware`: shows the network, placements and findings in a terminal.

`main` is the console script ``kubectl-netaware``, which kubectl finds on PATH and runs as ``kubectl netaware``. Nothing
else is imported here, so that help answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; see ``kubectl netaware --help`` for what the codes mean."""
    from controller.cli.run import run

    return run(sys.argv[1:] if argv is None else argv)
