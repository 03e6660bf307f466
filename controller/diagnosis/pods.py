"""Why a pod is pending, and the findings about all pending pods. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from controller.appgroups.status import ADMITTED
from controller.cluster.eligibility import has_node_constraints
from controller.cluster.pods import GATE, serves
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup
from controller.diagnosis.facts import Facts, PodFact
from controller.diagnosis.findings import MAX_AFFECTED, Finding
from controller.diagnosis.reading import seconds
from controller.diagnosis.unschedulable import ROLLED_OUT, NodeSurveys, classify, message_of, reason_of
from kubekit.conditions import find_condition
from kubekit.text import command, printable
from kubekit.wire import FINISHED, split_key
from netperf.contract import SCHEDULER

Kind = Literal[
    "placed",
    "planned",
    "gated",
    "foreign-gate",
    "refused",
    "unschedulable",
    "waiting",
    "other-scheduler",
    "terminating",
    "finished",
]
SOON_S, PATIENCE_S, LONG_S = 20.0, 60.0, 600.0
"""The longest a healthy scheduler takes; the same for a pod that waited at a gate; longer than any gate is configured to stay shut."""
_ALONE = "placed as if it belonged to no AppGroup"
_NO_DEPENDENCIES = "they are placed as pods of no AppGroup, so that their dependencies count for nothing"
_OPEN = [{"op": "remove", "path": "/spec/schedulingGates"}]


class PodDiagnosis(msgspec.Struct, frozen=True):
    """Why a pod is where it is, or why it is pending.

    Attributes:
        kind: its state; ``planned`` waits at its gate for its turn, ``refused`` is excluded from every node by its dependencies.
        summary: the same in one sentence.
        since, until: unix seconds; None if unknown. It waits no longer than ``until``.
        fix: the next commands.
    """

    kind: Kind
    summary: str
    since: float | None = None
    until: float | None = None
    fix: tuple[str, ...] = ()


def diagnose_pod(pod: PodFact, facts: Facts, *, has_leader: bool = True) -> PodDiagnosis:
    """Why one pod is where it is.

    Args:
        pod: which.
        facts: of the same moment.
        has_leader: whether some controller leads, see `findings.has_leader`.
    """
    describe = command("kubectl -n {} describe pod {}", pod.namespace, pod.name)
    if not pod.is_pending:
        return _not_pending(pod, facts, describe)
    if pod.gates:
        return _gated(pod, facts, describe, has_leader=has_leader)
    by = pod.scheduler_name
    if pod.found_no_node and pod.scheduled is not None:
        surveys = NodeSurveys(facts.nodes)
        reason = reason_of(pod, surveys)
        message = pod.scheduled.message or pod.scheduled.reason
        kind: Kind = "refused" if reason.code == "max-cost" else "unschedulable"
        since = seconds(pod.scheduled.last_transition_time) or pod.created
        summary = "; ".join((f"{by} finds no node for it: {reason.meaning} ({message})", *limits_of(pod, surveys)))
        return PodDiagnosis(kind, summary, since, fix=reason.fix)
    if pod.group and not _asks_us(pod, facts):
        summary = f"it carries the label of AppGroup {pod.group}, but schedulerName {by} names a scheduler that does not ask us"
        return PodDiagnosis("other-scheduler", summary, pod.created, fix=(_use_ours(facts),))
    return PodDiagnosis("waiting", f"{by} has not answered yet", pod.created, fix=(describe,))


def _asks_us(pod: PodFact, facts: Facts) -> bool:
    return pod.has_placement or serves(pod.scheduler, facts.our_schedulers)


def _not_pending(pod: PodFact, facts: Facts, describe: str) -> PodDiagnosis:
    if pod.phase in FINISHED:
        return PodDiagnosis("finished", f"it has ended ({pod.phase})", fix=(describe,))
    if pod.terminating:
        return PodDiagnosis("terminating", "it is being deleted", fix=(describe,))
    wrong = unknown_workload(pod, _by_key(facts)) if pod.group else ""
    if wrong:
        return PodDiagnosis("placed", f"it is on {pod.node}, {_ALONE}: {wrong}", fix=_fix_label(pod))
    return PodDiagnosis("placed", f"it is on {pod.node}")


def _use_ours(facts: Facts) -> str:
    return command("set schedulerName: {} in its template", next(iter(facts.our_schedulers), "NAME"))


def _gated(pod: PodFact, facts: Facts, describe: str, *, has_leader: bool) -> PodDiagnosis:
    foreign = _foreign_gates(pod)
    if foreign:
        summary = f"it waits at {'gate' if len(foreign) == 1 else 'gates'} {', '.join(foreign)}, which another controller opens"
        return PodDiagnosis("foreign-gate", summary, pod.created, fix=(describe,))
    if not has_leader:
        summary = "it waits at its gate, and no controller leads to open it"
        return PodDiagnosis("gated", summary, pod.created, fix=("kubectl netaware diagnose",))
    until = None if pod.created is None else pod.created + facts.max_wait_s
    wrong = unknown_workload(pod, _by_key(facts))
    if wrong:
        return PodDiagnosis("gated", f"it waits at its gate: {wrong}", pod.created, until, _fix_label(pod))
    held = limits_of(pod, NodeSurveys(facts.nodes))
    tail = f"; {held[0]}" if held else ""
    fix = (_on_group("describe", pod.group_key),)
    if pod.target:
        summary = f"it waits for its turn in AppGroup {pod.group}, planned onto {pod.target}{tail}"
        return PodDiagnosis("planned", summary, pod.created, until, fix)
    return PodDiagnosis("gated", f"it waits for the plan of AppGroup {pod.group}{tail}", pod.created, until, fix)


def _foreign_gates(pod: PodFact) -> tuple[str, ...]:
    return tuple(gate for gate in pod.gates if gate != GATE)


def _by_key(facts: Facts) -> dict[str, AppGroup]:
    return {group.metadata.key: group for group in facts.groups}


def _on_group(verb: str, key: str) -> str:
    namespace, name = split_key(key)
    return command("kubectl -n {} {} appgroup {}", namespace, verb, name)


def unknown_workload(pod: PodFact, groups: Mapping[str, AppGroup]) -> str:
    """What is wrong with the pod's labels; empty if they name a workload of its group.

    Args:
        pod: which.
        groups: the AppGroups by key.
    """
    if not pod.group:
        return "it has no AppGroup label, so that no plan places it"
    group = groups.get(pod.group_key)
    if group is None:
        return f"there is no AppGroup {pod.group} that has pods of namespace {pod.namespace}"
    selectors = {printable(item.workload.selector) for item in group.spec.workloads or ()}
    if pod.workload in selectors:
        return ""
    known = ", ".join(sorted(selectors)) or "none"
    return f"AppGroup {pod.group} has no workload with selector {pod.workload or '(no label)'}; it has {known}"


def _fix_label(pod: PodFact) -> tuple[str, ...]:
    look = f"{_on_group('get', pod.group_key)} -o yaml" if pod.group_key else "kubectl get appgroups -A"
    correct = f"correct the labels {APPGROUP_LABEL} and {WORKLOAD_LABEL} in its template"
    if pod.owner is None or pod.owner[0] not in ROLLED_OUT:
        return look, correct
    return look, f"{correct}: {command('kubectl -n {} edit {} {}', pod.namespace, pod.owner[0].lower(), pod.owner[1])}"


def limits_of(pod: PodFact, surveys: NodeSurveys) -> tuple[str, ...]:
    """Constraints in the pod's spec that leave few nodes."""
    spec, survey = pod.spec, surveys.of(pod.spec)
    found = []
    if has_node_constraints(spec):
        words = ",".join(f"{key}={value}" for key, value in sorted((spec.node_selector or {}).items()))
        source = f"its nodeSelector {words}" if words else "its node affinity"
        found.append(f"{source} leaves {_where(survey.zones)}")
    if survey.zones and not survey.tolerated:
        found.append(f"it tolerates the taints of none of {len(survey.zones)} nodes")
    return tuple(found)


def _where(zones: Sequence[str]) -> str:
    if not zones:
        return "no node"
    named = sorted(set(zones) - {""})
    return f"{len(zones)} {'node' if len(zones) == 1 else 'nodes'}" + (f" of {', '.join(named)}" if named else "")


def find_pods(facts: Facts) -> Iterator[Finding]:
    """Findings about pods, one for all that wait for the same cause."""
    yield from _unknown_workloads(facts)
    yield from _other_schedulers(facts)
    stuck = list(_unschedulable(facts))
    yield from stuck
    yield from _unanswered(facts)
    blamed = {key for finding in stuck for key in finding.affects}
    yield from _gated_too_long(facts, blamed)


def _names(pods: Iterable[PodFact]) -> tuple[str, ...]:
    return tuple(pod.key for pod in pods)[:MAX_AFFECTED]


def _oldest(pods: Iterable[PodFact]) -> float | None:
    return min((pod.created for pod in pods if pod.created is not None), default=None)


def _counted(pods: list[PodFact]) -> str:
    return f"pod {pods[0].key}" if len(pods) == 1 else f"{len(pods)} pods such as {pods[0].key}"


def _unknown_workloads(facts: Facts) -> Iterator[Finding]:
    """Pods whose labels name no workload, pending or placed."""
    groups, newest, refused = _by_key(facts), _newest(facts), set(_refused(facts))
    by_label: dict[tuple[str, str], list[PodFact]] = defaultdict(list)
    for pod in facts.pods:
        asks = pod.is_active and (pod.group or (pod.is_pending and GATE in pod.gates))
        if not asks or not (wrong := unknown_workload(pod, groups)):
            continue
        # The finding about the group says why it may not have them.
        if not pod.group_key and (pod.namespace, pod.group) in refused:
            continue
        # A rollout replaces the pods of an older template with other labels.
        latest = newest.get((pod.namespace, pod.owner), pod)
        if not unknown_workload(latest, groups):
            continue
        by_label[pod.namespace, wrong].append(pod)
    for (_, wrong), pods in sorted(by_label.items()):
        cause = (_NO_DEPENDENCIES,) if any(pod.node for pod in pods) else ()
        summary, fix = f"{_counted(pods)}: {wrong}", _fix_label(pods[0])
        yield Finding("unknown-workload", "warning", summary, cause, _oldest(pods), _names(pods), fix)


def _refused(facts: Facts) -> Iterator[tuple[str, str]]:
    """Namespaces that groups name and that do not admit them, each with the group's name."""
    for group in facts.groups:
        admitted = find_condition(group.status.conditions, ADMITTED)
        if admitted is not None and admitted.status == "False":
            for item in group.spec.workloads or ():
                yield item.workload.namespace, group.metadata.name


def _newest(facts: Facts) -> dict[tuple[str, tuple[str, str] | None], PodFact]:
    """By namespace and owner, of those that have one, the newest pod."""
    found: dict[tuple[str, tuple[str, str] | None], PodFact] = {}
    for pod in facts.pods:
        known = found.get((pod.namespace, pod.owner))
        if pod.owner is not None and pod.is_active and (known is None or (pod.created or 0) > (known.created or 0)):
            found[pod.namespace, pod.owner] = pod
    return found


def _other_schedulers(facts: Facts) -> Iterator[Finding]:
    """Pods of a group that another scheduler places, while ours places others of it."""
    by_group: dict[str, list[PodFact]] = defaultdict(list)
    for pod in facts.pods:
        if pod.group_key and not pod.terminating:
            by_group[pod.group_key].append(pod)
    for key, pods in sorted(by_group.items()):
        others = [pod for pod in pods if not _asks_us(pod, facts)]
        if others and len(others) < len(pods):
            by = ", ".join(sorted({pod.scheduler_name for pod in others}))
            summary = f"{_counted(others)} of AppGroup {key}: schedulerName {by} names a scheduler that does not ask us"
            yield Finding("other-scheduler", "warning", summary, affects=_names(others), fix=(_use_ours(facts),))


def _unschedulable(facts: Facts) -> Iterator[Finding]:
    """By the reason that excludes most nodes; gated pods of the same groups wait behind them and are affected as well."""
    by_cause: dict[tuple[str, str, str], list[PodFact]] = defaultdict(list)
    gated: dict[str, list[PodFact]] = defaultdict(list)
    surveys = NodeSurveys(facts.nodes)
    for pod in facts.pods:
        if pod.found_no_node:
            by_cause[pod.namespace, pod.group_key, classify(message_of(pod)).code].append(pod)
        elif pod.group_key and GATE in pod.gates:
            gated[pod.group_key].append(pod)
    for (_, group, code), pods in sorted(by_cause.items()):
        first, reason, message = pods[0], reason_of(pods[0], surveys), message_of(pods[0])
        behind = gated[group]
        summary = f"{_counted(pods)}: {first.scheduler_name} finds no node: {reason.meaning}"
        begun = [seconds(p.scheduled.last_transition_time) for p in pods if p.scheduled is not None]
        since = min((at for at in begun if at is not None), default=_oldest(pods))
        cause = (*((message,) if message else ()), *limits_of(first, surveys))
        yield Finding(f"no-node-{code}", "warning", summary, cause, since, _names((*pods, *behind)), reason.fix)


def _unanswered(facts: Facts) -> Iterator[Finding]:
    """Pods that no scheduler has tried: the name is wrong, or the scheduler hangs."""
    by_name: dict[str, list[PodFact]] = defaultdict(list)
    busy = _answering(facts)
    for pod in facts.pods:
        name = pod.scheduler_name
        # A scheduler with a long queue has not reached all of them, and the time of a gate's opening is unknown.
        patience_s = LONG_S if name in busy else PATIENCE_S if pod.scheduled is not None else SOON_S
        old = pod.created is not None and facts.now - pod.created > patience_s
        if pod.is_pending and not pod.gates and not pod.found_no_node and old:
            by_name[name].append(pod)
    for name, pods in sorted(by_name.items()):
        summary = f"{_counted(pods)}: no scheduler named {name} has answered"
        fix: tuple[str, ...] = (f"{_use_ours(facts)}, if you run no scheduler of that name",)
        if name in facts.our_schedulers:
            fix = (
                command(f"kubectl -n {{}} logs deployment/{SCHEDULER} --all-containers --tail=50", facts.home),
                command(f"kubectl -n {{}} rollout restart deployment/{SCHEDULER}", facts.home),
            )
        alert = "NetawareSchedulerDown" if name in facts.our_schedulers else ""
        yield Finding("no-scheduler", "warning", summary, (), _oldest(pods), _names(pods), fix, alert)


def _answering(facts: Facts) -> set[str]:
    """Names of schedulers that found a node for some pod a moment ago, or found none."""
    found: set[str] = set()
    for pod in facts.pods:
        if pod.scheduled is not None and (pod.node or pod.found_no_node):
            at = seconds(pod.scheduled.last_transition_time)
            if at is not None and facts.now - at < PATIENCE_S:
                found.add(pod.scheduler_name)
    return found


def _gated_too_long(facts: Facts, blamed: set[str]) -> Iterator[Finding]:
    """Pods that wait at our gate for longer than any configuration allows, without a known reason."""
    groups = _by_key(facts)
    by_group: dict[tuple[str, str], list[PodFact]] = defaultdict(list)
    for pod in facts.pods:
        old = pod.created is not None and facts.now - pod.created > LONG_S
        if (
            pod.is_pending
            and pod.gates == (GATE,)
            and old
            and pod.key not in blamed
            and not unknown_workload(pod, groups)
        ):
            by_group[pod.namespace, pod.group_key].append(pod)
    for (namespace, key), pods in sorted(by_group.items()):
        names = [pod.name for pod in pods[:MAX_AFFECTED]]
        fix = (
            _on_group("describe", key),
            command("kubectl netaware explain pod {} -n {}", pods[0].name, namespace),
            command("kubectl -n {} patch pods {} --type=json -p {}", namespace, names, _OPEN),
        )
        summary = f"{len(pods)} pods of AppGroup {key} have waited at their gate for more than {LONG_S / 60:.0f} min"
        yield Finding(
            "gated-too-long", "warning", summary, (), _oldest(pods), _names(pods), fix, "NetawarePodsGatedTooLong"
        )
