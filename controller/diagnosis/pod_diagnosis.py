"""The diagnosis of one pod: why it is on its node or pending, and problems of its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup
from controller.cluster.eligibility import has_node_constraints
from controller.cluster.pods import calls_extender, target_of
from controller.diagnosis.facts import Facts, PodFact
from controller.diagnosis.unschedulable import ROLLOUT_KINDS, NodeSurveys, find_reason
from kubekit.text import format_command, make_printable, pluralize
from kubekit.wire import FINISHED_PHASES, split_key

PodDiagnosisKind = Literal[
    "placed", "planned", "gated", "foreign-gate", "refused", "unschedulable", "waiting", "other-scheduler", "terminating", "finished"
]  # fmt: skip
NO_EXTENDER = "names a scheduler that does not call netaware's extender"
"""Completes "schedulerName X"."""


class PodDiagnosis(msgspec.Struct, frozen=True):
    """Why a pod is on its node, or why it is pending.

    Attributes:
        kind: its state. ``placed`` has a node; ``planned`` is gated by netaware with a target, ``gated`` without; ``foreign-gate`` is gated
            by others. ``refused`` would violate dependencies on every node; ``unschedulable`` has no node for another reason. Its scheduler
            has not tried it yet if it is ``waiting``, or ``other-scheduler``: a pod of a group whose scheduler does not call the extender.
            ``terminating`` is being deleted; ``finished`` succeeded or failed.
        summary: the state in one sentence, whose subject is "it".
        since: start of the state, unix seconds; None if unknown.
        until: time at which it ends at the latest, unix seconds; None if unknown. For a pod that had gates of others it is too early: the
            wait counts from the opening of the last of them, which the pod does not show.
        fix: commands and instructions that show more or change the state.
    """

    kind: PodDiagnosisKind
    summary: str
    since: float | None = None
    until: float | None = None
    fix: tuple[str, ...] = ()


def diagnose_pod(pod: PodFact, facts: Facts, *, has_leader: bool = True) -> PodDiagnosis:
    """Why one of the facts' pods is on its node, or why it is pending; see `findings.has_leader` for ``has_leader``."""
    describe_command = format_command("kubectl -n {} describe pod {}", pod.metadata.namespace, pod.metadata.name)
    if pod.status.phase in FINISHED_PHASES:
        return PodDiagnosis("finished", f"it has ended ({pod.status.phase})", fix=(describe_command,))
    if pod.metadata.deletion_timestamp is not None:
        return PodDiagnosis("terminating", "it is being deleted", fix=(describe_command,))
    if pod.spec.node_name:
        return _diagnose_placed(pod, facts)
    if pod.spec.scheduling_gates:
        return _diagnose_gated(pod, facts, describe_command, has_leader=has_leader)
    return _diagnose_queued(pod, facts, describe_command)


def _diagnose_placed(pod: PodFact, facts: Facts) -> PodDiagnosis:
    problem = find_label_problem(pod, facts.groups_by_key) if pod.group else ""
    if problem:
        summary = f"it is on {pod.spec.node_name}, placed as if it belonged to no AppGroup: {problem}"
        return PodDiagnosis("placed", summary, fix=list_label_fixes(pod))
    return PodDiagnosis("placed", f"it is on {pod.spec.node_name}")


def _diagnose_gated(pod: PodFact, facts: Facts, describe_command: str, *, has_leader: bool) -> PodDiagnosis:
    if pod.other_gates:
        noun = "gate" if len(pod.other_gates) == 1 else "gates"
        summary = f"it waits at {noun} {', '.join(pod.other_gates)}, which another controller opens"
        return PodDiagnosis("foreign-gate", summary, pod.created_s, fix=(describe_command,))
    if not has_leader:
        summary = "it waits at its gate, which no controller opens, because none leads"
        return PodDiagnosis("gated", summary, pod.created_s, fix=("kubectl netaware diagnose",))
    until = None if pod.created_s is None else pod.created_s + facts.max_gate_wait_s
    problem = find_label_problem(pod, facts.groups_by_key)
    if problem:
        return PodDiagnosis("gated", f"it waits at its gate: {problem}", pod.created_s, until, list_label_fixes(pod))
    first_restriction = "".join(f"; {text}" for text in list_restrictions(pod, NodeSurveys(facts.nodes))[:1])
    fix = (format_group_command("describe", pod.group_key),)
    target = target_of(pod)
    if target is not None and target.node:
        summary = (
            f"it waits for earlier workloads of AppGroup {pod.group}, planned onto {target.node}{first_restriction}"
        )
        return PodDiagnosis("planned", summary, pod.created_s, until, fix)
    summary = f"it waits for the plan of AppGroup {pod.group}{first_restriction}"
    return PodDiagnosis("gated", summary, pod.created_s, until, fix)


def _diagnose_queued(pod: PodFact, facts: Facts, describe_command: str) -> PodDiagnosis:
    if pod.is_unschedulable:
        return _diagnose_unschedulable(pod, facts)
    if pod.group and not uses_netaware(pod, facts):
        summary = (
            f"it has the label of AppGroup {pod.group}, but schedulerName {pod.printable_scheduler_name} {NO_EXTENDER}"
        )
        return PodDiagnosis("other-scheduler", summary, pod.created_s, fix=(format_scheduler_fix(facts),))
    summary = f"{pod.printable_scheduler_name} has not tried to place it yet"
    return PodDiagnosis("waiting", summary, pod.created_s, fix=(describe_command,))


def _diagnose_unschedulable(pod: PodFact, facts: Facts) -> PodDiagnosis:
    scheduled = pod.scheduled_condition
    surveys = NodeSurveys(facts.nodes)
    reason = find_reason(pod, surveys)
    text = f"{pod.printable_scheduler_name} finds no node for it: {reason.meaning} ({scheduled.message or scheduled.reason})"
    kind: PodDiagnosisKind = "refused" if reason.code == "max-cost" else "unschedulable"
    since = scheduled.changed_at_s or pod.created_s
    return PodDiagnosis(kind, "; ".join((text, *list_restrictions(pod, surveys))), since, fix=reason.fix)


def uses_netaware(pod: PodFact, facts: Facts) -> bool:
    """Whether netaware places the pod: by node affinity, or by a scheduler that calls its extender."""
    return pod.needs_no_extender or calls_extender(pod.printable_scheduler_name, facts.scheduler_names)


def format_scheduler_fix(facts: Facts) -> str:
    """The instruction that lets the extender place a pod."""
    return format_command("set schedulerName: {} in the pod template", next(iter(facts.scheduler_names), "NAME"))


def format_group_command(verb: str, group_key: str) -> str:
    """A kubectl command about an AppGroup."""
    namespace, name = split_key(group_key)
    return format_command("kubectl -n {} {} appgroup {}", namespace, verb, name)


def find_label_problem(pod: PodFact, groups: Mapping[str, AppGroup]) -> str:
    """Why the pod's labels name no workload of an AppGroup; empty if they name one. ``groups`` are by ``namespace/name``."""
    if not pod.group:
        return "it has no AppGroup label, so no plan places it"
    group = groups.get(pod.group_key)
    if group is None:
        return f"there is no AppGroup {pod.group} with pods of namespace {pod.metadata.namespace}"
    selectors = {make_printable(entry.workload.selector) for entry in group.spec.workloads or ()}
    if pod.workload in selectors:
        return ""
    existing_selectors = ", ".join(sorted(selectors)) or "none"
    return f"AppGroup {pod.group} has no workload with selector {pod.workload or '(no label)'}; it has {existing_selectors}"


def list_label_fixes(pod: PodFact) -> tuple[str, ...]:
    """Commands and instructions that correct the labels for AppGroup and workload."""
    inspection = (
        f"{format_group_command('get', pod.group_key)} -o yaml" if pod.group_key else "kubectl get appgroups -A"
    )
    correction = f"correct the labels {APPGROUP_LABEL} and {WORKLOAD_LABEL} in the pod template"
    if pod.owner is None or pod.owner[0] not in ROLLOUT_KINDS:
        return inspection, correction
    kind, name = pod.owner
    edit_command = format_command("kubectl -n {} edit {} {}", pod.metadata.namespace, kind.lower(), name)
    return inspection, f"{correction}: {edit_command}"


def list_restrictions(pod: PodFact, surveys: NodeSurveys) -> tuple[str, ...]:
    """Sentences about the nodes that the pod's node selector and affinity allow, and about taints if it tolerates those of none of them."""
    spec, survey = pod.spec, surveys.for_spec(pod.spec)
    sentences = []
    if has_node_constraints(spec):
        selector = ",".join(f"{key}={value}" for key, value in sorted((spec.node_selector or {}).items()))
        source = f"its nodeSelector {selector}" if selector else "its node affinity"
        sentences.append(f"{source} allows {_format_nodes(survey.zones)}")
    if survey.zones and not survey.tolerated_count:
        sentences.append(f"it tolerates the taints of none of {pluralize(len(survey.zones), 'node')}")
    return tuple(sentences)


def _format_nodes(zones: Sequence[str]) -> str:
    """The number of nodes and their zones: ``no node``, or ``2 nodes of z1``; ``zones`` has an entry per node."""
    if not zones:
        return "no node"
    names = sorted(set(zones) - {""})
    return pluralize(len(zones), "node") + (f" of {', '.join(names)}" if names else "")
