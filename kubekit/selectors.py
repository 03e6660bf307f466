"""Label selectors: parsed from text or from a LabelSelector object, matched against labels in memory.

Semantics of apimachinery's labels package: ``!=`` and ``notin`` also match objects without the label.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kubekit.errors import SelectorError
from kubekit.wire import Wire

_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_SET = re.compile(rf"(?P<key>{_NAME})\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)\Z")
_EQUAL = re.compile(rf"(?P<key>{_NAME})\s*(?P<op>==|=|!=)\s*(?P<value>[-A-Za-z0-9_.]*)\Z")
_EXISTS = re.compile(rf"(?P<not>!?)\s*(?P<key>{_NAME})\Z")
_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label; ``op`` is ``in``, ``notin``, ``exists`` or ``!``."""

    key: str
    op: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether the labels satisfy this condition."""
        if self.op == "in":
            return self.key in labels and labels[self.key] in self.values
        if self.op == "notin":
            return self.key not in labels or labels[self.key] not in self.values
        return (self.key in labels) == (self.op == "exists")


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
    """All requirements must hold; the empty selector matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        """Tell whether an object with these labels is selected."""
        return all(r.matches(labels or {}) for r in self.requirements)


def parse(text: str) -> Selector:
    """Read ``app=web,tier in (a, b),!legacy``.

    Raises:
        SelectorError: the text does not parse; names the part that does not.
    """
    parts = [p.strip() for p in re.split(r",(?![^()]*\))", text)] if text.strip() else []
    return Selector(tuple(_requirement(p) for p in parts))


def from_object(selector: LabelSelector) -> Selector:
    """Compile a LabelSelector object.

    Raises:
        SelectorError: an operator is unknown, or lacks or has values where it must not.
    """
    requirements = [Requirement(k, "in", frozenset((v,))) for k, v in sorted((selector.match_labels or {}).items())]
    for expression in selector.match_expressions or ():
        op = _OPERATORS.get(expression.operator)
        if op is None:
            msg = f"{expression.operator!r} is not an operator: write In, NotIn, Exists or DoesNotExist"
            raise SelectorError(msg)
        if bool(expression.values) != (op in {"in", "notin"}):
            msg = f"{expression.operator} on {expression.key!r}: values go with In and NotIn, and only with them"
            raise SelectorError(msg)
        requirements.append(Requirement(expression.key, op, frozenset(expression.values or ())))
    return Selector(tuple(requirements))


def _requirement(part: str) -> Requirement:
    if m := _SET.match(part):
        return Requirement(m["key"], m["op"], frozenset(v.strip() for v in m["values"].split(",")))
    if m := _EQUAL.match(part):
        return Requirement(m["key"], "notin" if m["op"] == "!=" else "in", frozenset((m["value"],)))
    if m := _EXISTS.match(part):
        return Requirement(m["key"], "!" if m["not"] else "exists")
    msg = f"{part!r} is not a label selector requirement, such as app=web or tier in (a, b)"
    raise SelectorError(msg)
