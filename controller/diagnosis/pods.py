"""Why is my pod pending: the verdict first, then since when, by whom, until when, and the next command. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from controller.cluster.eligibility import has_node_constraints
from controller.cluster.pods import GATE, serves
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup
from controller.diagnosis.facts import Facts, PodFact
from controller.diagnosis.findings import MOST_HURT, Finding
from controller.diagnosis.reading import seconds
from controller.diagnosis.unschedulable import ROLLED_OUT, Surveys, obstacle_of, said_of, spot
from controller.groups.status import ADMITTED
from kubekit.conditions import find
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
    "not-ours",
    "leaving",
    "finished",
]
SOON_S, PATIENCE_S, LONG_S = 20.0, 60.0, 600.0
"""What a scheduler's answer takes at most while all is well, and behind a gate; what no configuration of gates means to take."""
_ALONE = "placed as if it were of no AppGroup"
_TAKEN_FOR_STRANGERS = "placed as pods of no AppGroup: what they call, and who calls them, counts for nothing"
_OPEN = [{"op": "remove", "path": "/spec/schedulingGates"}]


class PodVerdict(msgspec.Struct, frozen=True):
    """Why a pod is where it is, or is not.

    Attributes:
        kind: the verdict; ``planned`` waits at its gate for its turn, ``refused`` was kept from every node by its dependencies.
        what: in one sentence.
        since, until: unix seconds; None where nothing tells it. It waits no longer than ``until``.
        do: the next commands.
    """

    kind: Kind
    what: str
    since: float | None = None
    until: float | None = None
    do: tuple[str, ...] = ()


def judge_pod(pod: PodFact, facts: Facts, *, leads: bool = True) -> PodVerdict:
    """The verdict on one pod.

    Args:
        pod: which.
        facts: of the same moment.
        leads: whether some controller leads, as `diagnose` finds it.
    """
    describe = command("kubectl -n {} describe pod {}", pod.namespace, pod.name)
    if not pod.waits:
        return _settled(pod, facts, describe)
    if pod.gates:
        return _gated(pod, facts, describe, leads=leads)
    by = pod.placed_by
    if pod.found_no_node and pod.scheduled is not None:
        surveys = Surveys(facts.nodes)
        obstacle = obstacle_of(pod, surveys)
        said = pod.scheduled.message or pod.scheduled.reason
        kind: Kind = "refused" if obstacle.code in {"max-cost", "pair-bandwidth"} else "unschedulable"
        since = seconds(pod.scheduled.last_transition_time) or pod.created
        what = "; ".join((f"{by} finds no node for it: {obstacle.says} ({said})", *held_by(pod, surveys)))
        return PodVerdict(kind, what, since, do=obstacle.do)
    if pod.group and not _is_placed_by_us(pod, facts):
        what = f"it carries the label of AppGroup {pod.group}, but schedulerName {by} hands it to a scheduler that does not ask us"
        return PodVerdict("not-ours", what, pod.created, do=(_take_ours(facts),))
    return PodVerdict("waiting", f"{by} has not answered yet", pod.created, do=(describe,))


def _is_placed_by_us(pod: PodFact, facts: Facts) -> bool:
    return pod.told or serves(pod.scheduler, facts.our_schedulers)


def _settled(pod: PodFact, facts: Facts, describe: str) -> PodVerdict:
    if pod.phase in FINISHED:
        return PodVerdict("finished", f"it has ended ({pod.phase})", do=(describe,))
    if pod.leaving:
        return PodVerdict("leaving", "it is being deleted", do=(describe,))
    wrong = unknown_workload(pod, _by_key(facts)) if pod.group else ""
    if wrong:
        return PodVerdict("placed", f"it is on {pod.node}, {_ALONE}: {wrong}", do=_fix_label(pod))
    return PodVerdict("placed", f"it is on {pod.node}")


def _take_ours(facts: Facts) -> str:
    name = next(iter(facts.our_schedulers), "NAME of a scheduler that runs")
    return f"set schedulerName: {name} in its template"


def _gated(pod: PodFact, facts: Facts, describe: str, *, leads: bool) -> PodVerdict:
    foreign = _foreign_gates(pod)
    if foreign:
        what = f"it waits at {'gate' if len(foreign) == 1 else 'gates'} {', '.join(foreign)}, which somebody else opens"
        return PodVerdict("foreign-gate", what, pod.created, do=(describe,))
    if not leads:
        what = "it waits at its gate, and no controller leads that would open it"
        return PodVerdict("gated", what, pod.created, do=("kubectl netaware why",))
    until = None if pod.created is None else pod.created + facts.max_wait_s
    wrong = unknown_workload(pod, _by_key(facts))
    if wrong:
        return PodVerdict("gated", f"it waits at its gate: {wrong}", pod.created, until, _fix_label(pod))
    held = held_by(pod, Surveys(facts.nodes))
    tail = f"; {held[0]}" if held else ""
    do = (_on_group("describe", pod.group_key),)
    if pod.target:
        what = f"it waits for its turn in AppGroup {pod.group}, planned onto {pod.target}{tail}"
        return PodVerdict("planned", what, pod.created, until, do)
    return PodVerdict("gated", f"it waits for the plan of AppGroup {pod.group}{tail}", pod.created, until, do)


def _foreign_gates(pod: PodFact) -> tuple[str, ...]:
    return tuple(gate for gate in pod.gates if gate != GATE)


def _by_key(facts: Facts) -> dict[str, AppGroup]:
    return {group.metadata.key: group for group in facts.groups}


def _on_group(verb: str, key: str) -> str:
    namespace, name = split_key(key)
    return command("kubectl -n {} {} appgroup {}", namespace, verb, name)


def unknown_workload(pod: PodFact, groups: Mapping[str, AppGroup]) -> str:
    """What is wrong with the pod's labels; empty when they name a workload of the group that it belongs to.

    Args:
        pod: which.
        groups: the AppGroups by key.
    """
    if not pod.group:
        return "it has no AppGroup label, so that no plan will ever name it"
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


def held_by(pod: PodFact, surveys: Surveys) -> tuple[str, ...]:
    """What of the pod's own spec leaves it few nodes, or none."""
    spec, ground = pod.spec, surveys.of(pod.spec)
    found = []
    if has_node_constraints(spec):
        words = ",".join(f"{key}={value}" for key, value in sorted((spec.node_selector or {}).items()))
        what = f"its nodeSelector {words}" if words else "its node affinity"
        found.append(f"{what} leaves {_where(ground.zones)}")
    if ground.zones and not ground.open:
        found.append(f"it tolerates the taints of none of {len(ground.zones)} nodes")
    return tuple(found)


def _where(zones: Sequence[str]) -> str:
    if not zones:
        return "no node"
    named = sorted(set(zones) - {""})
    return f"{len(zones)} {'node' if len(zones) == 1 else 'nodes'}" + (f" of {', '.join(named)}" if named else "")


def find_pods(facts: Facts) -> Iterator[Finding]:
    """Findings about pods, one for all that wait for the same cause."""
    yield from _lost(facts)
    yield from _not_ours(facts)
    yield from _at_foreign_gates(facts)
    stuck = list(_unschedulable(facts))
    yield from stuck
    yield from _unanswered(facts)
    blamed = {key for finding in stuck for key in finding.hurts}
    yield from _gated_too_long(facts, blamed)


def _names(pods: Iterable[PodFact]) -> tuple[str, ...]:
    return tuple(pod.key for pod in pods)[:MOST_HURT]


def _oldest(pods: Iterable[PodFact]) -> float | None:
    return min((pod.created for pod in pods if pod.created is not None), default=None)


def _counted(pods: list[PodFact]) -> str:
    return f"pod {pods[0].key}" if len(pods) == 1 else f"{len(pods)} pods such as {pods[0].key}"


def _lost(facts: Facts) -> Iterator[Finding]:
    """Pods whose labels lead nowhere, waiting or placed."""
    groups, newest, refused = _by_key(facts), _newest(facts), set(_refused(facts))
    by_label: dict[tuple[str, str], list[PodFact]] = defaultdict(list)
    for pod in facts.pods:
        asks = pod.stays and (pod.group or (pod.waits and GATE in pod.gates))
        if not asks or not (wrong := unknown_workload(pod, groups)):
            continue
        # What keeps them from the group is told of the group.
        if not pod.group_key and (pod.namespace, pod.group) in refused:
            continue
        # What a template with other labels made before goes with its rollout.
        latest = newest.get((pod.namespace, pod.owner), pod)
        if not unknown_workload(latest, groups):
            continue
        by_label[pod.namespace, wrong].append(pod)
    for (_, wrong), pods in sorted(by_label.items()):
        because = (_TAKEN_FOR_STRANGERS,) if any(pod.node for pod in pods) else ()
        what, do = f"{_counted(pods)}: {wrong}", _fix_label(pods[0])
        yield Finding("pod-lost", "warning", what, because, _oldest(pods), _names(pods), do)


def _refused(facts: Facts) -> Iterator[tuple[str, str]]:
    """Namespaces that groups name and that may not let them in, each with the group's name."""
    for group in facts.groups:
        said = find(group.status.conditions, ADMITTED)
        if said is not None and said.status == "False":
            for item in group.spec.workloads or ():
                yield item.workload.namespace, group.metadata.name


def _newest(facts: Facts) -> dict[tuple[str, tuple[str, str] | None], PodFact]:
    """By namespace and owner, of those that have one, the pod that was made last."""
    found: dict[tuple[str, tuple[str, str] | None], PodFact] = {}
    for pod in facts.pods:
        known = found.get((pod.namespace, pod.owner))
        if pod.owner is not None and pod.stays and (known is None or (pod.created or 0) > (known.created or 0)):
            found[pod.namespace, pod.owner] = pod
    return found


def _not_ours(facts: Facts) -> Iterator[Finding]:
    """Pods of a group that somebody else schedules, while ours schedules others of it."""
    by_group: dict[str, list[PodFact]] = defaultdict(list)
    for pod in facts.pods:
        if pod.group_key and not pod.leaving:
            by_group[pod.group_key].append(pod)
    for key, pods in sorted(by_group.items()):
        others = [pod for pod in pods if not _is_placed_by_us(pod, facts)]
        if others and len(others) < len(pods):
            by = ", ".join(sorted({pod.placed_by for pod in others}))
            what = f"{_counted(others)} of AppGroup {key}: schedulerName {by} hands them to a scheduler that does not ask us"
            yield Finding("not-ours", "warning", what, hurts=_names(others), do=(_take_ours(facts),))


def _at_foreign_gates(facts: Facts) -> Iterator[Finding]:
    by_gates: dict[tuple[str, ...], list[PodFact]] = defaultdict(list)
    for pod in facts.pods:
        foreign = _foreign_gates(pod)
        if pod.waits and foreign and pod.created is not None and facts.now - pod.created > SOON_S:
            by_gates[foreign].append(pod)
    for gates, pods in sorted(by_gates.items()):
        what = f"{_counted(pods)}: waiting at {', '.join(gates)}, which somebody else opens"
        do = (command("kubectl -n {} describe pod {}", pods[0].namespace, pods[0].name), "ask whoever sets this gate")
        yield Finding("foreign-gate", "warning", what, (), _oldest(pods), _names(pods), do)


def _unschedulable(facts: Facts) -> Iterator[Finding]:
    """By what stands before them; pods of their groups that wait behind them are hurt as well."""
    by_cause: dict[tuple[str, str, str], list[PodFact]] = defaultdict(list)
    gated: dict[str, list[PodFact]] = defaultdict(list)
    surveys = Surveys(facts.nodes)
    for pod in facts.pods:
        if pod.found_no_node:
            by_cause[pod.namespace, pod.group_key, spot(said_of(pod)).code].append(pod)
        elif pod.group_key and GATE in pod.gates:
            gated[pod.group_key].append(pod)
    for (_, group, code), pods in sorted(by_cause.items()):
        first, obstacle, said = pods[0], obstacle_of(pods[0], surveys), said_of(pods[0])
        behind = gated[group]
        what = f"{_counted(pods)}: {first.placed_by} finds no node, {obstacle.says}"
        begun = [seconds(p.scheduled.last_transition_time) for p in pods if p.scheduled is not None]
        since = min((at for at in begun if at is not None), default=_oldest(pods))
        because = (*((said,) if said else ()), *held_by(first, surveys))
        yield Finding(f"no-node-{code}", "warning", what, because, since, _names((*pods, *behind)), obstacle.do)


def _unanswered(facts: Facts) -> Iterator[Finding]:
    """Pods that no scheduler has looked at, though it is said to run: it has another name, or hangs."""
    by_name: dict[str, list[PodFact]] = defaultdict(list)
    busy = _answering(facts)
    for pod in facts.pods:
        name = pod.placed_by
        # Who works through a queue has not come to all of them; and when a gate was opened, no pod tells.
        patience_s = LONG_S if name in busy else PATIENCE_S if pod.scheduled is not None else SOON_S
        old = pod.created is not None and facts.now - pod.created > patience_s
        if pod.waits and not pod.gates and not pod.found_no_node and old:
            by_name[name].append(pod)
    for name, pods in sorted(by_name.items()):
        what = f"{_counted(pods)}: no scheduler named {name} has answered"
        do: tuple[str, ...] = (f"{_take_ours(facts)}, if {name} is none that you run",)
        if name in facts.our_schedulers:
            do = (
                command(f"kubectl -n {{}} logs deployment/{SCHEDULER} --all-containers --tail=50", facts.home),
                command(f"kubectl -n {{}} rollout restart deployment/{SCHEDULER}", facts.home),
            )
        alert = "NetawareSchedulerDown" if name in facts.our_schedulers else ""
        yield Finding("nobody-schedules", "warning", what, (), _oldest(pods), _names(pods), do, alert)


def _answering(facts: Facts) -> set[str]:
    """Names of schedulers that found a node for some pod a moment ago, or found none."""
    found: set[str] = set()
    for pod in facts.pods:
        if pod.scheduled is not None and (pod.node or pod.found_no_node):
            at = seconds(pod.scheduled.last_transition_time)
            if at is not None and facts.now - at < PATIENCE_S:
                found.add(pod.placed_by)
    return found


def _gated_too_long(facts: Facts, blamed: set[str]) -> Iterator[Finding]:
    """Pods that wait at our gate for longer than any configuration means to, and for nothing that is known."""
    groups = _by_key(facts)
    by_group: dict[tuple[str, str], list[PodFact]] = defaultdict(list)
    for pod in facts.pods:
        old = pod.created is not None and facts.now - pod.created > LONG_S
        if pod.waits and pod.gates == (GATE,) and old and pod.key not in blamed and not unknown_workload(pod, groups):
            by_group[pod.namespace, pod.group_key].append(pod)
    for (namespace, key), pods in sorted(by_group.items()):
        names = [pod.name for pod in pods[:MOST_HURT]]
        do = (
            _on_group("describe", key),
            command("kubectl netaware explain pod {} -n {}", pods[0].name, namespace),
            command("kubectl -n {} patch pods {} --type=json -p {}", namespace, names, _OPEN),
        )
        what = f"{len(pods)} pods of AppGroup {key} have waited at their gate for more than {LONG_S / 60:.0f} min"
        yield Finding(
            "gated-too-long", "warning", what, (), _oldest(pods), _names(pods), do, "NetawarePodsGatedTooLong"
        )
