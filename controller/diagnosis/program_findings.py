"""Findings about netaware's own programs: readiness, leadership, and failed checks of the controller's /readyz."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from controller.cluster.pods import PodSpec
from controller.diagnosis.control_plane import DEPLOYMENT_BY_PROGRAM, LeaseStatus, Program, ProgramPod
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import APPLY_AGAIN, MAX_CAUSES, Finding
from controller.diagnosis.unschedulable import NodeSurveys, find_reason_in_message
from netperf.contract import CONTROLLER

MAX_CLOCK_DIFFERENCE_S = 5.0
"""The clocks of the leader and of this machine are assumed to differ by this much at most."""
_STARTING_REASONS = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons of a container that has not started yet."""
_LATEST_REVISION = (
    "-o jsonpath='{{range .items[*]}}{{.metadata.annotations.deployment\\.kubernetes\\.io/revision}}"
    """{{"\\n"}}{{end}}' | sort -n | tail -1"""
)
"""Options that reduce a list of ReplicaSets to its highest revision. Braces are doubled, because `format_command` fills placeholders."""
_CONTROLLER_LOGS = f"logs deployment/{CONTROLLER} --tail=50"


class _Outage(NamedTuple):
    """The consequence if a program is down, and the alert about that."""

    consequence: str
    alert: str


_OUTAGE_BY_PROGRAM: dict[Program, _Outage] = {
    "controller": _Outage("costs and plans are not updated, and gates stay closed", "NetawareNoLeader"),
    "extender": _Outage("pods are placed without regard to the network", "NetawareExtenderDown"),
    "scheduler": _Outage("pods with its schedulerName stay Pending", "NetawareSchedulerDown"),
}


def find_program_findings(facts: Facts) -> Iterator[Finding]:
    """Findings about the controller, the scheduler and the extender."""
    gated_keys = tuple(pod.metadata.key for pod in facts.pods if pod.is_gated)
    queued_pods = [pod for pod in facts.pods if pod.is_waiting and not pod.spec.scheduling_gates]
    queued_keys = tuple(
        pod.metadata.key for pod in queued_pods if pod.printable_scheduler_name in facts.scheduler_names
    )
    status = facts.control_plane
    pods = {program: [pod for pod in status.pods or () if pod.program == program] for program in DEPLOYMENT_BY_PROGRAM}
    is_down = {program: status.pods is not None and not any(p.is_ready for p in pods[program]) for program in pods}
    if is_down["controller"]:
        yield _build_down_finding(facts, "controller", pods["controller"], gated_keys)
    elif status.is_lease_conclusive and _has_no_holder(status.lease, facts.now_s):
        yield _build_no_leader_finding(facts, gated_keys)
    # Some overlays have no scheduler, so its absence is a fault only if a pod waits for it. The extender is a container of the scheduler's
    # pods, so its absence is the scheduler's.
    if is_down["scheduler"] and (pods["scheduler"] or queued_keys):
        yield _build_down_finding(facts, "scheduler", pods["scheduler"], queued_keys)
    elif is_down["extender"] and pods["extender"]:
        yield _build_down_finding(facts, "extender", pods["extender"], queued_keys)
    if status.failed_checks:
        yield _build_not_ready_finding(facts)


def _has_no_holder(lease: LeaseStatus | None, now_s: float) -> bool:
    """Whether no replica holds the Lease: it is absent, released (without a holder or time of renewal) or expired."""
    if lease is None or lease.renewed_at_s is None or not lease.holder:
        return True
    return now_s - lease.renewed_at_s > lease.duration_s + MAX_CLOCK_DIFFERENCE_S


def _build_no_leader_finding(facts: Facts, affects: tuple[str, ...]) -> Finding:
    lease = facts.control_plane.lease
    if lease is None:
        cause = f"the Lease {CONTROLLER} does not exist: no replica leads"
    elif not lease.holder or lease.renewed_at_s is None:
        cause = f"the Lease {CONTROLLER} is released: no replica has taken it"
    else:
        cause = f"{lease.holder} renewed the Lease {CONTROLLER} last, {facts.now_s - lease.renewed_at_s:.0f} s ago"
    since = lease.renewed_at_s if lease is not None else None
    fix = (facts.format_kubectl(_CONTROLLER_LOGS), facts.format_kubectl("rollout restart deployment/{}", CONTROLLER))
    consequence, alert = _OUTAGE_BY_PROGRAM["controller"]
    summary = f"no controller leads: {consequence}"
    return Finding("no-leader", "critical", summary, (cause,), since=since, affects=affects, fix=fix, alert=alert)


def _build_not_ready_finding(facts: Facts) -> Finding:
    summary = "the controller is not ready: it does not see the current state of the cluster"
    cause = facts.control_plane.failed_checks[:MAX_CAUSES]
    fix: tuple[str, ...] = (
        "correct the NetworkPolicy or proxy that blocks connections from its pods to the API server",
    )
    if any("(403)" in check for check in facts.control_plane.failed_checks):
        fix = APPLY_AGAIN
    inspections = "kubectl get --raw='/readyz?verbose'", facts.format_kubectl(_CONTROLLER_LOGS)
    return Finding("controller-not-ready", "warning", summary, cause, fix=(*inspections, *fix))


def _build_down_finding(facts: Facts, program: Program, pods: list[ProgramPod], affects: tuple[str, ...]) -> Finding:
    deployment, (consequence, alert) = DEPLOYMENT_BY_PROGRAM[program], _OUTAGE_BY_PROGRAM[program]
    cause = tuple(
        f"pod {pod.name} on {pod.node or 'no node'}: " + (pod.reason or f"not ready, phase {pod.phase or 'unknown'}")
        for pod in pods[:MAX_CAUSES]
    ) or (f"there is no pod of the {program}: its Deployment is missing or has 0 replicas",)
    if pods:
        fix = _list_pod_fixes(facts, pods, deployment)
    else:
        commands = "describe deployment/{}", "scale deployment/{} --replicas=2"
        fix = tuple(facts.format_kubectl(command, deployment) for command in commands)
    since = min((pod.ready_changed_at_s for pod in pods if pod.ready_changed_at_s is not None), default=None)
    code = f"{program}-down"
    summary = f"no {program} is ready: {consequence}"
    return Finding(code, "critical", summary, cause, since=since, affects=affects, fix=fix, alert=alert)


def _list_pod_fixes(facts: Facts, pods: Sequence[ProgramPod], deployment: str) -> tuple[str, ...]:
    """Commands and instructions for the pods of a Deployment, of which none is ready.

    The commands are about a pod that reports a failure, else about a pod without a reason, else about a pod that starts.
    """
    failed_pods = [pod for pod in pods if pod.reason and pod.reason not in _STARTING_REASONS]
    shown_pod = (failed_pods or [pod for pod in pods if not pod.reason] or pods)[0]
    describe = facts.format_kubectl("describe pod {}", shown_pod.name)
    if not shown_pod.node:
        survey = NodeSurveys(facts.nodes).for_spec(PodSpec())
        key = f"{facts.netaware_namespace}/{shown_pod.name}"
        return describe, *find_reason_in_message(shown_pod.reason, key, "", survey).fix
    logs = facts.format_kubectl("logs {} --all-containers --tail=50", shown_pod.name)
    if not shown_pod.reason:
        return describe, logs, facts.format_kubectl("rollout restart deployment/{}", deployment)
    if shown_pod.reason in _STARTING_REASONS:
        wait = facts.format_kubectl("rollout status deployment/{} --timeout=60s", deployment)
        return describe, wait, "correct the problem in the pod's events, if the pod does not start"
    failed_hashes = sorted({pod.template_hash for pod in failed_pods if pod.template_hash})
    undo = _format_rollout_undo(facts, deployment, failed_hashes)
    correction = "correct your overlay and apply it, if no earlier version ran"
    # A container whose image cannot be pulled has no logs.
    return (describe, undo, correction) if "Image" in shown_pod.reason else (describe, logs, undo, correction)


def _format_rollout_undo(facts: Facts, deployment: str, failed_hashes: Sequence[str]) -> str:
    """The command that returns a Deployment to its newest revision without a failed template; to the previous revision without hashes."""
    undo = facts.format_kubectl("rollout undo deployment/{}", deployment)
    if not failed_hashes:
        return undo
    # Without a revision, a second run of the command would return to the failed one.
    hashes = ",".join("{}" for _ in failed_hashes)
    template = f"get replicasets -l 'app.kubernetes.io/name={{}},pod-template-hash notin ({hashes})' {_LATEST_REVISION}"
    return f"{undo} --to-revision=$({facts.format_kubectl(template, deployment, *failed_hashes)})"
