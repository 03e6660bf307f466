"""Turns a plan into node affinity of a gated pod: required zones, preferred zones and hosts. Pure.

Required terms exclude the zones that filter would refuse, and scores become weights of preferred terms. Kubernetes allows this for
gated pods only: requirements may be added to each of the user's required terms, and preferred terms may be set freely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from controller.cluster.costs import Location
from controller.cluster.eligibility import required_node_affinity
from controller.cluster.pods import NodeAffinity, NodeSelector, NodeSelectorTerm, Pod, PreferredTerm, Target
from controller.scheduler.rules import ScoreTable, normalise_cost
from kubekit.owners import controller_of
from kubekit.selectors import MatchExpression
from kubekit.wire import DECODE_ERRORS
from netperf.contract import ZONE_LABEL

_decode_match_expression = msgspec.json.Decoder(MatchExpression).decode

HOST_WEIGHT, ZONE_WEIGHT = 100, 60
SCORE_DIVISOR = 3
"""Keeps the weights of other zones, at most 33, below `ZONE_WEIGHT`."""
MAX_PREFERRED_TERMS = 20
HOSTNAME_LABEL = "kubernetes.io/hostname"
REPLACEABLE = frozenset({"ReplicaSet", "StatefulSet"})
"""Kinds of owners that replace a pod without a penalty; an evicted pod of a Job counts against its backoffLimit."""

NARROWED_ANNOTATION = "netaware.io/narrowed"
"""Annotation of a pod: the requirement that we added to its node affinity, as JSON, to tell it from the user's."""


class ZoneScores(msgspec.Struct, frozen=True):
    """Filter results and scores of zones.

    Attributes:
        passing: zones that the filter passes.
        refused: zones that it refuses.
        unlabelled_passes: whether nodes without a zone pass; None if there are none.
        scores: passing zone -> 0 to 100.
    """

    passing: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    unlabelled_passes: bool | None = None
    scores: Mapping[str, int] = {}


def score_zones(score_table: ScoreTable, locations: Sequence[Location], populated: Sequence[int]) -> ZoneScores:
    """Reduce the scores of locations to zones; of a zone in several regions, the best location counts.

    Args:
        score_table: from the rules; a neutral one refuses nothing and prefers nothing.
        locations: in the order of `score_table.by_location`.
        populated: indexes of locations that have nodes.
    """
    if score_table.neutral_reason:
        return ZoneScores()
    passing: dict[str, bool] = {}
    costs: dict[str, int] = {}
    unlabelled_passes: bool | None = None
    for i in populated:
        node_score, location = score_table.by_location[i], locations[i]
        if not location.zone:
            unlabelled_passes = bool(unlabelled_passes) or node_score.passes
            continue
        passing[location.zone] = passing.get(location.zone, False) or node_score.passes
        costs[location.zone] = min(costs.get(location.zone, node_score.cost), node_score.cost)
    passing_zones = sorted(zone for zone, passes in passing.items() if passes)
    refused_zones = sorted(zone for zone, passes in passing.items() if not passes)
    low = min((costs[zone] for zone in passing_zones), default=0)
    high = max((costs[zone] for zone in passing_zones), default=0)
    scores = {zone: normalise_cost(costs[zone], low, high) for zone in passing_zones}
    return ZoneScores(tuple(passing_zones), tuple(refused_zones), unlabelled_passes, scores)


def narrow_node_affinity(pod: Pod, added: MatchExpression | None, preferred: Sequence[PreferredTerm]) -> NodeAffinity:
    """The node affinity to give to a gated pod: the user's, with a requirement in each required term, and with preferred terms of ours.

    Args:
        pod: the current pod.
        added: from `zone_requirement`.
        preferred: from `preferred_terms`.
    """
    user_affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = required_node_affinity(pod.spec.affinity)
    preferred_by_user = user_affinity and user_affinity.preferred_during_scheduling_ignored_during_execution
    if added is not None and required is None:
        required = NodeSelector([NodeSelectorTerm([added])])
    elif added is not None and required is not None:
        terms = required.node_selector_terms or [NodeSelectorTerm()]
        required = NodeSelector([_narrow_term(term, added) for term in terms])
    return NodeAffinity(required, [*(preferred_by_user or ()), *preferred] or None)


def _narrow_term(term: NodeSelectorTerm, added: MatchExpression) -> NodeSelectorTerm:
    """The term with our requirement; an empty term, which matches nothing, would match nodes with it, and is unchanged."""
    if not _has_requirements(term):
        return term
    return NodeSelectorTerm([*(term.match_expressions or ()), added], term.match_fields)


def zone_requirement(zones: ZoneScores, target: Target | None) -> MatchExpression | None:
    """The requirement that excludes the zones that filter refuses; None if there are none.

    If no location passes, nodes without a zone are not excluded, because one expression cannot exclude these and all zones.

    Args:
        zones: from `score_zones`.
        target: of the plan; its zone, if it has one, is the only zone allowed; None without a plan.
    """
    if target is not None and target.zone:
        return MatchExpression(ZONE_LABEL, "In", [target.zone])
    if zones.unlabelled_passes is False and zones.passing:
        return MatchExpression(ZONE_LABEL, "In", list(zones.passing))
    if zones.refused:
        return MatchExpression(ZONE_LABEL, "NotIn", list(zones.refused))
    return None


def without_added_requirement(pod: Pod) -> Pod:
    """The pod with only the user's required node affinity."""
    text = pod.metadata.annotation(NARROWED_ANNOTATION)
    affinity = pod.spec.affinity
    node_affinity = affinity.node_affinity if affinity else None
    required = required_node_affinity(affinity)
    if not text or affinity is None or node_affinity is None or required is None:
        return pod
    try:
        added = _decode_match_expression(text)
    except DECODE_ERRORS:
        return pod
    terms = [(term, _without_last(term, added)) for term in required.node_selector_terms or ()]
    # Drop a term that has only our requirement; keep the user's empty terms, which match nothing.
    kept = [after for before, after in terms if _has_requirements(after) or not _has_requirements(before)]
    by_user = msgspec.structs.replace(
        node_affinity, required_during_scheduling_ignored_during_execution=NodeSelector(kept) if kept else None
    )
    stripped = msgspec.structs.replace(affinity, node_affinity=by_user)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, affinity=stripped))


def _without_last(term: NodeSelectorTerm, added: MatchExpression) -> NodeSelectorTerm:
    """The term without its last expression that equals ours; earlier equal expressions are the user's, since we append."""
    reverse = list(term.match_expressions or ())[::-1]
    if added in reverse:
        reverse.remove(added)
    return NodeSelectorTerm(reverse[::-1], term.match_fields)


def _has_requirements(term: NodeSelectorTerm) -> bool:
    return bool(term.match_expressions or term.match_fields)


def preferred_terms(zones: ZoneScores, target: Target | None, hostname: str = "") -> list[PreferredTerm]:
    """Preferred terms for the planned host, its zone, and other zones by score.

    The host is named by its label, never by ``matchFields``, because Karpenter makes no node for a pod with ``matchFields``.

    Args:
        zones: from `score_zones`.
        target: of the plan; None without a plan.
        hostname: the label of the target's host; empty if unknown, to prefer only the zone.
    """
    terms: list[PreferredTerm] = []
    if target is not None and hostname:
        host = MatchExpression(HOSTNAME_LABEL, "In", [hostname])
        terms.append(PreferredTerm(HOST_WEIGHT, NodeSelectorTerm(match_expressions=[host])))
    weights = {zone: score // SCORE_DIVISOR for zone, score in zones.scores.items()}
    if target is not None and target.zone:
        weights[target.zone] = ZONE_WEIGHT
    ranked = sorted(((w, zone) for zone, w in weights.items() if w > 0), key=lambda entry: (-entry[0], entry[1]))
    for weight, zone in ranked[:MAX_PREFERRED_TERMS]:
        in_zone = MatchExpression(ZONE_LABEL, "In", [zone])
        terms.append(PreferredTerm(weight, NodeSelectorTerm(match_expressions=[in_zone])))
    return terms


def is_replaceable(pod: Pod) -> bool:
    """Whether the pod may be deleted while it is pending, because its owner replaces it."""
    owner = controller_of(pod.metadata)
    return owner is not None and owner.kind in REPLACEABLE


def is_daemon_pod(pod: Pod) -> bool:
    """Whether a DaemonSet owns the pod and has chosen its node."""
    owner = controller_of(pod.metadata)
    return owner is not None and owner.kind == "DaemonSet"
