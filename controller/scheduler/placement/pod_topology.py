"""Turns topologySpreadConstraints, pod affinity and anti-affinity into rules of a `Problem`.

Required rules bind; preferred ones and ScheduleAnyway are priced. Rules of pods that stay bind too: anti-affinity holds in both
directions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence

import msgspec
import numpy as np

from controller.cluster.eligibility import Constraints, selects
from controller.cluster.hosts import Host
from controller.cluster.pods import GroupPod, GroupPodSpec, PodAffinityTerm, SpreadConstraint
from controller.scheduler.placement.problem import COUNTED, OWNER, Bools, Ints, Rule, RuleKind
from kubekit.selectors import LabelSelector

read_selector = msgspec.json.Decoder(LabelSelector).decode
_decode_group_pod_spec = msgspec.json.Decoder(GroupPodSpec).decode

REFUSALS = {
    RuleKind.SPREAD: "topology spread",
    RuleKind.ANTI_AFFINITY: "pod anti-affinity",
    RuleKind.AFFINITY: "pod affinity",
}
_SYMMETRIC = frozenset({RuleKind.ANTI_AFFINITY, RuleKind.PREFERENCE})
"""Kinds whose terms on bound pods bind new pods, too; other kinds counted when the bound pods were placed."""
_PREFERENCE_PRICE = 1.0
"""Penalty of a pair that a preferred term keeps apart; above any gain of the network."""


class Term(msgspec.Struct, frozen=True):
    """A spread constraint or (anti-)affinity term of a pod. Equal terms of several pods are one rule.

    Attributes:
        kind: see `RuleKind`.
        key: label whose values are the domains.
        selector: of the pods that count, JSON of a LabelSelector.
        namespaces: of the pods that count; empty for all.
        skew: of a spread.
        least_domains: of a spread; 0 for none.
        price: of a preferred term.
        nodes: what of the owner's spec decides which nodes make domains, JSON; empty for every node.
    """

    kind: RuleKind
    key: str
    selector: bytes
    namespaces: tuple[str, ...]
    skew: int = 1
    least_domains: int = 0
    price: float = 0.0
    nodes: bytes = b""


class PodTopologyConstraints:
    """Reads all rules of a problem.

    Args:
        pods: [class] one of its pods.
        hosts: every host, in the problem's order.
        bound: host number and pod of everything that stays and is known.
    """

    def __init__(self, pods: Sequence[GroupPod], hosts: Sequence[Host], bound: Sequence[tuple[int, GroupPod]]) -> None:
        self._pods, self._hosts, self._bound = pods, hosts, bound
        self._domains: dict[str, tuple[Ints, list[str]]] = {}

    def rules(self) -> tuple[Rule, ...]:
        """Every rule that binds a class, in the order in which pods say them."""
        owners: dict[Term, list[int]] = {}
        for class_, pod in enumerate(self._pods):
            for term in terms_of(pod):
                owners.setdefault(term, []).append(class_)
        bound_owners: dict[Term, list[tuple[int, GroupPod]]] = {}
        for host, pod in self._bound:
            for term in terms_of(pod):
                if term in owners or term.kind is RuleKind.ANTI_AFFINITY:
                    bound_owners.setdefault(term, []).append((host, pod))
        found = []
        for term in dict.fromkeys([*owners, *bound_owners]):
            rule = self._rule(term, owners.get(term, []), bound_owners.get(term, []))
            if rule.roles:
                found.append(rule)
        return tuple(found)

    def _rule(self, term: Term, owners: Sequence[int], bound: Sequence[tuple[int, GroupPod]]) -> Rule:
        selector = read_selector(term.selector)
        domain_of, names = self._domain_of(term.key)
        domain_of = np.where(self._spread_over(term), domain_of, -1)
        roles: Counter[int] = Counter()
        for class_ in owners:
            roles[class_] |= OWNER
        for class_, pod in enumerate(self._pods):
            if _counts(term, selector, pod):
                roles[class_] |= COUNTED
        eligible: Bools = np.zeros(len(names), np.bool_)
        eligible[domain_of[domain_of >= 0]] = True
        held, owned = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
        for host, pod in self._bound:
            if domain_of[host] >= 0 and _counts(term, selector, pod):
                held[domain_of[host]] += 1
        for host, _ in bound if term.kind in _SYMMETRIC else ():
            if domain_of[host] >= 0:
                owned[domain_of[host]] += 1
        return Rule(
            kind=term.kind,
            roles=dict(roles),
            domain_of=domain_of,
            bound=held,
            owned=owned,
            eligible=eligible,
            skew=term.skew,
            short=0 < int(eligible.sum()) < term.least_domains,
            price=term.price,
        )

    def _domain_of(self, key: str) -> tuple[Ints, list[str]]:
        """[host] number of its domain or -1, and the domains."""
        if key not in self._domains:
            values = [host.labels.get(key) for host in self._hosts]
            names = sorted({value for value in values if value is not None})
            index = {name: i for i, name in enumerate(names)}
            found = np.array([-1 if value is None else index[value] for value in values], np.int64)
            self._domains[key] = found, names
        return self._domains[key]

    def _spread_over(self, term: Term) -> Bools:
        """[host] whether the term looks at it: a spread leaves out nodes that its owner's affinity or tolerations leave out."""
        hosts = self._hosts
        if not term.nodes:
            return np.ones(len(hosts), np.bool_)
        spec = _decode_group_pod_spec(term.nodes)
        constraints, honoured = Constraints(spec), spec.tolerations is not None
        refused = (constraints.refusal(h.name, h.labels, h.taints if honoured else ()) for h in hosts)
        return np.array([not why for why in refused], np.bool_)


def refusals(
    pod: GroupPod, hosts: Sequence[Host], bound: Sequence[tuple[int, GroupPod]], kinds: Container[RuleKind] = REFUSALS
) -> dict[int, str]:
    """Host number -> why a pod may not go there because of other pods.

    Args:
        pod: the pod.
        hosts: every host.
        bound: host number and pod of the others.
        kinds: of the rules that count.
    """
    found: dict[int, str] = {}
    for rule in PodTopologyConstraints([pod], hosts, bound).rules():
        if rule.kind in kinds:
            found |= {
                number: REFUSALS[rule.kind]
                for number in np.flatnonzero(_refused_by(rule)).tolist()
                if number not in found
            }
    return found


def _refused_by(rule: Rule) -> Bools:
    """[host] whether the only pod of the rules, which is class 0, may not go there."""
    role, domain_of = rule.roles.get(0, 0), rule.domain_of
    no_domain: Bools = domain_of < 0
    none: Bools = np.zeros(len(domain_of), np.bool_)
    if not len(rule.bound):
        return none if rule.kind is RuleKind.ANTI_AFFINITY else no_domain
    bound, owned = rule.bound[domain_of], rule.owned[domain_of]
    if rule.kind is RuleKind.ANTI_AFFINITY:
        conflict = (bound > 0) & bool(role & OWNER) | (owned > 0) & bool(role & COUNTED)
        refused: Bools = ~no_domain & conflict
    elif not role & OWNER:
        refused = none
    elif rule.kind is RuleKind.SPREAD:
        least = 0 if rule.short or not rule.eligible.any() else int(rule.bound[rule.eligible].min())
        refused = no_domain | (bound + bool(role & COUNTED) - least > rule.skew)
    else:
        is_first_replica = not rule.bound.any() and role & COUNTED
        refused = no_domain | ((bound == 0) & (not is_first_replica))
    return refused


def terms_of(pod: GroupPod) -> Iterator[Term]:
    """A pod's terms about sharing domains."""
    for constraint in pod.spec.topology_spread_constraints or ():
        yield _spread_term(pod, constraint)
    affinity = pod.spec.affinity
    anti_affinity = affinity.pod_anti_affinity if affinity else None
    together = affinity.pod_affinity if affinity else None
    if anti_affinity is not None:
        for term in anti_affinity.required_during_scheduling_ignored_during_execution or ():
            yield _affinity_term(pod, term, RuleKind.ANTI_AFFINITY)
        for preferred in anti_affinity.preferred_during_scheduling_ignored_during_execution or ():
            yield _affinity_term(
                pod, preferred.pod_affinity_term, RuleKind.PREFERENCE, _PREFERENCE_PRICE * preferred.weight / 100
            )
    if together is not None:
        for term in together.required_during_scheduling_ignored_during_execution or ():
            yield _affinity_term(pod, term, RuleKind.AFFINITY)
        for preferred in together.preferred_during_scheduling_ignored_during_execution or ():
            yield _affinity_term(
                pod, preferred.pod_affinity_term, RuleKind.PREFERENCE, -_PREFERENCE_PRICE * preferred.weight / 1000
            )


def _spread_term(pod: GroupPod, constraint: SpreadConstraint) -> Term:
    """ScheduleAnyway is a preference; matchLabelKeys add the pod's own values to the selector."""
    labels = pod.metadata.labels or {}
    selector = constraint.label_selector
    own = {key: labels[key] for key in constraint.match_label_keys or () if key in labels}
    if selector is not None and own:
        selector = msgspec.structs.replace(selector, match_labels={**(selector.match_labels or {}), **own})
    hard = constraint.when_unsatisfiable != "ScheduleAnyway"
    return Term(
        kind=RuleKind.SPREAD if hard else RuleKind.PREFERENCE,
        key=constraint.topology_key,
        selector=_selector(selector),
        namespaces=(pod.metadata.namespace,),
        skew=max(constraint.max_skew, 1) if hard else 1,
        least_domains=(constraint.min_domains or 0) if hard else 0,
        price=0.0 if hard else _PREFERENCE_PRICE,
        nodes=_nodes_of(pod.spec, constraint) if hard else b"",
    )


def _nodes_of(spec: GroupPodSpec, constraint: SpreadConstraint) -> bytes:
    """The part of a pod's spec that says which nodes its constraint counts; empty for all."""
    constraints = GroupPodSpec()
    if constraint.node_affinity_policy != "Ignore":
        affinity = spec.affinity
        own = msgspec.structs.replace(affinity, pod_affinity=None, pod_anti_affinity=None) if affinity else None
        constraints = GroupPodSpec(node_selector=spec.node_selector, affinity=own)
    if constraint.node_taints_policy == "Honor":
        constraints = msgspec.structs.replace(constraints, tolerations=spec.tolerations or [])
    return b"" if constraints == GroupPodSpec() else msgspec.json.encode(constraints)


def _affinity_term(pod: GroupPod, term: PodAffinityTerm, kind: RuleKind, price: float = 0.0) -> Term:
    """Without namespaces the pod's own; a namespaceSelector is taken for every namespace, since their labels are not read."""
    namespaces = tuple(sorted(term.namespaces or ()))
    if term.namespace_selector is not None:
        namespaces = ()
    elif not namespaces:
        namespaces = (pod.metadata.namespace,)
    return Term(kind, term.topology_key, _selector(term.label_selector), namespaces, price=price)


_MATCHES_NOTHING = msgspec.json.encode(LabelSelector(match_labels={"": ""}))


def _selector(selector: LabelSelector | None) -> bytes:
    """The selector as JSON; an absent one matches nothing."""
    return _MATCHES_NOTHING if selector is None else msgspec.json.encode(selector)


def _counts(term: Term, selector: LabelSelector, pod: GroupPod) -> bool:
    if term.namespaces and pod.metadata.namespace not in term.namespaces:
        return False
    if term.kind is RuleKind.SPREAD and pod.metadata.deletion_timestamp is not None:
        return False  # PodTopologySpread ignores pods that are leaving; affinity does not
    return selects(selector, pod.metadata.labels or {})
