"""Finds the processes of a lab, also after the lab itself has ended.

A pid alone is not enough: the kernel hands it out again. A record therefore holds the start time too, and each process
carries the lab's state directory in its environment, so that children of children are found as well.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.paths import write_whole

LAB_VARIABLE = "NETAWARE_LAB"
_MOST_LOOKS = 20
_GONE_POLL_S, _KILL_PATIENCE_S = 0.02, 5.0


@dataclass(frozen=True)
class PidRecord:
    """One process that was started.

    Attributes:
        name: what it is in the lab, for example ``etcd``.
        pid: its process id.
        start_ticks: its start in clock ticks since boot, field 22 of proc(5) stat.
    """

    name: str
    pid: int
    start_ticks: int

    def write(self, folder: Path) -> Path:
        """Keep the record as ``<name>.pid`` in a folder."""
        path = folder / f"{self.name}.pid"
        write_whole(path, f"{self.pid} {self.start_ticks}\n".encode())
        return path


def read_records(folder: Path) -> list[PidRecord]:
    """All records of a folder; a file that is no record is left out, since nothing may be killed on a guess."""
    found = []
    for path in sorted(folder.glob("*.pid")):
        words = path.read_text().split()
        if len(words) == 2 and all(word.isdecimal() for word in words):
            found.append(PidRecord(path.stem, int(words[0]), int(words[1])))
    return found


def start_ticks(pid: int, proc: Path = Path("/proc")) -> int | None:
    """When a process started, in clock ticks since boot; ``None`` when there is no such process or only its corpse."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The second field is the command in parentheses and may hold spaces and parentheses itself.
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def record_of(name: str, pid: int) -> PidRecord | None:
    """The record of a running process, or ``None`` when it has ended already."""
    ticks = start_ticks(pid)
    return None if ticks is None else PidRecord(name, pid, ticks)


def is_alive(record: PidRecord, proc: Path = Path("/proc")) -> bool:
    """Whether the very process of the record still runs; another one with the same pid does not count."""
    return start_ticks(record.pid, proc) == record.start_ticks


def find_marked(state_dir: Path, proc: Path = Path("/proc")) -> list[PidRecord]:
    """Processes whose environment says that they belong to the lab at ``state_dir``, except this one."""
    mark = f"{LAB_VARIABLE}={state_dir}".encode()
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            marked = mark in _environ(entry).split(b"\0")
        except OSError:
            continue
        ticks = start_ticks(int(entry.name), proc) if marked else None
        if ticks is not None:
            found.append(PidRecord("marked", int(entry.name), ticks))
    return found


def _environ(entry: Path) -> bytes:
    """The environment of a process. One that is replacing its program has none for a moment; it is waited for, or it would be missed.

    Raises:
        OSError: it has ended, or belongs to another user.
    """
    has_program = False
    for _ in range(_MOST_LOOKS):
        found = (entry / "environ").read_bytes()
        if found or has_program:
            return found
        try:
            (entry / "exe").readlink()
        except FileNotFoundError:
            return found  # a thread of the kernel, or a corpse
        # Arguments come with the new program, perhaps since the environment was read: hence another look.
        has_program = bool((entry / "cmdline").read_bytes())
        time.sleep(_GONE_POLL_S)
    return b""


def kill_all(records: Iterable[PidRecord]) -> int:
    """SIGKILL every recorded process that still runs, wait for up to 5 s until all are gone, return how many there were."""
    victims = [record for record in records if is_alive(record)]
    for record in victims:
        try:
            # Between the check and the signal only the pidfd could close the gap; a pid is not reused that fast.
            os.kill(record.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + _KILL_PATIENCE_S
    while any(is_alive(record) for record in victims) and time.monotonic() < deadline:
        time.sleep(_GONE_POLL_S)
    return len(victims)
