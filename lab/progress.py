"""Prints the progress of long steps to stderr: a rewritten line on a terminal, a line every 15 s in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

ProgressPrinter = Callable[[str], None]
"""Prints a line of progress."""
_BAR_WIDTH, _LINE_WIDTH = 20, 120
_REPEAT_S = 15.0  # In a log.


class Progress:
    """Prints when a step begins, how far it is, and when it ends."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._is_terminal = self._stream.isatty()
        self._step = ""
        self._started_at = self._printed_at = 0.0

    def begin(self, step: str) -> None:
        """Print that a step begins."""
        self._step = step
        self._started_at = self._printed_at = time.monotonic()
        self.print_line(f"{step} ...")

    def update(self, detail: str = "", share: float | None = None) -> None:
        """Print that the current step goes on; call it about twice a second.

        Args:
            detail: text about the state of the step.
            share: done share of the step, 0 to 1; None if unknown.
        """
        now = time.monotonic()
        if not self._is_terminal and now - self._printed_at < _REPEAT_S:
            return
        self._printed_at = now
        percent = "" if share is None else f"{100 * min(share, 1.0):.0f} %, "
        text = f"{self._step}: {percent}{now - self._started_at:.0f} s so far, {detail}".rstrip(", ")
        if not self._is_terminal:
            self.print_line(text)
            return
        filled = round(_BAR_WIDTH * min(share or 0.0, 1.0))
        self._stream.write(f"\r\x1b[K[{'#' * filled:<{_BAR_WIDTH}}] {text}"[:_LINE_WIDTH])
        self._stream.flush()

    def end(self) -> None:
        """Print that the current step is done, and how long it took."""
        self.print_line(f"{self._step}: done in {time.monotonic() - self._started_at:.0f} s")

    def print_line(self, text: str) -> None:
        """Print a line."""
        print(f"\r\x1b[K{text}" if self._is_terminal else text, file=self._stream, flush=True)
