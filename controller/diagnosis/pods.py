"""The diagnosis of one pod, and findings about all pods. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from controller.appgroups.status import ADMITTED
from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup
from controller.cluster.eligibility import has_node_constraints
from controller.cluster.pods import calls_extender, target_of
from controller.diagnosis.facts import Facts, PodFact, unix_seconds
from controller.diagnosis.findings import MAX_AFFECTED, PodFinding
from controller.diagnosis.unschedulable import ROLLOUT_KINDS, NodeSurveys, message_of, parse_message, reason_of
from kubekit.conditions import find_condition
from kubekit.text import format_command, make_printable, pluralize
from kubekit.wire import FINISHED_PHASES, split_key
from netperf.contract import SCHEDULER

PodDiagnosisKind = Literal[
    "placed", "planned", "gated", "foreign-gate", "refused", "unschedulable", "waiting", "other-scheduler", "terminating", "finished"
]  # fmt: skip
ATTEMPT_TIMEOUT_S = 20.0
"""A healthy scheduler tries a new pod within this time."""
GATED_ATTEMPT_TIMEOUT_S = 60.0
"""A healthy scheduler tries a pod within this time after its gate has opened."""
LONG_WAIT_S = 600.0
"""Longer than pods wait in a scheduler's queue, or at a gate by any configuration."""
_NO_DEPENDENCIES = "they are placed as pods of no AppGroup, so that their dependencies have no effect"
_NOT_NETAWARE = "names a scheduler that does not call netaware's extender"
_REMOVE_GATES = [{"op": "remove", "path": "/spec/schedulingGates"}]


class PodDiagnosis(msgspec.Struct, frozen=True):
    """Why a pod is on its node, or why it is pending.

    Attributes:
        kind: its state. ``planned`` is gated by netaware with a target, ``gated`` without; ``foreign-gate`` is gated by others.
            ``refused`` would violate dependencies on every node; ``waiting`` has not been tried by its scheduler.
        summary: the state in one sentence.
        since: start of the state, unix seconds; None if unknown.
        until: time at which it ends at the latest, unix seconds; None if unknown.
        fix: commands that show more or change the state.
    """

    kind: PodDiagnosisKind
    summary: str
    since: float | None = None
    until: float | None = None
    fix: tuple[str, ...] = ()


def diagnose_pod(pod: PodFact, facts: Facts, *, has_leader: bool = True) -> PodDiagnosis:
    """Why a pod is on its node, or why it is pending.

    Args:
        pod: one of the facts' pods.
        facts: facts of the cluster.
        has_leader: whether a controller leads, see `findings.has_leader`.
    """
    describe = format_command("kubectl -n {} describe pod {}", pod.metadata.namespace, pod.metadata.name)
    if not pod.is_waiting:
        return _diagnose_placed(pod, facts, describe)
    if pod.spec.scheduling_gates:
        return _diagnose_gated(pod, facts, describe, has_leader=has_leader)
    if pod.is_unschedulable and pod.scheduled is not None:
        surveys = NodeSurveys(facts.nodes)
        reason = reason_of(pod, surveys)
        message = pod.scheduled.message or pod.scheduled.reason
        kind: PodDiagnosisKind = "refused" if reason.code == "max-cost" else "unschedulable"
        since = unix_seconds(pod.scheduled.last_transition_time) or pod.created_s
        summary = "; ".join(
            (f"{pod.scheduler} finds no node for it: {reason.meaning} ({message})", *restrictions(pod, surveys))
        )
        return PodDiagnosis(kind, summary, since, fix=reason.fix)
    if pod.group and not _uses_netaware(pod, facts):
        summary = f"it has the label of AppGroup {pod.group}, but schedulerName {pod.scheduler} {_NOT_NETAWARE}"
        return PodDiagnosis("other-scheduler", summary, pod.created_s, fix=(_scheduler_instruction(facts),))
    return PodDiagnosis("waiting", f"{pod.scheduler} has not answered yet", pod.created_s, fix=(describe,))


def _uses_netaware(pod: PodFact, facts: Facts) -> bool:
    """Whether node affinity places the pod, or its scheduler calls our extender."""
    return pod.has_placement or calls_extender(pod.scheduler, facts.our_schedulers)


def _diagnose_placed(pod: PodFact, facts: Facts, describe: str) -> PodDiagnosis:
    if pod.status.phase in FINISHED_PHASES:
        return PodDiagnosis("finished", f"it has ended ({pod.status.phase})", fix=(describe,))
    if pod.metadata.deletion_timestamp is not None:
        return PodDiagnosis("terminating", "it is being deleted", fix=(describe,))
    problem = label_problem(pod, _groups_by_key(facts)) if pod.group else ""
    if problem:
        summary = f"it is on {pod.spec.node_name}, placed as if it belonged to no AppGroup: {problem}"
        return PodDiagnosis("placed", summary, fix=_fix_label(pod))
    return PodDiagnosis("placed", f"it is on {pod.spec.node_name}")


def _scheduler_instruction(facts: Facts) -> str:
    return format_command("set schedulerName: {} in its template", next(iter(facts.our_schedulers), "NAME"))


def _diagnose_gated(pod: PodFact, facts: Facts, describe: str, *, has_leader: bool) -> PodDiagnosis:
    if pod.other_gates:
        noun = "gate" if len(pod.other_gates) == 1 else "gates"
        summary = f"it waits at {noun} {', '.join(pod.other_gates)}, which another controller opens"
        return PodDiagnosis("foreign-gate", summary, pod.created_s, fix=(describe,))
    if not has_leader:
        summary = "it waits at its gate, and no controller leads to open it"
        return PodDiagnosis("gated", summary, pod.created_s, fix=("kubectl netaware diagnose",))
    until = None if pod.created_s is None else pod.created_s + facts.max_wait_s
    problem = label_problem(pod, _groups_by_key(facts))
    if problem:
        return PodDiagnosis("gated", f"it waits at its gate: {problem}", pod.created_s, until, _fix_label(pod))
    restricted = restrictions(pod, NodeSurveys(facts.nodes))
    tail = f"; {restricted[0]}" if restricted else ""
    fix = (_group_command("describe", pod.group_key),)
    target = target_of(pod)
    if target is not None and target.node:
        summary = f"it waits for its turn in AppGroup {pod.group}, planned onto {target.node}{tail}"
        return PodDiagnosis("planned", summary, pod.created_s, until, fix)
    return PodDiagnosis("gated", f"it waits for the plan of AppGroup {pod.group}{tail}", pod.created_s, until, fix)


def _groups_by_key(facts: Facts) -> dict[str, AppGroup]:
    return {group.metadata.key: group for group in facts.groups}


def _group_command(verb: str, key: str) -> str:
    namespace, name = split_key(key)
    return format_command("kubectl -n {} {} appgroup {}", namespace, verb, name)


def label_problem(pod: PodFact, groups: Mapping[str, AppGroup]) -> str:
    """Why the pod's labels name no workload of an AppGroup; empty if they name one.

    Args:
        pod: of the facts.
        groups: AppGroups by key.
    """
    if not pod.group:
        return "it has no AppGroup label, so that no plan places it"
    group = groups.get(pod.group_key)
    if group is None:
        return f"there is no AppGroup {pod.group} that has pods of namespace {pod.metadata.namespace}"
    selectors = {make_printable(item.workload.selector) for item in group.spec.workloads or ()}
    if pod.workload in selectors:
        return ""
    existing = ", ".join(sorted(selectors)) or "none"
    return f"AppGroup {pod.group} has no workload with selector {pod.workload or '(no label)'}; it has {existing}"


def _fix_label(pod: PodFact) -> tuple[str, ...]:
    show = f"{_group_command('get', pod.group_key)} -o yaml" if pod.group_key else "kubectl get appgroups -A"
    correct = f"correct the labels {APPGROUP_LABEL} and {WORKLOAD_LABEL} in its template"
    if pod.owner is None or pod.owner[0] not in ROLLOUT_KINDS:
        return show, correct
    return (
        show,
        f"{correct}: {format_command('kubectl -n {} edit {} {}', pod.metadata.namespace, pod.owner[0].lower(), pod.owner[1])}",
    )


def restrictions(pod: PodFact, surveys: NodeSurveys) -> tuple[str, ...]:
    """Constraints of the pod's spec that exclude nodes, each in words."""
    spec, survey = pod.spec, surveys.survey(pod.spec)
    texts = []
    if has_node_constraints(spec):
        words = ",".join(f"{key}={value}" for key, value in sorted((spec.node_selector or {}).items()))
        source = f"its nodeSelector {words}" if words else "its node affinity"
        texts.append(f"{source} leaves {_count_nodes(survey.zones)}")
    if survey.zones and not survey.tolerated:
        texts.append(f"it tolerates the taints of none of {len(survey.zones)} nodes")
    return tuple(texts)


def _count_nodes(zones: Sequence[str]) -> str:
    if not zones:
        return "no node"
    names = sorted(set(zones) - {""})
    return pluralize(len(zones), "node") + (f" of {', '.join(names)}" if names else "")


def find_pod_findings(facts: Facts) -> Iterator[PodFinding]:
    """Findings about pods, one for all pods with the same cause."""
    yield from _unknown_workloads(facts)
    yield from _other_schedulers(facts)
    unschedulable = list(_unschedulable(facts))
    yield from unschedulable
    yield from _untried(facts)
    explained = {key for finding in unschedulable for key in finding.affects}
    yield from _gated_too_long(facts, explained)


def _affected(pods: Iterable[PodFact]) -> tuple[str, ...]:
    return tuple(pod.metadata.key for pod in pods)[:MAX_AFFECTED]


def _oldest(pods: Iterable[PodFact]) -> float | None:
    return min((pod.created_s for pod in pods if pod.created_s is not None), default=None)


def _describe(pods: list[PodFact]) -> str:
    return f"pod {pods[0].metadata.key}" if len(pods) == 1 else f"{len(pods)} pods such as {pods[0].metadata.key}"


def _unknown_workloads(facts: Facts) -> Iterator[PodFinding]:
    """Findings about pods whose labels name no workload, one for each namespace and problem."""
    groups, not_admitted = _groups_by_key(facts), set(_not_admitted(facts))
    suspects: list[tuple[PodFact, str]] = []
    for pod in facts.pods:
        needs_group = pod.is_active and (pod.group or (pod.is_waiting and pod.is_gated))
        problem = label_problem(pod, groups) if needs_group else ""
        # The finding namespace-not-admitted covers these pods.
        is_covered = not pod.group_key and (pod.metadata.namespace, pod.group) in not_admitted
        if problem and not is_covered:
            suspects.append((pod, problem))
    newest = _newest_by_owner(facts) if suspects else {}
    by_label: dict[tuple[str, str], list[PodFact]] = defaultdict(list)
    for pod, problem in suspects:
        # If the newest pod of the owner is right, a running rollout replaces this one.
        if label_problem(newest.get((pod.metadata.namespace, pod.owner), pod), groups):
            by_label[pod.metadata.namespace, problem].append(pod)
    for (_, problem), pods in sorted(by_label.items()):
        cause = (_NO_DEPENDENCIES,) if any(pod.spec.node_name for pod in pods) else ()
        summary, fix = f"{_describe(pods)}: {problem}", _fix_label(pods[0])
        yield PodFinding("unknown-workload", "warning", summary, cause, _oldest(pods), _affected(pods), fix)


def _not_admitted(facts: Facts) -> Iterator[tuple[str, str]]:
    """Namespaces of groups that do not admit them, each with the group's name."""
    for group in facts.groups:
        admitted = find_condition(group.status.conditions, ADMITTED)
        if admitted is not None and admitted.status == "False":
            for item in group.spec.workloads or ():
                yield item.workload.namespace, group.metadata.name


def _newest_by_owner(facts: Facts) -> dict[tuple[str, tuple[str, str] | None], PodFact]:
    """The newest active pod of each owner, by namespace and owner."""
    owned = [pod for pod in reversed(facts.pods) if pod.owner is not None and pod.is_active]
    return {(pod.metadata.namespace, pod.owner): pod for pod in sorted(owned, key=lambda pod: pod.created_s or 0)}


def _other_schedulers(facts: Facts) -> Iterator[PodFinding]:
    """Findings about AppGroups of which netaware places only some pods."""
    by_group: dict[str, list[PodFact]] = defaultdict(list)
    for pod in facts.pods:
        if pod.group_key and pod.metadata.deletion_timestamp is None:
            by_group[pod.group_key].append(pod)
    for key, pods in sorted(by_group.items()):
        others = [pod for pod in pods if not _uses_netaware(pod, facts)]
        if others and len(others) < len(pods):
            names = ", ".join(sorted({pod.scheduler for pod in others}))
            summary = f"{_describe(others)} of AppGroup {key}: schedulerName {names} {_NOT_NETAWARE}"
            yield PodFinding(
                "other-scheduler", "warning", summary, affects=_affected(others), fix=(_scheduler_instruction(facts),)
            )


def _unschedulable(facts: Facts) -> Iterator[PodFinding]:
    """Findings about pods without a node, by namespace, group and reason; gated pods of the same group are affected too."""
    by_cause: dict[tuple[str, str, str], list[PodFact]] = defaultdict(list)
    gated: dict[str, list[PodFact]] = defaultdict(list)
    surveys = NodeSurveys(facts.nodes)
    for pod in facts.pods:
        if pod.is_unschedulable:
            by_cause[pod.metadata.namespace, pod.group_key, parse_message(message_of(pod)).code].append(pod)
        elif pod.group_key and pod.is_gated:
            gated[pod.group_key].append(pod)
    for (_, group, code), pods in sorted(by_cause.items()):
        first, reason, message = pods[0], reason_of(pods[0], surveys), message_of(pods[0])
        summary = f"{_describe(pods)}: {first.scheduler} finds no node: {reason.meaning}"
        times = [unix_seconds(p.scheduled.last_transition_time) for p in pods if p.scheduled is not None]
        since = min((time for time in times if time is not None), default=_oldest(pods))
        cause = (*((message,) if message else ()), *restrictions(first, surveys))
        yield PodFinding(
            f"no-node-{code}", "warning", summary, cause, since, _affected((*pods, *gated[group])), reason.fix
        )


def _untried(facts: Facts) -> Iterator[PodFinding]:
    """Findings about pods that no scheduler has tried, by schedulerName: the name is wrong, or the scheduler hangs."""
    by_name: dict[str, list[PodFact]] = defaultdict(list)
    active = _active_schedulers(facts)
    for pod in facts.pods:
        if not pod.is_waiting or pod.spec.scheduling_gates or pod.is_unschedulable:
            continue
        name = pod.scheduler
        # A pod that was gated has the condition, and the time when its gate opened is unknown.
        timeout_s = ATTEMPT_TIMEOUT_S if pod.scheduled is None else GATED_ATTEMPT_TIMEOUT_S
        # An active scheduler may have a long queue.
        timeout_s = LONG_WAIT_S if name in active else timeout_s
        if pod.created_s is not None and facts.now - pod.created_s > timeout_s:
            by_name[name].append(pod)
    for name, pods in sorted(by_name.items()):
        summary = f"{_describe(pods)}: no scheduler named {name} has answered"
        fix: tuple[str, ...] = (f"{_scheduler_instruction(facts)}, if you run no scheduler of that name",)
        if name in facts.our_schedulers:
            fix = (
                format_command(
                    f"kubectl -n {{}} logs deployment/{SCHEDULER} --all-containers --tail=50", facts.netaware_namespace
                ),
                format_command(f"kubectl -n {{}} rollout restart deployment/{SCHEDULER}", facts.netaware_namespace),
            )
        alert = "NetawareSchedulerDown" if name in facts.our_schedulers else ""
        yield PodFinding("no-scheduler", "warning", summary, (), _oldest(pods), _affected(pods), fix, alert)


def _active_schedulers(facts: Facts) -> set[str]:
    """Names of schedulers that tried a pod within the last minute."""
    names: set[str] = set()
    for pod in facts.pods:
        if pod.scheduled is not None and (pod.spec.node_name or pod.is_unschedulable):
            at = unix_seconds(pod.scheduled.last_transition_time)
            if at is not None and facts.now - at < GATED_ATTEMPT_TIMEOUT_S:
                names.add(pod.scheduler)
    return names


def _gated_too_long(facts: Facts, explained: set[str]) -> Iterator[PodFinding]:
    """Findings about pods that wait at our gate for too long, except ``explained`` ones, which another finding affects."""
    groups = _groups_by_key(facts)
    by_group: dict[tuple[str, str], list[PodFact]] = defaultdict(list)
    for pod in facts.pods:
        if not pod.is_waiting or not pod.is_gated or pod.other_gates or pod.metadata.key in explained:
            continue
        is_overdue = pod.created_s is not None and facts.now - pod.created_s > LONG_WAIT_S
        if is_overdue and not label_problem(pod, groups):
            by_group[pod.metadata.namespace, pod.group_key].append(pod)
    for (namespace, key), pods in sorted(by_group.items()):
        names = [pod.metadata.name for pod in pods[:MAX_AFFECTED]]
        fix = (
            _group_command("describe", key),
            format_command("kubectl netaware explain pod {} -n {}", pods[0].metadata.name, namespace),
            format_command("kubectl -n {} patch pods {} --type=json -p {}", namespace, names, _REMOVE_GATES),
        )
        summary = (
            f"{len(pods)} pods of AppGroup {key} have waited at their gate for more than {LONG_WAIT_S / 60:.0f} min"
        )
        alert = "NetawarePodsGatedTooLong"
        yield PodFinding("gated-too-long", "warning", summary, (), _oldest(pods), _affected(pods), fix, alert)
