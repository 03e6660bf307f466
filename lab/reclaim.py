"""Removes processes, devices and files of a lab.

A lab holds a lock on ``<name>.lock`` while it lives; the kernel drops it when the process dies. So a free lock beside a state
directory means leftovers.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kubekit.errors import ConfigError
from lab.errors import LabError
from lab.network import remove_network
from lab.paths import LOGS, labs_dir
from lab.processes import kill_processes

_LOCK_PATIENCE_S = 0.3
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?\Z")


@dataclass(frozen=True)
class LabPlace:
    """Paths of a lab's files.

    Attributes:
        name: of the lab.
        state_dir: certificates, data, logs; exists while the lab lives, or after it was killed.
    """

    name: str
    state_dir: Path

    @property
    def lock(self) -> Path:
        """Held while the lab lives."""
        return self.state_dir.with_suffix(".lock")

    @property
    def description(self) -> Path:
        """File with the output of `up --json`, written when the lab is up."""
        return self.state_dir / "lab.json"

    @property
    def logs(self) -> Path:
        """Folder of its programs' logs, each ``NAME.log``."""
        return self.state_dir / LOGS

    @property
    def wan_socket(self) -> Path:
        """By which its emulated network is asked (lab.wan.control)."""
        return self.state_dir / "wan.sock"

    @property
    def supervisor_log(self) -> Path:
        """Output of the lab's own process when it runs in the background."""
        return self.state_dir.with_suffix(".log")

    @property
    def kept_logs(self) -> Path:
        """The programs' logs of a lab that ended by an error."""
        return self.state_dir.with_suffix(".logs")


def place_of(name: str, folder: Path | None = None) -> LabPlace:
    """Paths of the lab of this name.

    Raises:
        ConfigError: the name cannot be one.
    """
    if not _NAME.match(name):
        raise ConfigError("--name", f"{name!r} is no usable name", "lower-case letters, digits and -, up to 32")
    return LabPlace(name, (folder or labs_dir()) / name)


@contextmanager
def hold(place: LabPlace) -> Iterator[None]:
    """Hold the lab's lock.

    Raises:
        LabError: a lab of this name lives.
    """
    place.lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        with place.lock.open("a+") as file:
            if _lock(file.fileno()) and _is_current(file.fileno(), place.lock):
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
                try:
                    yield
                finally:
                    place.lock.unlink(missing_ok=True)
                return
        if time.monotonic() > deadline:
            msg = f"a lab named {place.name} is running; `python -m lab down --name {place.name}` ends it"
            raise LabError(msg)
        # A check whether the lab lives holds the lock for a moment.
        time.sleep(0.02)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_current(descriptor: int, path: Path) -> bool:
    """Whether the locked file is still the one of that name: the holder before us removed its own."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def holder(place: LabPlace) -> int | None:
    """The process that holds the lab's lock, ``None`` when the lab does not live."""
    try:
        with place.lock.open("r") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = file.read().strip()
                return int(text) if text.isdecimal() else None
    except FileNotFoundError:
        pass
    return None


def reclaim(place: LabPlace) -> int:
    """Kill the lab's processes, remove its devices and its state directory; return how many processes there were.

    Only call it while holding the lab's lock. Blocks for up to some seconds.
    """
    if not place.state_dir.exists():
        return 0
    killed = kill_processes(place.state_dir)
    remove_network(place.state_dir)
    shutil.rmtree(place.state_dir)
    return killed
