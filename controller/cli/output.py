"""Standard output in the format asked for: tables for people, JSON and YAML for machines.

Piped tables have neither colours nor a width limit, so that `grep` and `awk` find whole lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import yaml
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from kubekit.text import escape_controls, mask_controls

if TYPE_CHECKING:
    from io import TextIOBase

PIPE_WIDTH = 10_000


class Screen:
    """Standard output and standard error; ``width`` is in columns."""

    def __init__(self, console: Console, errors: Console) -> None:
        self._console, self._errors = console, errors

    @property
    def width(self) -> int:
        """Columns of the terminal; a very large number if standard output is none."""
        return self._console.width

    def print_table(self, content: RenderableType) -> None:
        """For a person."""
        if isinstance(content, str):
            # Text for another program, such as YAML.
            sys.stdout.write(mask_controls(content))
            return
        content = _Masked(content)
        if self._console.is_terminal:
            self._console.print(content, highlight=False)
        else:
            with self._console.capture() as capture:
                self._console.print(content, soft_wrap=True, highlight=False)
            # Tables fill their columns with blanks, which nobody wants in a file.
            self._console.file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))

    def print_data(self, answer: object, format_: str) -> None:
        """JSON or YAML."""
        plain = msgspec.to_builtins(answer)
        if format_ == "yaml":
            text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
            sys.stdout.write(mask_controls(text))
        else:
            data = msgspec.json.encode(plain)
            sys.stdout.write(escape_controls(msgspec.json.format(data, indent=2).decode()) + "\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """A note about what the answer lacks, on standard error."""
        self._errors.print(f"note: {mask_controls(text)}", style="dim", highlight=False, markup=False)

    def say(self, text: str) -> None:
        """A line on standard error."""
        self._errors.print(mask_controls(text), highlight=False, markup=False)


class _Masked:
    """Masks control characters of the content: it holds names from the cluster, and a terminal obeys them."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._content, options):
            yield segment if segment.control else Segment(mask_controls(segment.text), segment.style)


def open_screen(stream: TextIOBase | None = None) -> Screen:
    """The screen: with colours on a terminal, unless NO_COLOR is set."""
    out = stream or sys.stdout
    colours = out.isatty() and not os.environ.get("NO_COLOR")
    piped = not out.isatty() and not os.environ.get("COLUMNS")
    console = Console(
        file=out,  # type: ignore[arg-type]
        force_terminal=out.isatty(),
        color_system="auto" if colours else None,
        no_color=not colours,
        width=PIPE_WIDTH if piped else None,
        highlight=False,
        emoji=False,
        markup=False,
    )
    return Screen(console, Console(stderr=True, no_color=not colours, highlight=False, soft_wrap=True))
