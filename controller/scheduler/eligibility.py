"""Which nodes a pod may go to at all: node selector, required node affinity and taints, by Kubernetes' rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from controller.scheduler.pods import GroupPodSpec, LabelSelector, NodeSelectorTerm, SelectorRequirement, Toleration
from kubekit.wire import Node, Taint

BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "NoSchedule")


def blocking_taints(node: Node) -> tuple[Taint, ...]:
    """Taints that keep pods away, with one for a cordoned node."""
    taints = [t for t in node.spec.taints or () if t.effect in BLOCKING_EFFECTS]
    if node.spec.unschedulable and not any(t.key == UNSCHEDULABLE.key for t in taints):
        taints.append(UNSCHEDULABLE)
    return tuple(taints)


def tolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration] | None) -> bool:
    """Whether every taint is borne."""
    return all(any(t.tolerates(taint) for t in tolerations or ()) for taint in taints)


def is_choosy(spec: GroupPodSpec) -> bool:
    """Whether there is anything for `may_run_on` to look at; wishes are none."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return bool(spec.node_selector) or required is not None


def may_run_on(spec: GroupPodSpec, name: str, labels: Mapping[str, str]) -> bool:
    """Node selector and required node affinity; taints aside."""
    if any(labels.get(key) != value for key, value in (spec.node_selector or {}).items()):
        return False
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    if required is None:
        return True
    return any(_term_matches(term, name, labels) for term in required.node_selector_terms or ())


def _term_matches(term: NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    if not expressions and not fields:
        return False  # a term that says nothing matches nothing
    return all(requirement_holds(r, labels) for r in expressions) and all(
        requirement_holds(r, {"metadata.name": name}) for r in fields
    )


def requirement_holds(requirement: SelectorRequirement, labels: Mapping[str, str]) -> bool:
    """One requirement; NotIn and DoesNotExist hold for absent labels, an unknown operator never."""
    value, values = labels.get(requirement.key), requirement.values or []
    match requirement.operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compare(requirement.operator, value, values)
    return False


def _compare(operator: str, value: str | None, values: Sequence[str]) -> bool:
    try:
        left, right = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return left > right if operator == "Gt" else left < right


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """metav1.LabelSelector: None selects nothing, an empty one everything."""
    if selector is None:
        return False
    return all(labels.get(k) == v for k, v in (selector.match_labels or {}).items()) and all(
        requirement_holds(r, labels) for r in selector.match_expressions or ()
    )
