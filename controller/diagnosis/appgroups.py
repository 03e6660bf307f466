"""Findings about AppGroups: invalid specs, missing or surplus pods, violated limits, unbalanced replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

import msgspec

from controller.appgroups.order import order
from controller.appgroups.status import ADMITTED, BALANCED, COMPLETE, COSTS_MET, consent_command, spec_problems
from controller.cluster.graph import build_graph
from controller.cluster.resources import AppGroup
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import Finding
from controller.diagnosis.reading import seconds
from kubekit.conditions import find_condition
from kubekit.text import command
from kubekit.wire import Condition

PATIENCE_S = 300.0
"""A Deployment may take so long to create the pods that a group counts on."""


def find_groups(facts: Facts, unreachable: Collection[str]) -> Iterator[Finding]:
    """Findings of all groups.

    Args:
        facts: the moment.
        unreachable: zones that another finding names; violated dependencies there are its consequence.
    """
    members: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    for pod in facts.pods:
        if pod.is_active:
            members[pod.group_key] += 1
            waiting[pod.group_key] += pod.is_pending
    for group in facts.groups:
        key = group.metadata.key
        yield from _spec(group)
        yield from _members(group, members[key], waiting[key], facts.now)
        yield from _conditions(group, unreachable)


def _spec(group: AppGroup) -> Iterator[Finding]:
    key, graph = group.metadata.key, build_graph(group.spec)
    ordered = order(graph.children, group.spec.topology_sorting_algorithm)
    for reason, detail in spec_problems(group, graph, ordered):
        code, alert = ("dependency-cycle", "NetawareAppGroupCycle") if reason == "Cycle" else (f"spec-{reason}", "")
        summary, fix = f"AppGroup {key}: {detail}", (_edit(group),)
        yield Finding(code, "warning", summary, affects=(key,), fix=fix, alert=alert)


def _edit(group: AppGroup) -> str:
    return command("kubectl -n {} edit appgroup {}", group.metadata.namespace, group.metadata.name)


def _members(group: AppGroup, count: int, waiting: int, now: float) -> Iterator[Finding]:
    meta, wanted = group.metadata, group.spec.num_members
    found = find_condition(group.status.conditions, COMPLETE)
    since = seconds(found.last_transition_time) if found is not None and found.status == "False" else None
    if since is None or not 0 < count < wanted or waiting or now - since < PATIENCE_S:
        return
    summary = f"AppGroup {meta.key}: {wanted - count} of {wanted} pods were never created"
    cause = ("a Deployment is missing or scaled down, a ResourceQuota is used up, or a webhook refuses the pods",)
    fix = (
        command("kubectl -n {} get events --field-selector reason=FailedCreate", meta.namespace),
        command("kubectl -n {} get deployments,statefulsets,resourcequotas", meta.namespace),
        "raise the quota, scale the Deployment, or correct what refuses them",
    )
    yield Finding("members-missing", "warning", summary, cause, since, (meta.key,), fix)


def _admissions(group: AppGroup, refused: Condition) -> tuple[str, ...]:
    """Commands that admit the group to those namespaces of its spec that its condition names."""
    home, said = group.metadata.namespace, set(refused.message.replace(",", " ").split())
    named = {item.workload.namespace for item in group.spec.workloads or ()} - {"", home}
    found = tuple(consent_command(namespace, home) for namespace in sorted(named & said))
    return found or (command("kubectl -n {} describe appgroup {}", home, group.metadata.name),)


def _conditions(group: AppGroup, unreachable: Collection[str]) -> Iterator[Finding]:
    """Findings from conditions of the group's status."""
    meta = group.metadata

    def finding(found: Condition, code: str, summary: str, fix: tuple[str, ...], alert: str = "") -> Finding:
        since = seconds(found.last_transition_time)
        return Finding(
            code, "warning", f"AppGroup {meta.key}: {summary}", (found.message,), since, (meta.key,), fix, alert
        )

    refused = find_condition(group.status.conditions, ADMITTED)
    if refused is not None and refused.status == "False":
        yield finding(
            refused,
            "namespace-not-admitted",
            "other namespaces do not admit it to their pods",
            _admissions(group, refused),
        )
    costs = find_condition(group.status.conditions, COSTS_MET)
    if costs is not None and costs.status == "False" and not any(zone in costs.message for zone in unreachable):
        fix = (
            command("kubectl netaware graph {} -n {}", meta.name, meta.namespace),
            f"let the overlay descheduler move its pods, or raise maxNetworkCost: {_edit(group)}",
        )
        yield finding(
            costs,
            "costs-violated",
            "dependencies cost more than their maxNetworkCost",
            fix,
            "NetawareDependenciesViolated",
        )
    balanced = find_condition(group.status.conditions, BALANCED)
    if balanced is not None and balanced.status == "False":
        graph = command("kubectl netaware graph {} -n {}", meta.name, meta.namespace)
        fix = (graph, "let the descheduler move its pods, or restart its Deployments")
        summary = "its replicas are not balanced over zones or under load"
        found = finding(balanced, "not-balanced", summary, fix)
        yield msgspec.structs.replace(found, severity="info")
