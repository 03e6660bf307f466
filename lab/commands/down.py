"""``python -m lab down``: stops a lab, or cleans up after a killed one."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from lab.commands import arguments
from lab.errors import LabError
from lab.paths import LabPaths, lab_paths
from lab.reclaim import find_running_pid, lock_lab, reclaim

_STOP_TIMEOUT_S = 45.0
_POLL_S = 0.05


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("down", help="stop a lab, or clean up after a killed one", description=__doc__)
    arguments.add_name(parser)
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Stop the lab and remove its files. Also succeeds if the lab does not exist."""
    paths = lab_paths(args.name)
    pid = find_running_pid(paths)
    if pid is not None:
        _stop_process(paths, pid)
    with lock_lab(paths):
        has_leftovers = paths.state_dir.exists()
        killed_count = reclaim(paths)
        paths.supervisor_log.unlink(missing_ok=True)
        shutil.rmtree(paths.kept_logs, ignore_errors=True)
    outcome = "ended" if pid is not None else "cleaned up" if has_leftovers else "absent"
    if args.json:
        arguments.print_json({"name": args.name, "outcome": outcome, "killed_processes": killed_count})
    else:
        killed = f", killed {killed_count} processes" if killed_count else ""
        print(f"lab {args.name}: {outcome}{killed}", file=sys.stderr)
    return 0


def _stop_process(paths: LabPaths, pid: int) -> None:
    """Send SIGTERM, and SIGKILL after `_STOP_TIMEOUT_S`; return when the process has released the lab's lock."""
    _send_signal(pid, signal.SIGTERM)
    if _wait_until_ended(paths):
        return
    print(f"lab {paths.name} did not end within {_STOP_TIMEOUT_S:.0f} s; killing it", file=sys.stderr)
    _send_signal(pid, signal.SIGKILL)
    if not _wait_until_ended(paths):
        raise LabError(f"process {pid} of lab {paths.name} did not end after SIGKILL")


def _wait_until_ended(paths: LabPaths) -> bool:
    """Wait up to `_STOP_TIMEOUT_S`; return whether the process has released the lab's lock."""
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    while (is_running := find_running_pid(paths) is not None) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    return not is_running


def _send_signal(pid: int, signal_number: signal.Signals) -> None:
    # The lab may have ended since its lock was checked.
    with suppress(ProcessLookupError):
        os.kill(pid, signal_number)
