"""Parses label selectors from text or from a LabelSelector object, and matches them against labels.

As in apimachinery's labels package, ``!=`` and ``notin`` also match objects without the label.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

from kubekit.errors import SelectorError
from kubekit.wire import Wire

_KEY_PATTERN = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_SET_PATTERN = re.compile(rf"(?P<key>{_KEY_PATTERN})\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)\Z")
_EQUALITY_PATTERN = re.compile(rf"(?P<key>{_KEY_PATTERN})\s*(?P<op>==|=|!=)\s*(?P<value>[-A-Za-z0-9_.]*)\Z")
_EXISTENCE_PATTERN = re.compile(rf"(?P<not>!?)\s*(?P<key>{_KEY_PATTERN})\Z")
Operator = Literal["In", "NotIn", "Exists", "DoesNotExist"]


def operator_matches(operator: str, values: Container[str | None], value: str | None) -> bool:
    """Whether a label's value (None if the label is missing) satisfies an operator. False for unknown operators."""
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False


@dataclass(frozen=True, slots=True)
class Requirement:
    """A compiled condition on one label."""

    key: str
    operator: Operator
    values: frozenset[str | None] = frozenset()


class MatchExpression(Wire, frozen=True):
    """metav1.LabelSelectorRequirement."""

    key: str
    operator: str
    values: list[str] | None = None


class LabelSelector(Wire, frozen=True):
    """metav1.LabelSelector."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[MatchExpression] | None = None


@dataclass(frozen=True, slots=True)
class Selector:
    """A compiled label selector. It matches labels that satisfy all requirements, so without requirements it matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        """Whether the selector matches these labels."""
        labels = labels or {}
        return all(operator_matches(r.operator, r.values, labels.get(r.key)) for r in self.requirements)


def parse_selector(text: str) -> Selector:
    """Parse a selector such as ``app=web,tier in (a, b),!legacy``.

    Raises:
        SelectorError: the text is not a selector; the message names the invalid part.
    """
    parts = [p.strip() for p in re.split(r",(?![^()]*\))", text)] if text.strip() else []
    return Selector(tuple(_parse_requirement(p) for p in parts))


def compile_selector(selector: LabelSelector) -> Selector:
    """Compile a LabelSelector object.

    Raises:
        SelectorError: an operator is unknown, has no values (In, NotIn), or has values (Exists, DoesNotExist).
    """
    requirements = [Requirement(k, "In", frozenset((v,))) for k, v in sorted((selector.match_labels or {}).items())]
    for expression in selector.match_expressions or ():
        if expression.operator not in get_args(Operator):
            raise SelectorError(f"{expression.operator!r} is not an operator: write In, NotIn, Exists or DoesNotExist")
        operator = cast("Operator", expression.operator)
        if bool(expression.values) != (operator in {"In", "NotIn"}):
            rule = "values are required with In and NotIn, and forbidden with other operators"
            raise SelectorError(f"{operator} on {expression.key!r}: {rule}")
        requirements.append(Requirement(expression.key, operator, frozenset(expression.values or ())))
    return Selector(tuple(requirements))


def compile_or_none(selector: LabelSelector | None) -> Selector | None:
    """Compile a LabelSelector object; None, which selects nothing, if it is absent or invalid."""
    try:
        return compile_selector(selector) if selector is not None else None
    except SelectorError:  # An operator is newer than this code; the API server rejects other invalid selectors.
        return None


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector object selects these labels; None and an invalid one select nothing, an empty one everything."""
    compiled = compile_or_none(selector)
    return compiled is not None and compiled.matches(labels)


def _parse_requirement(part: str) -> Requirement:
    if match := _SET_PATTERN.match(part):
        values = frozenset(value.strip() for value in match["values"].split(","))
        return Requirement(match["key"], "In" if match["op"] == "in" else "NotIn", values)
    if match := _EQUALITY_PATTERN.match(part):
        return Requirement(match["key"], "NotIn" if match["op"] == "!=" else "In", frozenset((match["value"],)))
    if match := _EXISTENCE_PATTERN.match(part):
        return Requirement(match["key"], "DoesNotExist" if match["not"] else "Exists")
    raise SelectorError(f"{part!r} is not a label selector requirement, such as app=web or tier in (a, b)")
