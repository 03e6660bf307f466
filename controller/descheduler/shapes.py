"""Where a pod may go: node selector, required node affinity, tolerations and required anti-affinity, compiled once.

Pods of one template share a `Shape`, so that an answer for one of them is an answer for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from controller.scheduler.pods import Affinity, NodeSelectorTerm, SelectorRequirement, Toleration
from kubekit.errors import SelectorError
from kubekit.selectors import LabelSelector, MatchExpression, Selector, from_object
from kubekit.wire import Taint

NAME_FIELD = "metadata.name"
MOST_SHARED = 20_000
"""Different shapes that are remembered; beyond, memory is forgotten and equal shapes may exist twice, which costs time only."""


class AntiTerm(NamedTuple):
    """Pods of the own namespace that match must not be in the same domain of the key."""

    topology_key: str
    selector: Selector


class Shape:
    """One set of scheduling constraints; pods of one template share it, so answers are cached by identity."""

    __slots__ = ("_affinity", "_any_of", "_selector", "_tolerations", "anti")

    def __init__(
        self, selector: Mapping[str, str], affinity: Affinity | None, tolerations: Sequence[Toleration]
    ) -> None:
        self._selector, self._affinity, self._tolerations = selector, affinity, tuple(tolerations)
        node_affinity = affinity.node_affinity if affinity else None
        required = node_affinity.required_during_scheduling_ignored_during_execution if node_affinity else None
        self._any_of = None if required is None else tuple(required.node_selector_terms or ())
        self.anti = _anti_terms(affinity)

    def refusal(self, name: str, labels: Mapping[str, str], taints: Sequence[Taint]) -> str:
        """Why a node with this name, these labels and these NoSchedule and NoExecute taints is refused; empty if it is not."""
        for key, value in self._selector.items():
            if labels.get(key) != value:
                return f"nodeSelector {key}={value}"
        if self._any_of is not None and not any(_term_matches(term, name, labels) for term in self._any_of):
            return "node affinity"
        for taint in taints:
            if not any(toleration.tolerates(taint) for toleration in self._tolerations):
                return f"taint {taint.key}"
        return ""


class Shapes:
    """Hands out one `Shape` per different set of constraints."""

    def __init__(self) -> None:
        self._known: dict[bytes, Shape] = {}
        self._encode = msgspec.json.Encoder(order="deterministic").encode

    def of(
        self, selector: Mapping[str, str] | None, affinity: Affinity | None, tolerations: Sequence[Toleration] | None
    ) -> Shape:
        """The shape of a pod's spec."""
        key = self._encode((selector, affinity, tolerations))
        if key not in self._known:
            if len(self._known) >= MOST_SHARED:
                self._known.clear()
            self._known[key] = Shape(selector or {}, affinity, tolerations or ())
        return self._known[key]


def _anti_terms(affinity: Affinity | None) -> tuple[AntiTerm, ...]:
    anti = affinity.pod_anti_affinity if affinity else None
    found = []
    for term in (anti.required_during_scheduling_ignored_during_execution if anti else None) or ():
        if term.label_selector is None:
            continue
        labels = term.label_selector
        expressions = [MatchExpression(e.key, e.operator, e.values) for e in labels.match_expressions or ()]
        try:
            selector = from_object(LabelSelector(labels.match_labels, expressions))
        except SelectorError:  # the API server validated it; an operator newer than ours excludes nothing here
            continue
        found.append(AntiTerm(term.topology_key, selector))
    return tuple(found)


def _term_matches(term: NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    """All requirements of one term; a term without any matches nothing, as Kubernetes has it."""
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    if not expressions and not fields:
        return False
    by_field = {NAME_FIELD: name}
    return all(_holds(e, labels) for e in expressions) and all(_holds(f, by_field) for f in fields)


def _holds(requirement: SelectorRequirement, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(requirement.key), requirement.values or ()
    match requirement.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compared(requirement.operator, value, values)
    return False


def _compared(operator: str, value: str | None, values: Sequence[str]) -> bool:
    try:
        mine, bound = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return mine > bound if operator == "Gt" else mine < bound
