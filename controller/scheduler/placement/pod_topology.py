"""Converts topologySpreadConstraints, pod affinity and anti-affinity to the domain rules of a `Problem`, and checks them for one pod.

Required terms must hold; preferred terms and ScheduleAnyway have a price. Anti-affinity of bound pods applies to new pods, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial

import msgspec
import numpy as np

from controller.cluster.eligibility import Constraints
from controller.cluster.hosts import Host
from controller.cluster.pods import Pod, PodAffinityTerm, PodSpec, SpreadConstraint
from controller.scheduler.placement.problem import COUNTED, OWNER, Bools, DomainRule, Ints, RuleKind
from kubekit.selectors import LabelSelector, Selector, compile_or_none

_decode_selector = msgspec.json.Decoder(LabelSelector).decode
_decode_pod_spec = msgspec.json.Decoder(PodSpec).decode

REASON_BY_KIND = {
    RuleKind.SPREAD: "topology spread",
    RuleKind.ANTI_AFFINITY: "pod anti-affinity",
    RuleKind.AFFINITY: "pod affinity",
}
_SYMMETRIC_KINDS = frozenset({RuleKind.ANTI_AFFINITY, RuleKind.PREFERENCE})
"""Kinds whose terms on bound pods apply to new pods, too; preferences only if a new pod has the same term."""
_PREFERENCE_PRICE = 1.0
"""`DomainRule.price` of a preferred anti-affinity term of weight 100: an average replica gains less by shorter calls."""


class Term(msgspec.Struct, frozen=True):
    """A topologySpreadConstraint or (anti-)affinity term of a pod. Equal terms of several pods become one rule.

    Attributes:
        kind: kind of the rule.
        topology_key: label whose values are the domains.
        selector: LabelSelector of the counted pods, as JSON.
        namespaces: namespaces of the counted pods; empty for all.
        max_skew: maxSkew of a spread constraint.
        min_domains: minDomains of a spread constraint; 0 without minDomains.
        price: price of a preference, see `DomainRule.price`.
        node_constraints: the part of the owner's spec that decides which nodes a spread constraint counts, as JSON; empty for all nodes.
        node_labels: labels that a node must have to be counted: the keys of all spread constraints of the owner.
    """

    kind: RuleKind
    topology_key: str
    selector: bytes
    namespaces: tuple[str, ...]
    max_skew: int = 1
    min_domains: int = 0
    price: float = 0.0
    node_constraints: bytes = b""
    node_labels: tuple[str, ...] = ()

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether the term counts pods of a namespace with these labels."""
        selector = _compile_selector(self.selector)
        is_in_namespace = not self.namespaces or namespace in self.namespaces
        return is_in_namespace and selector is not None and selector.matches(labels)


@lru_cache(1000)
def _compile_selector(selector: bytes) -> Selector | None:
    return compile_or_none(_decode_selector(selector))


class DomainRuleBuilder:
    """Builds the domain rules of classes; ``pods`` has one pod of each class, ``bound_pods`` the index of its host and each pod that stays."""

    def __init__(self, pods: Sequence[Pod], hosts: Sequence[Host], bound_pods: Sequence[tuple[int, Pod]]) -> None:
        self._pods, self._hosts, self._bound_pods = pods, hosts, bound_pods
        self._domains_of = cache(partial(domains_of, hosts))

    def build(self) -> tuple[DomainRule, ...]:
        """The rules in which a class has a role, in the order of the pods' terms."""
        classes_by_term: dict[Term, list[int]] = {}
        for class_, pod in enumerate(self._pods):
            for term in terms_of(pod):
                classes_by_term.setdefault(term, []).append(class_)
        bound_hosts_by_term: dict[Term, list[int]] = {}
        for host, pod in self._bound_pods:
            for term in terms_of(pod):
                if term in classes_by_term or term.kind is RuleKind.ANTI_AFFINITY:
                    bound_hosts_by_term.setdefault(term, []).append(host)
        terms = dict.fromkeys([*classes_by_term, *bound_hosts_by_term])
        rules = (self._build_rule(t, classes_by_term.get(t, ()), bound_hosts_by_term.get(t, ())) for t in terms)
        return tuple(rule for rule in rules if rule.roles)

    def _build_rule(self, term: Term, classes: Sequence[int], bound_hosts: Sequence[int]) -> DomainRule:
        """The rule of a term, given the classes whose pods have the term, and the host of each bound pod that has it."""
        domain_of, domain_count = self._domains_of(term.topology_key)
        domain_of = np.where(self._counted_hosts(term), domain_of, -1)
        roles: Counter[int] = Counter()
        for class_ in classes:
            roles[class_] |= OWNER
        for class_, pod in enumerate(self._pods):
            if _is_counted(term, pod):
                roles[class_] |= COUNTED
        counts_for_minimum: Bools = np.zeros(domain_count, np.bool_)
        counts_for_minimum[domain_of[domain_of >= 0]] = True
        bound_counted, bound_owners = np.zeros(domain_count, np.int64), np.zeros(domain_count, np.int64)
        for host, pod in self._bound_pods:
            if domain_of[host] >= 0 and _is_counted(term, pod):
                bound_counted[domain_of[host]] += 1
        for host in bound_hosts if term.kind in _SYMMETRIC_KINDS else ():
            if domain_of[host] >= 0:
                bound_owners[domain_of[host]] += 1
        return DomainRule(
            kind=term.kind,
            roles=dict(roles),
            domain_of=domain_of,
            bound_counted=bound_counted,
            bound_owners=bound_owners,
            counts_for_minimum=counts_for_minimum,
            max_skew=term.max_skew,
            lacks_domains=0 < int(counts_for_minimum.sum()) < term.min_domains,
            price=term.price,
        )

    def _counted_hosts(self, term: Term) -> Bools:
        """[host] whether the term counts its pods. A spread constraint ignores nodes that its node policies exclude."""
        is_counted: Bools = np.ones(len(self._hosts), np.bool_)
        for key in term.node_labels:
            is_counted &= self._domains_of(key)[0] >= 0
        if term.node_constraints:
            spec = _decode_pod_spec(term.node_constraints)
            unmet, honours_taints = Constraints(spec).unmet_constraint, spec.tolerations is not None
            reasons = (unmet(h.name, h.labels, h.taints if honours_taints else ()) for h in self._hosts)
            is_counted &= np.array([not reason for reason in reasons], np.bool_)
        return is_counted


def domains_of(hosts: Sequence[Host], key: str) -> tuple[Ints, int]:
    """[host] its topology domain by the label ``key``, -1 without the label; and the number of domains."""
    values = [host.labels.get(key) for host in hosts]
    names = sorted({value for value in values if value is not None})
    index_of = {name: index for index, name in enumerate(names)}
    return np.array([-1 if value is None else index_of[value] for value in values], np.int64), len(names)


def unschedulable_reasons(
    pod: Pod, hosts: Sequence[Host], bound_pods: Sequence[tuple[int, Pod]], kinds: Container[RuleKind] = REASON_BY_KIND
) -> dict[int, str]:
    """Host index -> kind of the first rule about other pods that excludes a pod from the host; without the other hosts.

    ``hosts`` are all hosts, ``bound_pods`` are pairs of host index and other pod, and ``kinds`` are the kinds of rules to check.
    """
    reasons: dict[int, str] = {}
    for rule in DomainRuleBuilder([pod], hosts, bound_pods).build():
        if rule.kind in kinds:
            for host in np.flatnonzero(_refused_hosts(rule)).tolist():
                reasons.setdefault(host, REASON_BY_KIND[rule.kind])
    return reasons


def _refused_hosts(rule: DomainRule) -> Bools:
    """[host] whether a required rule excludes class 0, which is the only class, from the host."""
    role, domain_of = rule.roles.get(0, 0), rule.domain_of
    is_owner, is_counted = bool(role & OWNER), bool(role & COUNTED)
    has_no_domain, no_hosts = domain_of < 0, np.zeros(len(domain_of), np.bool_)
    if not len(rule.bound_counted):
        return no_hosts if rule.kind is RuleKind.ANTI_AFFINITY else has_no_domain
    counted, owners = rule.bound_counted[domain_of], rule.bound_owners[domain_of]
    if rule.kind is RuleKind.ANTI_AFFINITY:
        refused: Bools = ~has_no_domain & ((counted > 0) & is_owner | (owners > 0) & is_counted)
    elif not is_owner:
        refused = no_hosts
    elif rule.kind is RuleKind.SPREAD:
        has_minimum = rule.counts_for_minimum.any() and not rule.lacks_domains
        minimum = int(rule.bound_counted[rule.counts_for_minimum].min()) if has_minimum else 0
        refused = has_no_domain | (counted + is_counted - minimum > rule.max_skew)
    else:
        is_first_replica = is_counted and not rule.bound_counted.any()
        refused = has_no_domain | ((counted == 0) & (not is_first_replica))
    return refused


def terms_of(pod: Pod) -> Iterator[Term]:
    """Yields the topology spread constraints and (anti-)affinity terms of a pod."""
    for constraint in pod.spec.topology_spread_constraints or ():
        yield _spread_term(pod, constraint)
    affinity = pod.spec.affinity
    anti_affinity = affinity.pod_anti_affinity if affinity else None
    pod_affinity = affinity.pod_affinity if affinity else None
    # Preferred affinity has a tenth of the price of preferred anti-affinity, with the opposite sign.
    for terms, kind, divisor in (
        (anti_affinity, RuleKind.ANTI_AFFINITY, 100),
        (pod_affinity, RuleKind.AFFINITY, -1000),
    ):
        if terms is not None:
            for term in terms.required_during_scheduling_ignored_during_execution or ():
                yield _affinity_term(pod, term, kind)
            for preferred in terms.preferred_during_scheduling_ignored_during_execution or ():
                price = _PREFERENCE_PRICE * preferred.weight / divisor
                yield _affinity_term(pod, preferred.pod_affinity_term, RuleKind.PREFERENCE, price)


def spread_selector(pod_labels: Mapping[str, str], constraint: SpreadConstraint) -> LabelSelector | None:
    """The selector of the pods that a pod's spread constraint counts; None if it counts none. matchLabelKeys add the pod's values."""
    selector = constraint.label_selector
    if selector is None:
        return None
    pod_values = {key: pod_labels[key] for key in constraint.match_label_keys or () if key in pod_labels}
    if not (selector.match_labels or selector.match_expressions or pod_values):
        return None  # PodTopologySpread counts no pods by an empty selector.
    return msgspec.structs.replace(selector, match_labels={**(selector.match_labels or {}), **pod_values})


def _spread_term(pod: Pod, constraint: SpreadConstraint) -> Term:
    """The term of a spread constraint."""
    selector = spread_selector(pod.metadata.labels or {}, constraint)
    required = (c for c in pod.spec.topology_spread_constraints or () if c.when_unsatisfiable != "ScheduleAnyway")
    key, encoded, namespaces = constraint.topology_key, _encode_selector(selector), (pod.metadata.namespace,)
    if constraint.when_unsatisfiable == "ScheduleAnyway":
        return Term(RuleKind.PREFERENCE, key, encoded, namespaces, price=_PREFERENCE_PRICE)
    return Term(
        RuleKind.SPREAD,
        key,
        encoded,
        namespaces,
        max_skew=max(constraint.max_skew, 1),
        min_domains=constraint.min_domains or 0,
        node_constraints=_node_constraints(pod.spec, constraint),
        node_labels=tuple(sorted({c.topology_key for c in required})),
    )


def _node_constraints(spec: PodSpec, constraint: SpreadConstraint) -> bytes:
    """The part of a pod's spec that decides which nodes its constraint counts, as JSON; empty for all nodes."""
    constraints = PodSpec()
    if constraint.node_affinity_policy != "Ignore":
        affinity = spec.affinity
        if affinity is not None:
            affinity = msgspec.structs.replace(affinity, pod_affinity=None, pod_anti_affinity=None)
        constraints = PodSpec(node_selector=spec.node_selector, affinity=affinity)
    if constraint.node_taints_policy == "Honor":
        constraints = msgspec.structs.replace(constraints, tolerations=spec.tolerations or [])
    return b"" if constraints == PodSpec() else msgspec.json.encode(constraints)


def _affinity_term(pod: Pod, term: PodAffinityTerm, kind: RuleKind, price: float = 0.0) -> Term:
    """The `Term` of an (anti-)affinity term. A namespaceSelector selects all namespaces, because labels of namespaces are not read."""
    namespaces = tuple(sorted(term.namespaces or [pod.metadata.namespace])) if term.namespace_selector is None else ()
    return Term(kind, term.topology_key, _encode_selector(term.label_selector), namespaces, price=price)


def _encode_selector(selector: LabelSelector | None) -> bytes:
    """A selector as JSON; an absent selector matches nothing."""
    return msgspec.json.encode(LabelSelector(match_labels={"": ""}) if selector is None else selector)


def _is_counted(term: Term, pod: Pod) -> bool:
    if term.kind is RuleKind.SPREAD and pod.metadata.deletion_timestamp is not None:
        return False  # PodTopologySpread ignores terminating pods; InterPodAffinity does not.
    return term.selects(pod.metadata.namespace, pod.metadata.labels or {})
