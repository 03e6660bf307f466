"""Standard output in the format asked for: tables for people, JSON, YAML and CSV for machines.

Piped tables have neither colours nor a width limit, so that `grep` and `awk` find whole lines.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import yaml
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment

from controller.cli.command import Row
from kubekit.text import escape_controls, mask_controls

if TYPE_CHECKING:
    from io import TextIOBase

PIPE_WIDTH = 10_000


class Screen:
    """Where answers go. ``width`` is in columns."""

    def __init__(self, console: Console, errors: Console) -> None:
        self._console, self._errors = console, errors
        self._live: Live | None = None

    @property
    def width(self) -> int:
        """Columns there are; very many when standard output is no terminal."""
        return self._console.width

    def print_table(self, content: RenderableType) -> None:
        """For a person; replaces the last answer while watching on a terminal."""
        if isinstance(content, str):
            # Text for another program, such as YAML, in which there are none.
            sys.stdout.write(mask_controls(content))
            return
        content = _Masked(content)
        if self._live is not None:
            self._live.update(content, refresh=True)
        elif self._console.is_terminal:
            self._console.print(content, highlight=False)
        else:
            with self._console.capture() as capture:
                self._console.print(content, soft_wrap=True, highlight=False)
            # Tables fill their columns with blanks, which nobody wants in a file.
            self._console.file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))

    def print_data(self, answer: object, format_: str, *, lines: bool) -> None:
        """JSON or YAML; with ``lines`` one JSON document per line, or YAML documents one after the other."""
        plain = msgspec.to_builtins(answer)
        if format_ == "yaml":
            text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
            sys.stdout.write(mask_controls(f"---\n{text}" if lines else text))
        else:
            data = msgspec.json.encode(plain)
            sys.stdout.write(escape_controls((data if lines else msgspec.json.format(data, indent=2)).decode()) + "\n")
        sys.stdout.flush()

    def print_csv(self, header: Sequence[str], rows: Iterable[Row]) -> None:
        """RFC 4180 with a header; an unknown value is empty."""
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            cells = ("" if value is None else value for value in row)
            writer.writerow([mask_controls(cell) if isinstance(cell, str) else cell for cell in cells])
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """What is missing from the answer, on standard error."""
        self._errors.print(f"note: {mask_controls(text)}", style="dim", highlight=False, markup=False)

    def say(self, text: str) -> None:
        """A line on standard error."""
        self._errors.print(mask_controls(text), highlight=False, markup=False)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Tables replace each other inside the block, on a terminal; elsewhere they follow each other."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None


class _Masked:
    """Something to print without the control characters of what it holds: names in it may be anybody's, and a terminal obeys."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._content, options):
            yield segment if segment.control else Segment(mask_controls(segment.text), segment.style)


def open_screen(options: argparse.Namespace, stream: TextIOBase | None = None) -> Screen:
    """The screen for these options: ``--color`` wins over NO_COLOR, which wins over what the terminal can do."""
    out = stream or sys.stdout
    colours = options.color == "always" or (options.color == "auto" and not os.environ.get("NO_COLOR") and out.isatty())
    piped = not out.isatty() and not os.environ.get("COLUMNS")
    console = Console(
        file=out,  # type: ignore[arg-type]
        force_terminal=out.isatty(),
        color_system="truecolor" if options.color == "always" else "auto" if colours else None,
        no_color=not colours,
        width=PIPE_WIDTH if piped else None,
        highlight=False,
        emoji=False,
        markup=False,
    )
    return Screen(console, Console(stderr=True, no_color=not colours, highlight=False, soft_wrap=True))
