"""Findings about pods that no scheduler or another scheduler places, that wait too long, or whose labels are wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from controller.appgroups.status import ADMITTED
from controller.cluster.pods import GATE
from controller.diagnosis.facts import Facts, PodFact
from controller.diagnosis.findings import MAX_AFFECTED, PodFinding
from controller.diagnosis.pod_diagnosis import (
    NO_EXTENDER,
    find_label_problem,
    format_group_command,
    format_scheduler_fix,
    list_label_fixes,
    list_restrictions,
    uses_netaware,
)
from controller.diagnosis.unschedulable import NodeSurveys, find_reason, parse_message
from kubekit.conditions import find_condition
from kubekit.text import format_command
from netperf.contract import SCHEDULER

ATTEMPT_TIMEOUT_S = 20.0
"""A healthy scheduler tries a new pod within this time."""
GATED_ATTEMPT_TIMEOUT_S = 60.0
"""A healthy scheduler tries a pod within this time after its gate has opened."""
LONG_WAIT_S = 600.0
"""A pod that waits longer in the queue of a scheduler, or at a gate, is reported; at a gate at least ``maxWaitS`` must have passed."""
OPENING_TIMEOUT_S = 60.0
"""Within this time after ``maxWaitS`` a gate is open, even if no controller runs and only the gate opener opens gates."""
_NO_DEPENDENCIES = "they are placed as pods of no AppGroup, so their dependencies have no effect"
_REMOVE_OUR_GATE = {"spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]}}


def find_pod_findings(facts: Facts) -> Iterator[PodFinding]:
    """Findings about pods, one for each cause."""
    yield from _find_unknown_workloads(facts)
    yield from _find_other_schedulers(facts)
    yield from _find_unschedulable(facts)
    yield from _find_untried(facts)
    yield from _find_gated_too_long(facts)


def _keys_of(pods: Iterable[PodFact]) -> tuple[str, ...]:
    return tuple(pod.metadata.key for pod in pods)


def _find_first_created_s(pods: Iterable[PodFact]) -> float | None:
    return min((pod.created_s for pod in pods if pod.created_s is not None), default=None)


def _format_pods(pods: list[PodFact]) -> str:
    return f"pod {pods[0].metadata.key}" if len(pods) == 1 else f"{len(pods)} pods such as {pods[0].metadata.key}"


def _find_unknown_workloads(facts: Facts) -> Iterator[PodFinding]:
    """Findings about active pods that need a group and whose labels name no workload, one for each namespace and problem."""
    groups, refusals = facts.groups_by_key, set(_find_refusals(facts))
    mislabeled_pods: list[tuple[PodFact, str]] = []
    for pod in facts.pods:
        needs_group = pod.is_active and (pod.group or (pod.is_waiting and pod.is_gated))
        problem = find_label_problem(pod, groups) if needs_group else ""
        # The finding namespace-not-admitted covers pods of a namespace that does not consent to the group.
        is_refused = not pod.group_key and (pod.metadata.namespace, pod.group) in refusals
        if problem and not is_refused:
            mislabeled_pods.append((pod, problem))
    newest_by_owner = _find_newest_by_owner(facts) if mislabeled_pods else {}
    pods_by_problem: dict[tuple[str, str], list[PodFact]] = defaultdict(list)
    for pod, problem in mislabeled_pods:
        # If the owner's newest pod has correct labels, a rollout is replacing this one.
        if find_label_problem(newest_by_owner.get((pod.metadata.namespace, pod.owner), pod), groups):
            pods_by_problem[pod.metadata.namespace, problem].append(pod)
    for (_, problem), pods in sorted(pods_by_problem.items()):
        cause = (_NO_DEPENDENCIES,) if any(pod.spec.node_name for pod in pods) else ()
        summary = f"{_format_pods(pods)}: {problem}"
        since, fix = _find_first_created_s(pods), list_label_fixes(pods[0])
        yield PodFinding("unknown-workload", "warning", summary, cause, since=since, affects=_keys_of(pods), fix=fix)


def _find_refusals(facts: Facts) -> Iterator[tuple[str, str]]:
    """Namespaces of the workloads of groups that are not admitted, each with the group's name."""
    for group in facts.groups:
        admitted = find_condition(group.status.conditions, ADMITTED)
        if admitted is not None and admitted.status == "False":
            for entry in group.spec.workloads or ():
                yield entry.workload.namespace, group.metadata.name


def _find_newest_by_owner(facts: Facts) -> dict[tuple[str, tuple[str, str] | None], PodFact]:
    """The newest active pod of each owner, by namespace and owner."""
    # Of pods with one creation time, the first of the facts counts.
    pods = [pod for pod in reversed(facts.pods) if pod.owner is not None and pod.is_active]
    return {(pod.metadata.namespace, pod.owner): pod for pod in sorted(pods, key=lambda pod: pod.created_s or 0)}


def _find_other_schedulers(facts: Facts) -> Iterator[PodFinding]:
    """Findings about AppGroups of which netaware places only some pods."""
    pods_by_group: dict[str, list[PodFact]] = defaultdict(list)
    for pod in facts.pods:
        if pod.group_key and pod.metadata.deletion_timestamp is None:
            pods_by_group[pod.group_key].append(pod)
    for group_key, pods in sorted(pods_by_group.items()):
        other_pods = [pod for pod in pods if not uses_netaware(pod, facts)]
        if other_pods and len(other_pods) < len(pods):
            names = ", ".join(sorted({pod.printable_scheduler_name for pod in other_pods}))
            summary = f"{_format_pods(other_pods)} of AppGroup {group_key}: schedulerName {names} {NO_EXTENDER}"
            fix = (format_scheduler_fix(facts),)
            yield PodFinding("other-scheduler", "warning", summary, affects=_keys_of(other_pods), fix=fix)


def _find_unschedulable(facts: Facts) -> Iterator[PodFinding]:
    """Findings about pods without a node, by namespace, group and reason; gated pods of the same group are affected too."""
    pods_by_reason: dict[tuple[str, str, str], list[PodFact]] = defaultdict(list)
    gated_by_group: dict[str, list[PodFact]] = defaultdict(list)
    surveys = NodeSurveys(facts.nodes)
    for pod in facts.pods:
        if pod.is_unschedulable:
            code = parse_message(pod.scheduled_condition.message).code
            pods_by_reason[pod.metadata.namespace, pod.group_key, code].append(pod)
        elif pod.group_key and pod.is_gated:
            gated_by_group[pod.group_key].append(pod)
    for (_, group_key, code), pods in sorted(pods_by_reason.items()):
        first_pod = pods[0]
        reason = find_reason(first_pod, surveys)
        summary = f"{_format_pods(pods)}: {first_pod.printable_scheduler_name} finds no node: {reason.meaning}"
        cause = tuple(filter(None, (first_pod.scheduled_condition.message, *list_restrictions(first_pod, surveys))))
        times_s = (pod.scheduled_condition.changed_at_s for pod in pods)
        since = min((time_s for time_s in times_s if time_s is not None), default=_find_first_created_s(pods))
        affects = _keys_of((*pods, *gated_by_group[group_key]))
        yield PodFinding(f"no-node-{code}", "warning", summary, cause, since=since, affects=affects, fix=reason.fix)


def _find_untried(facts: Facts) -> Iterator[PodFinding]:
    """Findings about pods that no scheduler has tried, by schedulerName: the name is wrong, or the scheduler hangs."""
    pods_by_scheduler: dict[str, list[PodFact]] = defaultdict(list)
    active_schedulers = _find_active_schedulers(facts)
    for pod in facts.pods:
        if not pod.is_waiting or pod.spec.scheduling_gates or pod.is_unschedulable:
            continue
        if pod.printable_scheduler_name in active_schedulers:
            timeout_s = LONG_WAIT_S  # The scheduler may have a long queue.
        elif pod.scheduled_condition.status == "Unknown":
            timeout_s = ATTEMPT_TIMEOUT_S
        else:
            timeout_s = GATED_ATTEMPT_TIMEOUT_S  # The condition is that of the gate, and does not have the time at which it opened.
        if pod.created_s is not None and facts.now_s - pod.created_s > timeout_s:
            pods_by_scheduler[pod.printable_scheduler_name].append(pod)
    for name, pods in sorted(pods_by_scheduler.items()):
        alert = ""
        fix: tuple[str, ...] = (f"{format_scheduler_fix(facts)}, if you run no scheduler of that name",)
        if name in facts.scheduler_names:
            alert = "NetawareSchedulerDown"
            logs = facts.format_kubectl(f"logs deployment/{SCHEDULER} --all-containers --tail=50")
            fix = (logs, facts.format_kubectl(f"rollout restart deployment/{SCHEDULER}"))
        summary = f"{_format_pods(pods)}: no scheduler named {name} responds"
        since, affects = _find_first_created_s(pods), _keys_of(pods)
        yield PodFinding("no-scheduler", "warning", summary, since=since, affects=affects, fix=fix, alert=alert)


def _find_active_schedulers(facts: Facts) -> set[str]:
    """Names of schedulers that bound or refused a pod within the last `GATED_ATTEMPT_TIMEOUT_S`."""
    names: set[str] = set()
    for pod in facts.pods:
        attempt_s = pod.scheduled_condition.changed_at_s if pod.spec.node_name or pod.is_unschedulable else None
        if attempt_s is not None and facts.now_s - attempt_s < GATED_ATTEMPT_TIMEOUT_S:
            names.add(pod.printable_scheduler_name)
    return names


def _find_gated_too_long(facts: Facts) -> Iterator[PodFinding]:
    """Findings about pods that are gated for too long. Other findings cover pods with wrong labels and groups with an unschedulable pod."""
    groups = facts.groups_by_key
    max_wait_s = max(LONG_WAIT_S, facts.max_gate_wait_s + OPENING_TIMEOUT_S)
    groups_without_node = {pod.group_key for pod in facts.pods if pod.is_unschedulable}
    pods_by_group: dict[tuple[str, str], list[PodFact]] = defaultdict(list)
    for pod in facts.pods:
        if not pod.is_waiting or not pod.is_gated or pod.other_gates or pod.group_key in groups_without_node:
            continue
        is_overdue = pod.created_s is not None and facts.now_s - pod.created_s > max_wait_s
        if is_overdue and not find_label_problem(pod, groups):
            pods_by_group[pod.metadata.namespace, pod.group_key].append(pod)
    for (namespace, group_key), pods in sorted(pods_by_group.items()):
        names = [pod.metadata.name for pod in pods[:MAX_AFFECTED]]
        fix = (
            format_group_command("describe", group_key),
            format_command("kubectl netaware explain pod {} -n {}", pods[0].metadata.name, namespace),
            format_command("kubectl -n {} patch pods {} -p {}", namespace, names, _REMOVE_OUR_GATE),
        )
        summary = f"{_format_pods(pods)} of AppGroup {group_key}: gated for more than {max_wait_s / 60:.0f} min"
        since, affects = _find_first_created_s(pods), _keys_of(pods)
        alert = "NetawarePodsGatedTooLong"
        yield PodFinding("gated-too-long", "warning", summary, since=since, affects=affects, fix=fix, alert=alert)
