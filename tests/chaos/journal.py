"""The journal of a run: one JSON line for each fault, and for what followed from it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec


class Journal:
    """Lines of one run, written as they come, so that a killed run leaves its journal too.

    Args:
        path: the file, made anew.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = path
        self._file = path.open("wb", buffering=0)
        self._started = time.monotonic()

    def write(self, event: str, **fields: Any) -> None:
        """Add one line: seconds since the start, what happened, and to what."""
        line = {"t": round(time.monotonic() - self._started, 2), "event": event, **fields}
        self._file.write(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        """End it."""
        self._file.close()
