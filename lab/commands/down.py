"""``python -m lab down``: ends a lab, or cleans up after one that was killed."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from typing import Any

from lab.commands import arguments
from lab.errors import LabError
from lab.reclaim import LabPlace, hold, holder, place_of, reclaim

_PATIENCE_S = 45.0
_POLL_S = 0.05


def add_parser(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("down", help="end a lab, or clean up after a killed one", description=__doc__)
    arguments.add_name(parser)
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """End it; 0 also when there is nothing to end."""
    place = place_of(args.name)
    pid = holder(place)
    if pid is not None:
        _end(place, pid)
    with hold(place):
        leftovers = place.state_dir.exists()
        processes = reclaim(place)
    place.supervisor_log.unlink(missing_ok=True)
    shutil.rmtree(place.kept_logs, ignore_errors=True)
    outcome = "ended" if pid is not None else "cleaned up" if leftovers else "absent"
    if args.json:
        arguments.print_json({"name": args.name, "outcome": outcome, "killed_processes": processes})
    else:
        more = f", {processes} processes were still running" if processes else ""
        print(f"lab {args.name}: {outcome}{more}", file=sys.stderr)
    return 0


def _end(place: LabPlace, pid: int) -> None:
    """Ask the lab's process to end, wait, and insist; the kernel frees the lock when it is gone."""
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE_S
    while holder(place) is not None:
        if time.monotonic() > deadline:
            print(f"lab {place.name} did not end within {_PATIENCE_S:.0f} s; killing it", file=sys.stderr)
            os.kill(pid, signal.SIGKILL)
            break
        time.sleep(_POLL_S)
    while holder(place) is not None:
        if time.monotonic() > deadline + _PATIENCE_S:
            msg = f"process {pid} of lab {place.name} cannot be ended"
            raise LabError(msg)
        time.sleep(_POLL_S)
