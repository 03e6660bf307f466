"""Finds the processes of a lab, also of a killed one, by `LAB_VARIABLE` in their environment."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil

LAB_VARIABLE = "NETAWARE_LAB"
"""Environment variable with the lab's state directory."""
_POLL_S, _KILL_TIMEOUT_S = 0.02, 5.0


def find_processes(state_dir: Path) -> list[psutil.Process]:
    """Running processes of the lab at ``state_dir``, except this one."""
    return [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get(LAB_VARIABLE) == str(state_dir) and process.pid != os.getpid()
    ]


def kill_processes(state_dir: Path) -> int:
    """Send SIGKILL to all processes of a lab, wait for up to 5 s until they ended, and return their number."""
    killed: set[psutil.Process] = set()
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    # A process has no environment for a moment during execve; the next iteration finds it.
    while (processes := find_processes(state_dir)) or any(map(_is_running, killed)):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        killed |= set(processes)
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    return len(killed)


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
