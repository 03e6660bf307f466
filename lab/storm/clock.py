"""A wall clock that jumps: ``python lab/storm/clock.py FILE MODULE ARGUMENTS...`` runs a module whose time.time is off.

FILE holds eight bytes, a double of seconds that are added to ``time.time`` and ``time.time_ns``. A stand-in for a node whose clock is
set: monotonic clocks, the event loop's among them, do not jump, nor do they there. Processes that the module starts have the true time.
"""

from __future__ import annotations

import mmap
import runpy
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

_OFFSET = struct.Struct("d")


def set_offset(file: Path, offset_s: float) -> None:
    """Let the clock of whoever reads the file jump; made where it is missing."""
    if not file.exists():
        file.write_bytes(bytes(_OFFSET.size))
    with file.open("r+b") as out:
        out.write(_OFFSET.pack(offset_s))


def clocks(file: Path) -> tuple[Callable[[], float], Callable[[], int]]:
    """time.time and time.time_ns with the file's offset."""
    true, true_ns = time.time, time.time_ns
    with file.open("rb") as source:
        shared = mmap.mmap(source.fileno(), _OFFSET.size, access=mmap.ACCESS_READ)

    def offset_s() -> float:
        return float(_OFFSET.unpack_from(shared)[0])

    return (lambda: true() + offset_s()), (lambda: true_ns() + round(offset_s() * 1e9))


def main() -> None:
    """Run the module."""
    file, module = Path(sys.argv[1]), sys.argv[2]
    time.time, time.time_ns = clocks(file)
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
