"""Prints an answer as a table, JSON or YAML on standard output, and notes on standard error.

Piped tables have no colours, and no width limit unless COLUMNS is set, so that `grep` and `awk` find whole lines. Control characters
from the cluster are never printed as they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import yaml
from rich.console import Console, RenderableType

from kubekit.text import escape_control_characters, make_printable, mask_control_characters

if TYPE_CHECKING:
    import argparse
    from io import TextIOBase

    from controller.cli.command import Command

UNLIMITED_WIDTH = 10_000  # rich needs a number
# Texts from the cluster may look like markup.
_PlainConsole = partial(Console, highlight=False, emoji=False, markup=False)


class Screen:
    """Standard output, or ``stream``, and standard error, with colours on a terminal unless NO_COLOR is set."""

    def __init__(self, stream: TextIOBase | None = None) -> None:
        output = stream or sys.stdout
        has_colours = output.isatty() and not os.environ.get("NO_COLOR")
        has_unlimited_width = not output.isatty() and not os.environ.get("COLUMNS")
        self._console = _PlainConsole(
            file=output,  # type: ignore[arg-type]
            force_terminal=output.isatty(),
            color_system="auto" if has_colours else None,
            no_color=not has_colours,
            width=UNLIMITED_WIDTH if has_unlimited_width else None,
        )
        self._errors = _PlainConsole(stderr=True, no_color=bool(os.environ.get("NO_COLOR")), soft_wrap=True)

    def print_answer(self, command: Command, answer: object, options: argparse.Namespace) -> None:
        """Print the answer as a table, or as data (``-o json``, ``-o yaml``)."""
        if options.output == "table":
            printable_answer = answer if command.prints_documents else _escape_texts(answer)
            self._print_table(command.render(printable_answer, options, self._console.width))
        else:
            self._print_data(answer, options.output)

    def _print_table(self, content: RenderableType) -> None:
        if isinstance(content, str):
            # The text is for another program, such as YAML for kubectl.
            self._console.file.write(mask_control_characters(content))
        elif self._console.is_terminal:
            self._console.print(content)
        else:
            with self._console.capture() as capture:
                self._console.print(content, soft_wrap=True)
            # Strip the blanks that pad the tables' columns.
            self._console.file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))

    def _print_data(self, answer: object, output_format: str) -> None:
        plain = msgspec.to_builtins(answer)
        if output_format == "yaml":
            text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
            self._console.file.write(mask_control_characters(text))
        else:
            data = msgspec.json.encode(plain)
            self._console.file.write(escape_control_characters(msgspec.json.format(data, indent=2).decode()) + "\n")

    def print_note(self, text: str) -> None:
        """Print a note on standard error, for example on what the answer lacks."""
        self._errors.print(f"note: {make_printable(text)}", style="dim")


def _escape_texts(value: Any) -> Any:
    """The answer with `make_printable` applied to all texts, which come from the cluster."""
    if isinstance(value, str):
        return make_printable(value)
    if isinstance(value, msgspec.Struct):
        fields = {name: _escape_texts(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, Mapping):
        return {_escape_texts(key): _escape_texts(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_escape_texts, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_escape_texts, value))
    return value
