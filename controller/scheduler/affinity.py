"""Converts a plan and scores to node affinity of a gated pod, removes it again, and classifies owners of pods.

Required terms name the planned zone, or exclude the zones that the filter refuses; scores become weights of preferred terms. Kubernetes
allows this only for gated pods: requirements may be added to each of the user's required terms, preferred terms set freely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from controller.cluster.costs import Location
from controller.cluster.eligibility import required_node_affinity
from controller.cluster.pods import NodeAffinity, NodeSelector, NodeSelectorTerm, Pod, PreferredTerm, Target
from controller.scheduler.rules import NodeScore, ScoreTable, normalise_cost
from kubekit.owners import controller_of
from kubekit.selectors import MatchExpression
from kubekit.wire import DECODE_ERRORS
from netperf.contract import ZONE_LABEL

_decode_match_expression = msgspec.json.Decoder(MatchExpression).decode

HOST_WEIGHT, ZONE_WEIGHT = 100, 60
"""Weights of preferred terms for the planned host and its zone."""
SCORE_DIVISOR = 3
"""Divides the scores of other zones, so that their weights, at most 33, are below `ZONE_WEIGHT`."""
MAX_PREFERRED_ZONES = 20
"""Most zones with a preferred term."""
HOSTNAME_LABEL = "kubernetes.io/hostname"
_REPLACING_KINDS = frozenset({"ReplicaSet", "StatefulSet"})
"""Kinds of owners that replace a deleted pod without a penalty; a deleted pod of a Job counts against its backoffLimit."""

NARROWED_ANNOTATION = "netaware.io/narrowed"
"""Annotation of a pod: the requirement that we added to its node affinity, as JSON, to tell it from the user's."""


class ZoneScores(msgspec.Struct, frozen=True):
    """Filter results and scores of zones.

    Attributes:
        score_by_zone: zone that the filter passes -> 0 to 100.
        refused_zones: zones that the filter refuses.
        refuses_unlabelled: whether there are nodes without a zone, and the filter refuses them.
    """

    score_by_zone: Mapping[str, int] = {}
    refused_zones: tuple[str, ...] = ()
    refuses_unlabelled: bool = False


def score_zones(score_table: ScoreTable, locations: Sequence[Location], populated_indexes: Sequence[int]) -> ZoneScores:
    """Reduce the scores of locations to zones. Of a zone in several regions, the cheapest location that passes counts.

    A neutral table refuses no zone and prefers no zone. ``populated_indexes`` are those of locations that have nodes.
    """
    if score_table.neutral_reason:
        return ZoneScores()
    best_by_zone: dict[str, NodeScore] = {}
    for index in populated_indexes:
        scores, zone = score_table.by_location, locations[index].zone
        candidates = best_by_zone.get(zone, scores[index]), scores[index]
        best_by_zone[zone] = min(candidates, key=lambda score: (not score.passes, score.cost))
    refuses_unlabelled = not best_by_zone.pop("", NodeScore()).passes
    refused_zones = sorted(zone for zone, score in best_by_zone.items() if not score.passes)
    passed_costs = {zone: score.cost for zone, score in sorted(best_by_zone.items()) if score.passes}
    lowest, highest = min(passed_costs.values(), default=0), max(passed_costs.values(), default=0)
    score_by_zone = {zone: normalise_cost(cost, lowest, highest) for zone, cost in passed_costs.items()}
    return ZoneScores(score_by_zone, tuple(refused_zones), refuses_unlabelled)


def zone_requirement(zone_scores: ZoneScores, target: Target | None) -> MatchExpression | None:
    """The requirement that excludes the zones that the filter refuses; None if the filter refuses no zone.

    With a plan, the zone of its target is the only allowed zone. If no location passes, nodes without a zone are not excluded, because
    one expression cannot exclude these and all zones.
    """
    if target is not None and target.zone:
        return MatchExpression(ZONE_LABEL, "In", [target.zone])
    if zone_scores.refuses_unlabelled and zone_scores.score_by_zone:
        return MatchExpression(ZONE_LABEL, "In", list(zone_scores.score_by_zone))
    if zone_scores.refused_zones:
        return MatchExpression(ZONE_LABEL, "NotIn", list(zone_scores.refused_zones))
    return None


def has_min_domains(pod: Pod) -> bool:
    """Whether a required spread constraint of the pod has minDomains, and counts only the domains that its node affinity allows."""
    return any(
        (constraint.min_domains or 1) > 1
        and constraint.when_unsatisfiable != "ScheduleAnyway"
        and constraint.node_affinity_policy != "Ignore"
        for constraint in pod.spec.topology_spread_constraints or ()
    )


def preferred_terms(zone_scores: ZoneScores, target: Target | None, hostname: str = "") -> list[PreferredTerm]:
    """Preferred terms for the planned host, unless its ``hostname`` label is empty, for its zone, and for other zones by score.

    The host is named by its label, never by ``matchFields``, because Karpenter makes no node for a pod with ``matchFields``.
    """
    terms: list[PreferredTerm] = []
    if target is not None and hostname:
        host = MatchExpression(HOSTNAME_LABEL, "In", [hostname])
        terms.append(PreferredTerm(HOST_WEIGHT, NodeSelectorTerm(match_expressions=[host])))
    weights = {zone: score // SCORE_DIVISOR for zone, score in zone_scores.score_by_zone.items()}
    if target is not None and target.zone:
        weights[target.zone] = ZONE_WEIGHT
    ranked = sorted(((zone, w) for zone, w in weights.items() if w > 0), key=lambda item: (-item[1], item[0]))
    for zone, weight in ranked[:MAX_PREFERRED_ZONES]:
        in_zone = MatchExpression(ZONE_LABEL, "In", [zone])
        terms.append(PreferredTerm(weight, NodeSelectorTerm(match_expressions=[in_zone])))
    return terms


def narrow_node_affinity(
    pod: Pod, added_requirement: MatchExpression | None, preferred: Sequence[PreferredTerm]
) -> NodeAffinity:
    """The user's node affinity, with our requirement in each required term that is not empty, and with our preferred terms."""
    user_affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = required_node_affinity(pod.spec.affinity)
    preferred_by_user = user_affinity and user_affinity.preferred_during_scheduling_ignored_during_execution
    if added_requirement is not None and required is None:
        required = NodeSelector([NodeSelectorTerm([added_requirement])])
    elif added_requirement is not None and required is not None:
        terms = required.node_selector_terms or [NodeSelectorTerm()]
        required = NodeSelector([_narrow_term(term, added_requirement) for term in terms])
    return NodeAffinity(required, [*(preferred_by_user or ()), *preferred] or None)


def _narrow_term(term: NodeSelectorTerm, added_requirement: MatchExpression) -> NodeSelectorTerm:
    """The term with our requirement. An empty term stays empty: it matches no node, but would match nodes with a requirement."""
    if not _has_requirements(term):
        return term
    return NodeSelectorTerm([*(term.match_expressions or ()), added_requirement], term.match_fields)


def without_added_requirement(pod: Pod) -> Pod:
    """The pod without our requirement; preferred terms stay. Unchanged if `NARROWED_ANNOTATION` is absent or cannot be decoded."""
    text = pod.metadata.annotation(NARROWED_ANNOTATION)
    affinity = pod.spec.affinity
    node_affinity = affinity.node_affinity if affinity else None
    required = required_node_affinity(affinity)
    if not text or affinity is None or node_affinity is None or required is None:
        return pod
    try:
        added_requirement = _decode_match_expression(text)
    except DECODE_ERRORS:
        return pod
    terms = [(term, _without_last(term, added_requirement)) for term in required.node_selector_terms or ()]
    # A term with only our requirement is dropped; the user's empty terms, which match no node, are kept.
    kept = [after for before, after in terms if _has_requirements(after) or not _has_requirements(before)]
    user_node_affinity = msgspec.structs.replace(
        node_affinity, required_during_scheduling_ignored_during_execution=NodeSelector(kept) if kept else None
    )
    user_affinity = msgspec.structs.replace(affinity, node_affinity=user_node_affinity)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, affinity=user_affinity))


def _without_last(term: NodeSelectorTerm, added_requirement: MatchExpression) -> NodeSelectorTerm:
    """The term without its last expression that equals ours. Earlier equal expressions are the user's, because ours is appended."""
    reversed_expressions = list(term.match_expressions or ())[::-1]
    if added_requirement in reversed_expressions:
        reversed_expressions.remove(added_requirement)
    return NodeSelectorTerm(reversed_expressions[::-1], term.match_fields)


def _has_requirements(term: NodeSelectorTerm) -> bool:
    return bool(term.match_expressions or term.match_fields)


def is_replaceable(pod: Pod) -> bool:
    """Whether the pod may be deleted while it is pending, because its owner replaces it without a penalty."""
    owner = controller_of(pod.metadata)
    return owner is not None and owner.kind in _REPLACING_KINDS


def is_daemon_pod(pod: Pod) -> bool:
    """Whether a DaemonSet owns the pod, and so has chosen its node."""
    owner = controller_of(pod.metadata)
    return owner is not None and owner.kind == "DaemonSet"
