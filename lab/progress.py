"""Prints the progress of long steps to stderr: a rewritten line on a terminal, a line every 15 s in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ProgressPrinter = Callable[[str], None]
"""Prints a line of progress."""
_LINE_WIDTH = 120
_REPEAT_S = 15.0  # In a log.


def print_line(text: str) -> None:
    print(f"\r\x1b[K{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


@contextmanager
def print_step(step: str) -> Iterator[ProgressPrinter]:
    """Print that a step begins and, unless the block fails, how long it took.

    Yields a function that prints how far the step is; call it about twice a second.
    """
    started_at = printed_at = time.monotonic()

    def print_detail(detail: str) -> None:
        nonlocal printed_at
        now = time.monotonic()
        text = f"{step}: {now - started_at:.0f} s so far, {detail}".rstrip(", ")
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{text}"[:_LINE_WIDTH])
            sys.stderr.flush()
        elif now - printed_at >= _REPEAT_S:
            printed_at = now
            print_line(text)

    print_line(f"{step} ...")
    yield print_detail
    print_line(f"{step}: done in {time.monotonic() - started_at:.0f} s")
