"""Finds bound pods outside a group that restrict or attract its pods, by topology spread or (anti-)affinity of either side."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

import msgspec

from controller.cluster.hosts import NodeCache, PodTemplate, TemplateKey, template_key_of
from controller.cluster.pods import Pod
from controller.scheduler.placement.pod_topology import Term, terms_of
from controller.scheduler.placement.problem import RuleKind
from kubekit.owners import controller_of, revision_of


class ForeignPods(msgspec.Struct, frozen=True):
    """Bound pods of one template.

    Attributes:
        pod: one of them, reduced to namespace, labels and constraints.
        pods_by_node: node -> number of them there.
        is_required: whether a required rule relates them to the group; otherwise only preferences do.
    """

    pod: Pod
    pods_by_node: Counter[str]
    is_required: bool


def find_foreign_pods(node_cache: NodeCache, pods: Iterable[Pod]) -> tuple[ForeignPods, ...]:
    """The bound pods outside a group that a rule relates to the group's pods. The group's inactive pods count as foreign."""
    active_pods = [pod for pod in pods if pod.is_active]
    representatives = list({_constraints_key(pod): pod for pod in active_pods}.values())
    terms = list(dict.fromkeys(term for pod in representatives for term in terms_of(pod)))
    # Pods of a StatefulSet or an indexed Job have equal constraints, but a label of their own.
    labels_by_pod = ((pod.metadata.namespace, pod.metadata.labels or {}) for pod in active_pods)
    own_labels = list({(ns, frozenset(labels.items())): (ns, labels) for ns, labels in labels_by_pod}.values())
    group_counts_by_template = _count_by_template(node_cache, active_pods)
    foreign_pods = []
    for key, template in node_cache.templates.items():
        kinds = _relating_rule_kinds(template, terms, own_labels)
        # `-` of Counter drops nodes without other pods.
        if kinds and (pods_by_node := template.pods_by_node - group_counts_by_template.get(key, Counter())):
            is_required = bool(kinds - {RuleKind.PREFERENCE})
            foreign_pods.append(ForeignPods(template.example_pod.pod_without_requests, pods_by_node, is_required))
    return tuple(foreign_pods)


def _constraints_key(pod: Pod) -> tuple[str, str, bool]:
    """A key that only pods with equal constraints share. `is_waiting` is part of it, because bound pods may have an older template."""
    owner = controller_of(pod.metadata)
    return owner.uid if owner is not None else pod.metadata.key, revision_of(pod.metadata), pod.is_waiting


def _count_by_template(node_cache: NodeCache, pods: Iterable[Pod]) -> dict[TemplateKey, Counter[str]]:
    """Template -> node -> number of these pods there."""
    counts: dict[TemplateKey, Counter[str]] = defaultdict(Counter)
    for pod in pods:
        info = node_cache.pods.get(pod.metadata.key)
        if info is not None:
            counts[template_key_of(info)][node_cache.assigned_node(pod.metadata.key)] += 1
    return counts


def _relating_rule_kinds(
    template: PodTemplate, terms: Collection[Term], own_labels: Iterable[tuple[str, Mapping[str, str]]]
) -> set[RuleKind]:
    """Kinds of the rules that relate a template to the group; ``own_labels`` are the namespaces and labels of the group's pods."""
    example = template.example_pod
    kinds = {term.kind for term in terms if term.selects(example.namespace, example.labels)}
    if template.terms is None:
        template.terms = tuple(terms_of(example.pod_without_requests))
    for term in template.terms:
        # A rule that both have counts the pods of both. Anti-affinity also keeps new pods away from the bound pods that have it.
        if term in terms or (
            term.kind is RuleKind.ANTI_AFFINITY
            and any(term.selects(namespace, labels) for namespace, labels in own_labels)
        ):
            kinds.add(term.kind)
    return kinds
