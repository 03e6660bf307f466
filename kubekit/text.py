"""Formats text: command lines with foreign names, foreign text for terminals and logs, text of limited size, lists and counts."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence

_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9._]{0,251}[A-Za-z0-9])?")
NAME_PLACEHOLDER = "NAME"
"""Replaces a text that is not a valid name in a command line."""


def format_command(template: str, *values: object, **named_values: object) -> str:
    """Insert values, which may come from users, into ``template``, so that the command line is safe to paste.

    Values are integers, names of Kubernetes objects, sequences of both, and mappings or sequences with mappings, which become one quoted
    word of JSON. An empty sequence becomes an empty text. Any other value becomes `NAME_PLACEHOLDER`.
    """
    return template.format(*map(_quote, values), **{key: _quote(value) for key, value in named_values.items()})


def _quote(value: object) -> str:
    if isinstance(value, str):
        return value if _NAME.fullmatch(value) else NAME_PLACEHOLDER
    if isinstance(value, Mapping) or (isinstance(value, Sequence) and any(isinstance(v, Mapping) for v in value)):
        return shlex.quote(json.dumps(value, separators=(",", ":")))
    if isinstance(value, Sequence):
        return " ".join(_quote(item) for item in value)
    return str(int(value)) if isinstance(value, int) else NAME_PLACEHOLDER


def make_printable(text: str) -> str:
    """The text in one line: a space for each other white space, ``?`` for other unprintable characters, which a terminal may execute."""
    return _replace_unprintable(text, "", lambda c: " " if c.isspace() else "?")


def cut_bytes(text: str, max_bytes: int) -> str:
    """Cut a text to at most ``max_bytes`` of UTF-8, between characters."""
    return text.encode()[:max_bytes].decode(errors="ignore")


def mask_control_characters(text: str) -> str:
    """The text with U+FFFD for unprintable characters, except line breaks and tabs."""
    return _replace_unprintable(text, "\n\t", lambda _: "\ufffd")


def escape_control_characters(json_text: str) -> str:
    """JSON text with all unprintable characters except line breaks escaped, also those that JSON allows."""
    return _replace_unprintable(json_text, "\n", lambda c: json.dumps(c)[1:-1])


def _replace_unprintable(text: str, keep: str, replace: Callable[[str], str]) -> str:
    """Replace each unprintable character that is not in ``keep`` by the result of ``replace`` for it."""
    if text.isprintable():
        return text
    return text.translate({ord(c): replace(c) for c in set(text) - set(keep) if not c.isprintable()})


def join_first(texts: Sequence[str], max_count: int, separator: str = ", ") -> str:
    """The first ``max_count`` texts, and the number of others if there are any: ``a, b, and 3 more``."""
    remainder = f"{separator}and {len(texts) - max_count} more" if len(texts) > max_count else ""
    return separator.join(texts[:max_count]) + remainder


def pluralize(count: int, noun: str) -> str:
    """A count with its noun: ``1 pod``, ``2 pods``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
