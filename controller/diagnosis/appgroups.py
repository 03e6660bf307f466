"""Findings about AppGroups: invalid specs, missing or surplus pods, violated limits, unbalanced replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from controller.appgroups.order import sort_workloads
from controller.appgroups.status import ADMITTED, BALANCED, COMPLETE, COSTS_MET, consent_command, spec_faults_of
from controller.cluster.crds import AppGroup
from controller.cluster.dependency_graph import build_graph
from controller.diagnosis.facts import Facts, unix_seconds
from controller.diagnosis.findings import ConditionFinding, Finding, GroupFinding, Severity
from kubekit.conditions import find_condition
from kubekit.text import format_command
from kubekit.wire import Condition

CREATION_TIMEOUT_S = 300.0
"""A Deployment may take this long to create its pods."""


def find_group_findings(facts: Facts, unreachable: Collection[str]) -> Iterator[Finding]:
    """Findings of all groups.

    Args:
        facts: facts of the cluster.
        unreachable: zones that another finding names; violated dependencies there follow from it.
    """
    members: Counter[str] = Counter()
    pending: Counter[str] = Counter()
    for pod in facts.pods:
        if pod.is_active:
            members[pod.group_key] += 1
            pending[pod.group_key] += pod.is_waiting
    for group in facts.groups:
        key = group.metadata.key
        yield from _spec_findings(group)
        yield from _missing_members(group, members[key], pending[key], facts.now)
        yield from _condition_findings(group, unreachable)


def _spec_findings(group: AppGroup) -> Iterator[Finding]:
    key, graph = group.metadata.key, build_graph(group.spec)
    order = sort_workloads(graph.callees_by_caller(), group.spec.topology_sorting_algorithm)
    for fault in spec_faults_of(group, graph, order):
        code, alert = f"spec-{fault.reason}", ""
        if fault.reason == "Cycle":
            code, alert = "dependency-cycle", "NetawareAppGroupCycle"
        summary, fix = f"AppGroup {key}: {fault.message}", (_edit_command(group),)
        yield ConditionFinding(code, "warning", summary, affects=(key,), fix=fix, alert=alert)


def _edit_command(group: AppGroup) -> str:
    return format_command("kubectl -n {} edit appgroup {}", group.metadata.namespace, group.metadata.name)


def _missing_members(group: AppGroup, count: int, pending: int, now: float) -> Iterator[Finding]:
    meta, required = group.metadata, group.spec.num_members
    complete = find_condition(group.status.conditions, COMPLETE)
    since = unix_seconds(complete.last_transition_time) if complete is not None and complete.status == "False" else None
    if since is None or not 0 < count < required or pending or now - since < CREATION_TIMEOUT_S:
        return
    summary = f"AppGroup {meta.key}: {required - count} of {required} pods were never created"
    cause = ("a Deployment is missing or scaled down, a ResourceQuota is used up, or a webhook refuses the pods",)
    fix = (
        format_command("kubectl -n {} get events --field-selector reason=FailedCreate", meta.namespace),
        format_command("kubectl -n {} get deployments,statefulsets,resourcequotas", meta.namespace),
        "raise the quota, scale the Deployment, or correct what refuses them",
    )
    yield GroupFinding("members-missing", "warning", summary, cause, since, (meta.key,), fix)


def _consent_commands(group: AppGroup, not_admitted: Condition) -> tuple[str, ...]:
    """Commands by which the namespaces that the condition names admit the group."""
    group_namespace, words = group.metadata.namespace, set(not_admitted.message.replace(",", " ").split())
    namespaces = {item.workload.namespace for item in group.spec.workloads or ()} - {"", group_namespace}
    commands = tuple(consent_command(namespace, group_namespace) for namespace in sorted(namespaces & words))
    return commands or (format_command("kubectl -n {} describe appgroup {}", group_namespace, group.metadata.name),)


def _condition_findings(group: AppGroup, unreachable: Collection[str]) -> Iterator[Finding]:
    """Findings from conditions of the group's status that are False."""
    meta = group.metadata
    show_graph = format_command("kubectl netaware graph {} -n {}", meta.name, meta.namespace)
    failed = {condition.type: condition for condition in group.status.conditions or () if condition.status == "False"}

    def finding(type_: str, code: str, summary: str, fix: tuple[str, ...], alert: str = "") -> Finding:
        since, cause = unix_seconds(failed[type_].last_transition_time), (failed[type_].message,)
        severity: Severity = "info" if type_ == BALANCED else "warning"
        return ConditionFinding(
            code, severity, f"AppGroup {meta.key}: {summary}", cause, since, (meta.key,), fix, alert
        )

    if ADMITTED in failed:
        summary = "other namespaces do not admit it to their pods"
        yield finding(ADMITTED, "namespace-not-admitted", summary, _consent_commands(group, failed[ADMITTED]))
    if COSTS_MET in failed and not any(zone in failed[COSTS_MET].message for zone in unreachable):
        summary = "dependencies cost more than their maxNetworkCost"
        move = f"let the overlay descheduler move its pods, or raise maxNetworkCost: {_edit_command(group)}"
        yield finding(COSTS_MET, "costs-violated", summary, (show_graph, move), "NetawareDependenciesViolated")
    if BALANCED in failed:
        summary = "its replicas are not balanced over zones or under load"
        fix = (show_graph, "let the descheduler move its pods, or restart its Deployments")
        yield finding(BALANCED, "not-balanced", summary, fix)
