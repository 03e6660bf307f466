"""Label selectors: parsed from text or from a LabelSelector object, matched against labels in memory.

Semantics of apimachinery's labels package: ``!=`` and ``notin`` also match objects without the label.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

from kubekit.errors import SelectorError
from kubekit.wire import Wire

_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_SET = re.compile(rf"(?P<key>{_NAME})\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)\Z")
_EQUAL = re.compile(rf"(?P<key>{_NAME})\s*(?P<op>==|=|!=)\s*(?P<value>[-A-Za-z0-9_.]*)\Z")
_EXISTS = re.compile(rf"(?P<not>!?)\s*(?P<key>{_NAME})\Z")
Operator = Literal["In", "NotIn", "Exists", "DoesNotExist"]


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy this condition."""
        if self.operator == "In":
            return self.key in labels and labels[self.key] in self.values
        if self.operator == "NotIn":
            return self.key not in labels or labels[self.key] not in self.values
        return (self.key in labels) == (self.operator == "Exists")


class MatchExpression(Wire, frozen=True):
    """metav1.LabelSelectorRequirement."""

    key: str
    operator: str
    values: list[str] | None = None


class LabelSelector(Wire, frozen=True):
    """metav1.LabelSelector as it is in objects."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[MatchExpression] | None = None


@dataclass(frozen=True, slots=True)
class Selector:
    """A compiled label selector: all requirements must hold; without requirements it matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        """Whether an object with these labels is selected."""
        return all(r.matches(labels or {}) for r in self.requirements)


def parse_selector(text: str) -> Selector:
    """Parse a selector such as ``app=web,tier in (a, b),!legacy``.

    Raises:
        SelectorError: the text is no selector; names the invalid part.
    """
    parts = [p.strip() for p in re.split(r",(?![^()]*\))", text)] if text.strip() else []
    return Selector(tuple(_requirement(p) for p in parts))


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


def _requirement(part: str) -> Requirement:
    if m := _SET.match(part):
        return Requirement(
            m["key"], "In" if m["op"] == "in" else "NotIn", frozenset(v.strip() for v in m["values"].split(","))
        )
    if m := _EQUAL.match(part):
        return Requirement(m["key"], "NotIn" if m["op"] == "!=" else "In", frozenset((m["value"],)))
    if m := _EXISTS.match(part):
        return Requirement(m["key"], "DoesNotExist" if m["not"] else "Exists")
    raise SelectorError(f"{part!r} is not a label selector requirement, such as app=web or tier in (a, b)")
