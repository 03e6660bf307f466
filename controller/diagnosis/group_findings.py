"""Findings about AppGroups: invalid specs, missing pods, refusing namespaces, violated limits, unbalanced replicas."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator

from controller.appgroups.order import sort_workloads
from controller.appgroups.status import ADMITTED, BALANCED, COMPLETE, COSTS_MET, consent_command, spec_faults_of
from controller.cluster.crds import AppGroup
from controller.cluster.dependency_graph import build_graph
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import ConditionFinding, Finding, GroupFinding, Severity
from controller.diagnosis.pod_diagnosis import format_group_command
from kubekit.conditions import find_condition
from kubekit.text import format_command
from kubekit.wire import Condition

CREATION_TIMEOUT_S = 300.0
"""A Deployment may take this long to create its pods."""


def find_group_findings(facts: Facts, unreachable_zones: Collection[str]) -> Iterator[Finding]:
    """Findings about all AppGroups; violated dependencies are left out if their message names a zone of ``unreachable_zones``."""
    pod_counts: Counter[str] = Counter()
    pending_counts: Counter[str] = Counter()
    for pod in facts.pods:
        if pod.is_active:
            pod_counts[pod.group_key] += 1
            pending_counts[pod.group_key] += pod.is_waiting
    for group in facts.groups:
        key = group.metadata.key
        yield from _find_spec_problems(group)
        yield from _find_missing_members(group, pod_counts[key], pending_counts[key], facts.now_s)
        yield from _find_failed_conditions(group, unreachable_zones)


def _find_spec_problems(group: AppGroup) -> Iterator[Finding]:
    key = group.metadata.key
    graph = build_graph(group.spec)
    order = sort_workloads(graph.callees_by_caller(), group.spec.topology_sorting_algorithm)
    for fault in spec_faults_of(group, graph, order):
        is_cycle = fault.reason == "Cycle"
        code = "dependency-cycle" if is_cycle else f"spec-{fault.reason}"
        alert = "NetawareAppGroupCycle" if is_cycle else ""
        summary = f"AppGroup {key}: {fault.message}"
        fix = (format_group_command("edit", key),)
        yield ConditionFinding(code, "warning", summary, affects=(key,), fix=fix, alert=alert)


def _find_missing_members(group: AppGroup, pod_count: int, pending_count: int, now_s: float) -> Iterator[Finding]:
    """A finding if some of the group's pods do not exist for a long time, and none is pending; a group without any pod is not in use."""
    meta, required = group.metadata, group.spec.num_members
    complete = find_condition(group.status.conditions, COMPLETE)
    since = complete.changed_at_s if complete is not None and complete.status == "False" else None
    if since is None or not 0 < pod_count < required or pending_count or now_s - since < CREATION_TIMEOUT_S:
        return
    summary = f"AppGroup {meta.key}: {required - pod_count} of {required} pods do not exist"
    cause = ("a Deployment is missing or scaled down, a ResourceQuota is used up, or a webhook rejects the pods",)
    fix = (
        format_command("kubectl -n {} get events --field-selector reason=FailedCreate", meta.namespace),
        format_command("kubectl -n {} get deployments,statefulsets,resourcequotas", meta.namespace),
        "raise the quota, scale the Deployment, or correct the webhook that rejects the pods",
    )
    yield GroupFinding("members-missing", "warning", summary, cause, since=since, affects=(meta.key,), fix=fix)


def _find_failed_conditions(group: AppGroup, unreachable_zones: Collection[str]) -> Iterator[Finding]:
    """Findings from the conditions Admitted, CostsMet and Balanced, if they are False."""
    meta = group.metadata
    show_graph = format_command("kubectl netaware graph {} -n {}", meta.name, meta.namespace)
    failed = {condition.type: condition for condition in group.status.conditions or () if condition.status == "False"}

    def build_finding(condition_type: str, code: str, summary: str, fix: tuple[str, ...], alert: str = "") -> Finding:
        condition = failed[condition_type]
        severity: Severity = "info" if condition_type == BALANCED else "warning"
        summary, cause = f"AppGroup {meta.key}: {summary}", (condition.message,)
        affects, since = (meta.key,), condition.changed_at_s
        return ConditionFinding(code, severity, summary, cause, since=since, affects=affects, fix=fix, alert=alert)

    if ADMITTED in failed:
        summary = "namespaces of its workloads do not consent to it"
        fix = _format_consent_commands(group, failed[ADMITTED])
        yield build_finding(ADMITTED, "namespace-not-admitted", summary, fix)
    if COSTS_MET in failed and not _find_words(failed[COSTS_MET]).intersection(unreachable_zones):
        summary = "dependencies cost more than their maxNetworkCost"
        edit = format_group_command("edit", meta.key)
        move = f"let the overlay descheduler move its pods, or raise maxNetworkCost: {edit}"
        yield build_finding(COSTS_MET, "costs-violated", summary, (show_graph, move), "NetawareDependenciesViolated")
    if BALANCED in failed:
        summary = "its replicas are not balanced over zones or under load"
        fix = (show_graph, "let the descheduler move its pods, or restart its Deployments")
        yield build_finding(BALANCED, "not-balanced", summary, fix)


def _format_consent_commands(group: AppGroup, not_admitted: Condition) -> tuple[str, ...]:
    """Commands by which the namespaces that the condition names consent to the group; a command that shows the group if it names none."""
    group_namespace = group.metadata.namespace
    namespaces = {entry.workload.namespace for entry in group.spec.workloads or ()} - {"", group_namespace}
    commands = tuple(
        consent_command(namespace, group_namespace) for namespace in sorted(namespaces & _find_words(not_admitted))
    )
    return commands or (format_group_command("describe", group.metadata.key),)


def _find_words(condition: Condition) -> set[str]:
    """The words of a condition's message, such as names of zones and namespaces."""
    return set(re.findall(r"[\w.-]+", condition.message))
