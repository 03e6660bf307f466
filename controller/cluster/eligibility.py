"""Checks whether a pod may run on a node, by Kubernetes' rules for node selector, node affinity, taints and volumes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from controller.cluster.pods import Affinity, NodeSelector, NodeSelectorTerm, PodSpec, Toleration
from kubekit.selectors import MatchExpression, operator_matches
from kubekit.wire import Node, Taint

_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep new pods from a node."""
UNSCHEDULABLE_TAINT = Taint("node.kubernetes.io/unschedulable", "NoSchedule")
REMOVAL_TAINT_KEYS = frozenset(
    {"DeletionCandidateOfClusterAutoscaler", "ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"}
)
"""Keys of the taints of nodes that are about to be removed (Cluster Autoscaler, Karpenter)."""


def blocking_taints(node: Node) -> tuple[Taint, ...]:
    """A node's taints NoSchedule and NoExecute, with `UNSCHEDULABLE_TAINT` if it is cordoned."""
    taints = [t for t in node.spec.taints or () if t.effect in BLOCKING_EFFECTS]
    if node.spec.unschedulable and not any(t.key == UNSCHEDULABLE_TAINT.key for t in taints):
        taints.append(UNSCHEDULABLE_TAINT)
    return tuple(taints)


def is_being_removed(node: Node) -> bool:
    """Whether an autoscaler is about to remove a node. Any effect counts: Cluster Autoscaler taints candidates with PreferNoSchedule."""
    return any(taint.key in REMOVAL_TAINT_KEYS for taint in node.spec.taints or ())


def first_untolerated_taint(taints: Iterable[Taint], tolerations: Sequence[Toleration] | None) -> Taint | None:
    """The first taint that no toleration matches; None if all are tolerated."""
    return next((taint for taint in taints if not any(t.tolerates(taint) for t in tolerations or ())), None)


def required_node_affinity(affinity: Affinity | None) -> NodeSelector | None:
    """A pod's required node affinity; None without it."""
    node_affinity = affinity.node_affinity if affinity else None
    return node_affinity.required_during_scheduling_ignored_during_execution if node_affinity else None


def has_node_constraints(spec: PodSpec) -> bool:
    """Whether a pod has a node selector or required node affinity."""
    return bool(spec.node_selector) or required_node_affinity(spec.affinity) is not None


def term_matches(term: NodeSelectorTerm, node_name: str, labels: Mapping[str, str]) -> bool:
    """Whether a node matches all requirements of a term."""
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    if not expressions and not fields:
        return False
    return all(_requirement_holds(r, labels) for r in expressions) and all(
        _requirement_holds(r, {"metadata.name": node_name}) for r in fields
    )


def _requirement_holds(requirement: MatchExpression, labels: Mapping[str, str]) -> bool:
    """Whether labels meet a requirement. NotIn and DoesNotExist hold for absent labels; an unknown operator never holds."""
    value, values = labels.get(requirement.key), requirement.values or ()
    if requirement.operator not in {"Gt", "Lt"}:
        return operator_matches(requirement.operator, values, value)
    number, bound = parse_int64(value or ""), parse_int64(values[0] if values else "")
    if number is None or bound is None:
        return False
    return number > bound if requirement.operator == "Gt" else number < bound


def parse_int64(text: str) -> int | None:
    """Parse as Go's ParseInt(text, 10, 64); None if it fails.

    Python's ``int`` also accepts ``1_000``, blanks and digits of other scripts.
    """
    number = int(text) if _INTEGER.fullmatch(text) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


def _daemonset_node_of(terms: Sequence[NodeSelectorTerm] | None) -> str:
    """The node that required affinity names in its only term, as the DaemonSet controller writes it; empty otherwise."""
    names = {
        value
        for term in terms or ()
        for field in term.match_fields or ()
        if field.key == "metadata.name" and field.operator == "In"
        for value in field.values or ()
    }
    return names.pop() if terms and len(terms) == len(names) == 1 else ""


class Constraints:
    """A pod's compiled scheduling constraints: node selector, required node affinity, tolerations, and rules about other pods.

    All pods of a template share one instance, so callers may cache results by its identity.

    Attributes:
        spec: the pod's spec, reduced to the fields that constrain scheduling.
        has_required_anti_affinity: it has required pod anti-affinity, which also restricts the other pods.
        daemonset_node: the node for which a DaemonSet made the pod; empty for other pods.
        depends_on_other_pods: it has required pod affinity or anti-affinity, or a spread constraint other than ScheduleAnyway.
    """

    def __init__(self, spec: PodSpec) -> None:
        self.spec = spec
        self._node_selector, required = spec.node_selector or {}, required_node_affinity(spec.affinity)
        self._required_terms = None if required is None else required.node_selector_terms or ()
        self._tolerations = tuple(spec.tolerations or ())
        self.daemonset_node = _daemonset_node_of(self._required_terms)
        anti_affinity = spec.affinity.pod_anti_affinity if spec.affinity else None
        affinity = spec.affinity.pod_affinity if spec.affinity else None
        self.has_required_anti_affinity = bool(
            anti_affinity and anti_affinity.required_during_scheduling_ignored_during_execution
        )
        spread_constraints = spec.topology_spread_constraints or ()
        has_required_spread = any(c.when_unsatisfiable != "ScheduleAnyway" for c in spread_constraints)
        self.depends_on_other_pods = (
            self.has_required_anti_affinity
            or has_required_spread
            or bool(affinity and affinity.required_during_scheduling_ignored_during_execution)
        )

    def unmet_constraint(
        self,
        node_name: str,
        labels: Mapping[str, str],
        taints: Sequence[Taint] = (),
        *,
        volume_selectors: Iterable[NodeSelector] = (),
    ) -> str:
        """The first constraint that a node does not meet, such as "taint KEY"; empty if it meets all.

        kube-scheduler checks no more than this, apart from resources and other pods. Plans also check whether the node is Ready
        (`Host.unschedulable_reason`). ``taints`` are NoSchedule and NoExecute ones; ``volume_selectors`` are the node selectors of the
        pod's volumes, all of which must match.
        """
        for key, value in self._node_selector.items():
            if labels.get(key) != value:
                return f"nodeSelector {key}={value}"
        if self._required_terms is not None and not _any_matches(self._required_terms, node_name, labels):
            return "node affinity"
        taint = first_untolerated_taint(taints, self._tolerations)
        if taint is not None:
            return f"taint {taint.key}"
        reaches_volumes = all(_any_matches(s.node_selector_terms or (), node_name, labels) for s in volume_selectors)
        return "" if reaches_volumes else "volume node affinity"


def _any_matches(terms: Iterable[NodeSelectorTerm], node_name: str, labels: Mapping[str, str]) -> bool:
    return any(term_matches(term, node_name, labels) for term in terms)
