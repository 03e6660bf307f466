"""Findings about AppGroups: specs that make no sense, pods that are missing or too many, limits that do not hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from controller.cluster.graph import build_graph
from controller.cluster.resources import AppGroup
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import Finding
from controller.diagnosis.reading import seconds
from controller.groups.order import ALGORITHMS, order
from controller.groups.status import ADMITTED, COMPLETE, COSTS_MET, consent_command
from kubekit.conditions import find
from kubekit.text import command
from kubekit.wire import Condition

PATIENCE_S = 300.0
"""Pods that a group counts on may take so long to come."""


def find_groups(facts: Facts, places: Collection[str]) -> Iterator[Finding]:
    """Findings of all groups.

    Args:
        facts: the moment.
        places: zones of which something worse is known; that dependencies suffer there follows from it.
    """
    members: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    for pod in facts.pods:
        if pod.stays:
            members[pod.group_key] += 1
            waiting[pod.group_key] += pod.waits
    for group in facts.groups:
        key = group.metadata.key
        yield from _spec(group)
        yield from _members(group, members[key], waiting[key], facts.now)
        yield from _said(group, places)


def _spec(group: AppGroup) -> Iterator[Finding]:
    meta = group.metadata
    edit = (_edit(group),)
    graph = build_graph(group.spec)
    for fault in graph.faults:
        what = f"AppGroup {meta.key}: {fault.detail}"
        yield Finding(f"spec-{fault.problem}", "warning", what, hurts=(meta.key,), do=edit)
    algorithm = group.spec.topology_sorting_algorithm
    for cycle in order(graph.children, algorithm).cycles:
        names = " → ".join(graph.selectors[i] for i in cycle)
        what = f"AppGroup {meta.key}: dependencies form a cycle ({names}), so their order is arbitrary"
        yield Finding("cycle", "warning", what, hurts=(meta.key,), do=edit, alert="NetawareAppGroupCycle")
    if algorithm and algorithm not in ALGORITHMS:
        what = f"AppGroup {meta.key}: algorithm {algorithm!r} is not known; write one of {', '.join(ALGORITHMS)}"
        yield Finding("spec-UnknownAlgorithm", "warning", what, hurts=(meta.key,), do=edit)


def _edit(group: AppGroup) -> str:
    return command("kubectl -n {} edit appgroup {}", group.metadata.namespace, group.metadata.name)


def _members(group: AppGroup, count: int, waiting: int, now: float) -> Iterator[Finding]:
    meta, wanted = group.metadata, group.spec.num_members
    if count > wanted > 0:
        what = f"AppGroup {meta.key} has {count} pods, and numMembers says {wanted}"
        patch = {"spec": {"numMembers": count}}
        raise_it = command("kubectl -n {} patch appgroup {} --type=merge -p {}", meta.namespace, meta.name, patch)
        yield Finding("members-exceeded", "info", what, hurts=(meta.key,), do=(raise_it,))
    found = find(group.status.conditions, COMPLETE)
    since = seconds(found.last_transition_time) if found is not None and found.status == "False" else None
    if since is None or not 0 < count < wanted or waiting or now - since < PATIENCE_S:
        return
    what = f"AppGroup {meta.key}: {wanted - count} of {wanted} pods were never made"
    because = ("a Deployment that is missing or scaled down, a ResourceQuota, or a webhook that refuses them",)
    do = (
        command("kubectl -n {} get events --field-selector reason=FailedCreate", meta.namespace),
        command("kubectl -n {} get deployments,statefulsets,resourcequotas", meta.namespace),
        "raise the quota, scale the Deployment, or correct what refuses them",
    )
    yield Finding("members-missing", "warning", what, because, since, (meta.key,), do)


def _consents(group: AppGroup, refused: Condition) -> tuple[str, ...]:
    """What lets the group into those namespaces of its spec that its condition names."""
    home, said = group.metadata.namespace, set(refused.message.replace(",", " ").split())
    named = {item.workload.namespace for item in group.spec.workloads or ()} - {"", home}
    found = tuple(consent_command(namespace, home) for namespace in sorted(named & said))
    return found or (command("kubectl -n {} describe appgroup {}", home, group.metadata.name),)


def _said(group: AppGroup, places: Collection[str]) -> Iterator[Finding]:
    """What its status says and its spec does not show."""
    meta = group.metadata

    def finding(found: Condition, code: str, what: str, do: tuple[str, ...], alert: str = "") -> Finding:
        since = seconds(found.last_transition_time)
        return Finding(code, "warning", f"AppGroup {meta.key}: {what}", (found.message,), since, (meta.key,), do, alert)

    refused = find(group.status.conditions, ADMITTED)
    if refused is not None and refused.status == "False":
        yield finding(refused, "no-consent", "other namespaces keep their pods from it", _consents(group, refused))
    costs = find(group.status.conditions, COSTS_MET)
    if costs is not None and costs.status == "False" and not any(place in costs.message for place in places):
        do = (
            command("kubectl netaware graph {} -n {}", meta.name, meta.namespace),
            f"let the overlay descheduler move its pods, or raise maxNetworkCost: {_edit(group)}",
        )
        yield finding(
            costs, "costs-violated", "dependencies cost more than they may", do, "NetawareDependenciesViolated"
        )
