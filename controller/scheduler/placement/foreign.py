"""Bound pods outside a group that restrict where its pods may go: (anti-)affinity and topology spread."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from controller.cluster.eligibility import compile_or_none
from controller.cluster.hosts import NodeCache, PodTemplate, TemplateKey, template_key_of
from controller.cluster.pods import GroupPod
from controller.scheduler.placement.pod_topology import Term, read_selector, terms_of
from controller.scheduler.placement.problem import RuleKind
from kubekit.owners import controller_of, revision_of
from kubekit.selectors import Selector


class ForeignPods(msgspec.Struct, frozen=True):
    """Pods of one template.

    Attributes:
        pod: its namespace, labels and constraints.
        nodes: node -> how many of them are there.
        required: a rule that must hold counts them; else only a preference does.
    """

    pod: GroupPod
    nodes: Counter[str]
    required: bool


def foreign_pods(node_cache: NodeCache, pods: Iterable[GroupPod]) -> tuple[ForeignPods, ...]:
    """The foreign pods that matter for a plan of a group.

    Args:
        node_cache: all bound pods.
        pods: of the group; those that are being deleted count as foreign.
    """
    own = [pod for pod in pods if pod.is_active]
    models = list({_template_id(pod): pod for pod in own}.values())
    terms = list(dict.fromkeys(term for model in models for term in terms_of(model)))
    found = []
    own_by_template: dict[TemplateKey, Counter[str]] | None = None
    for key, template in node_cache.templates.items():
        kinds = _relating_rule_kinds(template, terms, models)
        if not kinds:
            continue
        own_by_template = _count_by_template(node_cache, own) if own_by_template is None else own_by_template
        nodes = template.nodes - own_by_template.get(key, Counter())
        if nodes:
            found.append(ForeignPods(template.sample.planning_pod, nodes, required=bool(kinds - {RuleKind.PREFERENCE})))
    return tuple(found)


def _template_id(pod: GroupPod) -> tuple[str, str, bool]:
    """Equal for pods with the same constraints. A bound pod may be of an older template than a waiting one of its owner."""
    owner = controller_of(pod.metadata)
    return owner.uid if owner is not None else pod.metadata.key, revision_of(pod.metadata), pod.is_waiting


def _count_by_template(node_cache: NodeCache, pods: Iterable[GroupPod]) -> dict[TemplateKey, Counter[str]]:
    """Template -> node -> pods among these."""
    found: dict[TemplateKey, Counter[str]] = defaultdict(Counter)
    for pod in pods:
        info = node_cache.bound_pod(pod.metadata.key)
        if info is not None:
            found[template_key_of(info)][node_cache.assigned_node(pod.metadata.key)] += 1
    return found


def _relating_rule_kinds(template: PodTemplate, terms: Collection[Term], models: Sequence[GroupPod]) -> set[RuleKind]:
    """Kinds of the rules that relate pods of a template to pods of the group."""
    model = template.sample
    found = {term.kind for term in terms if _selects(term, model.namespace, model.labels)}
    if template.terms is None:
        template.terms = tuple(terms_of(model.planning_pod))
    for term in template.terms:
        repels = term.kind is RuleKind.ANTI_AFFINITY
        if term in terms or (
            repels and any(_selects(term, m.metadata.namespace, m.metadata.labels or {}) for m in models)
        ):
            found.add(term.kind)
    return found


def _selects(term: Term, namespace: str, labels: Mapping[str, str]) -> bool:
    if term.namespaces and namespace not in term.namespaces:
        return False
    selector = _compiled(term.selector)
    return selector is not None and selector.matches(labels)


@lru_cache(1000)
def _compiled(selector: bytes) -> Selector | None:
    return compile_or_none(read_selector(selector))
