"""Reads settings from YAML files into structs, strictly; every error is a `ConfigError` with the field as the file spells it.

A section derives from `Section`. A number's type has limits, such as ``Annotated[float, Range(0, 60)]``, which `Section.validate` checks,
and docs/generate.py prints.
"""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from kubekit.errors import ConfigError, SelectorError
from kubekit.selectors import LabelSelector, MatchExpression, Selector, compile_selector

T = TypeVar("T")
YEAR_S = 31_536_000


class Range(NamedTuple):
    """The limits of a number, which it may equal. NaN is in no range."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{_format_number(self.low)} to {_format_number(self.high)}"

    def check_value(self, value: float, field: str) -> None:
        """Raise a ConfigError that names ``field`` if the value is out of range."""
        if not self.low <= value <= self.high:
            raise ConfigError(field, f"{value} is out of range", str(self))


Percent = Annotated[float, Range(0, 100)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of all sections. Fields are in camelCase in the file, and an unknown field is an error."""

    def validate(self, field: str = "") -> None:
        """Check this section and its subsections; ``field`` is the path of the section in the document.

        Raises:
            ConfigError: a field is invalid; the message names the first one.
        """
        for name, spelling, limits in _list_fields(type(self)):
            path, value = join_path(field, spelling), getattr(self, name)
            if isinstance(value, Section):
                value.validate(path)
            elif isinstance(value, list | tuple):
                for index, item in enumerate(value):
                    if isinstance(item, Section):
                        item.validate(f"{path}[{index}]")
            elif limits is not None and value is not None:
                limits.check_value(value, path)
        self.check_rules(field)

    def check_rules(self, field: str) -> None:
        """Check rules over several fields; sections override this and raise ConfigError."""


class SelectorRequirement(Section, frozen=True):
    """One entry of matchExpressions."""

    key: str
    operator: str
    values: list[str] | None = None


class SelectorSpec(Section, frozen=True):
    """metav1.LabelSelector, in which an unknown field is an error, because a selector without its misspelt field selects everything."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[SelectorRequirement] | None = None

    def compile(self, field: str) -> Selector:
        """Compile the selector.

        Raises:
            ConfigError: the selector is invalid; the message names ``field``.
        """
        expressions = [MatchExpression(e.key, e.operator, e.values) for e in self.match_expressions or ()]
        try:
            return compile_selector(LabelSelector(self.match_labels, expressions))
        except SelectorError as error:
            raise ConfigError(field, str(error)) from error


def load_yaml(path: str | Path, flag: str) -> Any:
    """Parse a YAML file.

    Raises:
        ConfigError: the file cannot be read or is not YAML; the message names ``flag`` and the file.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(flag, f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(flag, f"{path} is not YAML: {error}") from error
    return parse_yaml(text, flag, str(path))


def parse_yaml(text: str, flag: str, file_name: str = "") -> Any:
    """Parse a YAML text.

    Raises:
        ConfigError: the text is not YAML; the message names ``flag``, and ``file_name`` if there is one.
    """
    from kubekit import yaml_text

    try:
        return yaml_text.parse(text)
    except ValueError as error:
        raise ConfigError(flag, f"{file_name} is not YAML: {error}".lstrip()) from error


def convert(document: object, type_: type[T], field: str = "") -> T:
    """Convert parsed YAML to a struct that forbids unknown fields. It does not check ranges, see `Section.validate`.

    Raises:
        ConfigError: a field is unknown, missing or of the wrong type; the message has its path, which starts with ``field``.
    """
    try:
        return msgspec.convert(document, type_)
    except msgspec.ValidationError as error:
        raise _to_config_error(error, field) from error
    except RecursionError as error:
        raise ConfigError(field or "the document", "is nested too deeply") from error


def convert_object(document: Mapping[str, Any], type_: type[T], field: str = "") -> T:
    """Like `convert`, for a document with ``apiVersion`` and ``kind``, which are ignored."""
    return convert({k: v for k, v in document.items() if k not in {"apiVersion", "kind"}}, type_, field)


def join_path(*parts: str) -> str:
    """Join the parts that are not empty to a dotted path."""
    return ".".join(part for part in parts if part)


def to_camel_case(name: str) -> str:
    """The name in camelCase: ``interval_s`` becomes ``intervalS``."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _range_of(type_: object) -> Range | None:
    """The `Range` of an annotated type, also inside a union; None if the type has no range."""
    arguments = typing.get_args(type_)
    if typing.get_origin(type_) is Annotated:
        return next((argument for argument in arguments[1:] if isinstance(argument, Range)), None)
    return next((limits for argument in arguments if (limits := _range_of(argument)) is not None), None)


class _Field(NamedTuple):
    """Name, spelling in the file, and limits of a field; None without limits."""

    name: str
    spelling: str
    limits: Range | None


@functools.cache
def _list_fields(type_: type[Section]) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(type_, include_extras=True)
    spellings = zip(type_.__struct_fields__, type_.__struct_encode_fields__, strict=True)
    return tuple(_Field(name, spelling, _range_of(hints[name])) for name, spelling in spellings)


def _to_config_error(error: msgspec.ValidationError, field: str) -> ConfigError:
    """A ConfigError with the path of the field and a message for users."""
    message, _, tail = str(error).partition(" - at `$")
    path = tail.rstrip("`").removeprefix(".").replace("[...]", "")
    for pattern, problem, fix in (
        (r"Object contains unknown field `(.*)`", "is not a field of this section", "remove it, or check its spelling"),
        (r"Object missing required field `(.*)`", "is missing", ""),
    ):
        if match := re.match(pattern, message):
            return ConfigError(join_path(field, path, match[1]), problem, fix)
    return ConfigError(join_path(field, path) or "the document", message[:1].lower() + message[1:])


def _format_number(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"
