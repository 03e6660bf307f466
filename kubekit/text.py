"""Quotes and masks foreign text in command lines and terminal output."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence

_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9._]{0,251}[A-Za-z0-9])?")
UNSAFE_NAME = "NAME"
"""Stands in a command line for what is no name; words in capitals are for the reader to fill in."""


def command(template: str, *values: object, **named: object) -> str:
    """A command line to paste: ``template`` is ours, what is put into it may come from users.

    What is put in are texts that are names of Kubernetes objects, or else become `UNSAFE_NAME`; sequences of such; mappings and
    sequences of mappings, which become one quoted word of JSON.
    """
    return template.format(*map(_word, values), **{key: _word(value) for key, value in named.items()})


def _word(value: object) -> str:
    if isinstance(value, str):
        return value if _NAME.fullmatch(value) else UNSAFE_NAME
    if isinstance(value, Mapping) or (isinstance(value, Sequence) and any(isinstance(v, Mapping) for v in value)):
        return shlex.quote(json.dumps(value, separators=(",", ":")))
    if isinstance(value, Sequence):
        return " ".join(_word(item) for item in value)
    return str(int(value)) if isinstance(value, int) else UNSAFE_NAME


def printable(text: str) -> str:
    """In one line, without control characters: a terminal would obey them."""
    return _translated(text, "", lambda c: " " if c.isspace() else "?")


def cut(text: str, limit: int) -> str:
    """Cut a text to ``limit`` bytes of UTF-8, at a character."""
    return text.encode()[:limit].decode(errors="ignore")


def mask_controls(text: str) -> str:
    """Mask control characters, line breaks excepted."""
    return _translated(text, "\n\t", lambda _: "\ufffd")


def escape_controls(data: str) -> str:
    """JSON whose control and format characters are escaped, those included that JSON allows."""
    return _translated(data, "\n", _escape)


def _escape(character: str) -> str:
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def _translated(text: str, keep: str, replace: Callable[[str], str]) -> str:
    """The text with other characters for those that are not printable. Texts of megabytes have few different ones."""
    if text.isprintable():
        return text
    return text.translate({ord(c): replace(c) for c in set(text) - set(keep) if not c.isprintable()})


def listed(texts: Sequence[str], shown: int, separator: str = ", ") -> str:
    """The first texts, and how many more there are."""
    more = f"{separator}and {len(texts) - shown} more" if len(texts) > shown else ""
    return separator.join(texts[:shown]) + more


def counted(count: int, noun: str) -> str:
    """``1 pod``, ``2 pods``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
