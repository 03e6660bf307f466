"""Strict reading of configuration: unknown fields and wrong types become errors that name the field as the user wrote it."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from kubekit.errors import ConfigError, SelectorError
from kubekit.selectors import LabelSelector, MatchExpression, Selector, from_object

T = TypeVar("T")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h))+\Z")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of everything that a user writes for the descheduler."""


class SelectorRequirement(Section, frozen=True):
    """One entry of matchExpressions."""

    key: str
    operator: str
    values: list[str] | None = None


class SelectorSpec(Section, frozen=True):
    """metav1.LabelSelector; unlike the API server's, a misspelt field is an error and not a selector of everything."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[SelectorRequirement] | None = None

    def compiled(self, field: str) -> Selector:
        """The same, ready to match.

        Raises:
            ConfigError: it does not parse; names ``field``.
        """
        expressions = [MatchExpression(e.key, e.operator, e.values) for e in self.match_expressions or ()]
        try:
            return from_object(LabelSelector(self.match_labels, expressions))
        except SelectorError as error:
            raise ConfigError(field, str(error)) from error


def read(document: object, type_: type[T], field: str) -> T:
    """Convert plain data to a struct.

    Args:
        document: what a YAML reader returned.
        type_: a struct that forbids unknown fields.
        field: where the document stands, for the error; may be empty.

    Raises:
        ConfigError: a field is unknown or of the wrong type.
    """
    try:
        return msgspec.convert(document, type_)
    except msgspec.ValidationError as error:
        message = str(error)
        problem = message.partition(" - at `")[0]
        raise ConfigError(join(field, _path(message)) or "the document", problem) from error


def read_kind(document: dict[str, Any], type_: type[T], field: str) -> T:
    """Like `read`, for a document that carries its own ``apiVersion`` and ``kind``, which are left out."""
    return read({k: v for k, v in document.items() if k not in {"apiVersion", "kind"}}, type_, field)


def join(*parts: str) -> str:
    """A dotted path out of the parts that are not empty."""
    return ".".join(part for part in parts if part)


def _path(message: str) -> str:
    where = re.search(r"at `\$\.?([^`]*)`", message)
    unknown = re.search(r"unknown field `([^`]*)`", message)
    path = where.group(1).replace("[...]", "") if where else ""
    return join(path, unknown.group(1) if unknown else "")


def seconds(value: str | float, field: str, *, least: float = 0.0) -> float:
    """Read a duration: Go's notation (``90s``, ``1m30s``) or a number of seconds.

    Raises:
        ConfigError: it is no duration, or below ``least``; names ``field``.
    """
    if isinstance(value, str):
        if not _DURATION.match(value):
            raise ConfigError(field, f"{value!r} is no duration", "write 90s, 5m or 1h30m")
        found = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(value))
    else:
        found = float(value)
    if not least <= found < float("inf"):
        raise ConfigError(field, f"{value!r} is out of range", f"at least {least:g} s")
    return found


def check_range(field: str, value: float, low: float, high: float) -> None:
    """Raise ConfigError unless ``low <= value <= high``; NaN is never in range."""
    if not low <= value <= high:
        raise ConfigError(field, f"{value:g} is out of range", f"{low:g} to {high:g}")
