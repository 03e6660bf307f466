"""Progress on stderr: a live bar on a terminal, one plain line per step in a log.

The first build takes minutes; somebody who sees nothing for minutes presses Ctrl-C.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol

Say = Callable[[str], None]
"""Told in a line what goes on."""


class Progress(Protocol):
    """Told about steps that take long. ``expected_s`` is a guess in seconds."""

    def begin(self, index: int, count: int, what: str, expected_s: float) -> None:
        """Step ``index`` (from 1) of ``count`` starts."""

    def tick(self, detail: str = "") -> None:
        """The current step goes on; called about twice per second."""

    def end(self) -> None:
        """The current step is done."""

    def note(self, text: str) -> None:
        """Say something that is no step."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class PlainProgress:
    """One line when a step starts, one every 30 s, one when it ends."""

    REPEAT_S = 30.0

    def __init__(self) -> None:
        self._what = ""
        self._started = self._spoken = 0.0

    def begin(self, index: int, count: int, what: str, expected_s: float) -> None:
        """Print what starts and how long it may take."""
        self._what = f"[{index}/{count}] {what}"
        self._started = self._spoken = time.monotonic()
        self.note(f"{self._what} (about {expected_s:.0f} s)")

    def tick(self, detail: str = "") -> None:
        """Print the elapsed time, at most every 30 s."""
        now = time.monotonic()
        if now - self._spoken >= self.REPEAT_S:
            self._spoken = now
            self.note(f"{self._what}: {now - self._started:.0f} s so far {detail}".rstrip())

    def end(self) -> None:
        """Print how long the step took."""
        self.note(f"{self._what}: done in {time.monotonic() - self._started:.0f} s")

    def note(self, text: str) -> None:
        """Print one line."""
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing to restore."""


class LiveProgress:
    """A bar per step that fills toward the expected time and never claims to be done early."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self._console = Console(stderr=True)
        self._bars = Bars(
            TextColumn("{task.fields[position]:>5}"),
            TextColumn("[bold]{task.description:<34}"),
            BarColumn(bar_width=28),
            TimeElapsedColumn(),
            TextColumn("of about {task.fields[expected]} s [dim]{task.fields[detail]}"),
            console=self._console,
        )
        self._task = self._bars.add_task("", visible=False, position="", expected="", detail="")
        self._expected_s, self._started = 1.0, 0.0
        self._bars.start()

    def begin(self, index: int, count: int, what: str, expected_s: float) -> None:
        """Show a fresh bar."""
        self._expected_s, self._started = max(expected_s, 0.1), time.monotonic()
        position, expected = f"{index}/{count}", f"{expected_s:.0f}"
        self._task = self._bars.add_task(what, total=1.0, position=position, expected=expected, detail="")

    def tick(self, detail: str = "") -> None:
        """Move the bar."""
        share = (time.monotonic() - self._started) / self._expected_s
        self._bars.update(self._task, completed=min(share, 0.99), detail=detail[:40])

    def end(self) -> None:
        """Fill the bar."""
        self._bars.update(self._task, completed=1.0, detail="")
        self._bars.stop_task(self._task)

    def note(self, text: str) -> None:
        """Print above the bars."""
        self._console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        """Stop redrawing."""
        self._bars.stop()


def open_progress() -> Progress:
    """The live kind on a terminal, the plain kind elsewhere."""
    return LiveProgress() if sys.stderr.isatty() else PlainProgress()
