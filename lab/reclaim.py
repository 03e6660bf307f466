"""Locks a lab, and removes its processes, devices and files.

A lab locks ``<name>.lock`` while it runs; the kernel releases the lock when the process ends. So a state directory beside a free lock
is left over from a killed lab.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from lab.errors import LabError
from lab.network import remove_network
from lab.paths import LabPaths
from lab.programs import kill_processes

_LOCK_TIMEOUT_S, _POLL_S = 0.3, 0.02


@contextmanager
def lock_lab(paths: LabPaths) -> Iterator[None]:
    """Hold the lab's lock for the block. Raises LabError if a lab of this name runs."""
    paths.lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        with paths.lock.open("a+") as file:
            if _try_lock(file.fileno(), fcntl.LOCK_EX) and _is_same_file(file.fileno(), paths.lock):
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
                try:
                    yield
                finally:
                    paths.lock.unlink(missing_ok=True)
                return
        if time.monotonic() > deadline_s:
            raise LabError(f"a lab named {paths.name} is running; `python -m lab down --name {paths.name}` ends it")
        # `find_running_pid` in another process holds a shared lock for a moment.
        time.sleep(_POLL_S)


def _try_lock(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same_file(descriptor: int, path: Path) -> bool:
    """Whether ``path`` is still the open file, because the previous holder of the lock removes the file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def find_running_pid(paths: LabPaths) -> int | None:
    """Return the process id of the running lab; None if the lab does not run."""
    try:
        with paths.lock.open("r") as file:
            while not _try_lock(file.fileno(), fcntl.LOCK_SH):
                # A lab locks the file a moment before it writes its process id; until then the file has that of a killed lab, or none.
                file.seek(0)
                if (text := file.read()).isdecimal() and psutil.pid_exists(int(text)):
                    return int(text)
                time.sleep(_POLL_S)
    except FileNotFoundError:
        pass
    return None


def reclaim(paths: LabPaths) -> int:
    """Kill the lab's processes, remove its devices and state directory, and return the number of killed processes.

    The caller holds the lab's lock. Blocks for up to several seconds.
    """
    if not paths.state_dir.exists():
        return 0
    killed = kill_processes(paths.state_dir)
    remove_network(paths.state_dir)
    shutil.rmtree(paths.state_dir)
    return killed
