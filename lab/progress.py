"""Prints the progress of long steps to stderr: a rewritten line on a terminal, a line every 15 s in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

ProgressPrinter = Callable[[str], None]
"""Prints a line of progress."""
_BAR = 20


class Progress:
    """Prints the progress of long steps to ``stream``; a terminal gets a bar."""

    REPEAT_S = 15.0
    """Time between two lines of a step in a log."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._what = ""
        self._started = self._printed = 0.0

    def begin(self, what: str) -> None:
        """Begin a step."""
        self._what = what
        self._started = self._printed = time.monotonic()
        self.note(f"{what} ...")

    def tick(self, detail: str = "", share: float | None = None) -> None:
        """Show that the current step goes on; to be called about twice per second.

        Args:
            detail: text about the state of the step.
            share: done share of the step, 0 to 1, if known.
        """
        now = time.monotonic()
        if not self._is_terminal and now - self._printed < self.REPEAT_S:
            return
        self._printed = now
        percent = "" if share is None else f"{100 * min(share, 1.0):.0f} %, "
        text = f"{self._what}: {percent}{now - self._started:.0f} s so far, {detail}".rstrip(", ")
        if not self._is_terminal:
            self.note(text)
            return
        filled = round(_BAR * min(share or 0.0, 1.0))
        self._stream.write(f"\r\x1b[K[{'#' * filled:<{_BAR}}] {text}"[:120])
        self._stream.flush()

    def end(self) -> None:
        """End the current step."""
        self.note(f"{self._what}: done in {time.monotonic() - self._started:.0f} s")

    def note(self, text: str) -> None:
        """Print a line."""
        print(f"\r\x1b[K{text}" if self._is_terminal else text, file=self._stream, flush=True)
