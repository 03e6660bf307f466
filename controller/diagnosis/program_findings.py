"""Findings about netaware's own programs: readiness, leadership, and failed checks of their /readyz."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from controller.cluster.pods import PodSpec
from controller.diagnosis.control_plane import DEPLOYMENTS, LeaseFact, Program, ProgramPod
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import APPLY_AGAIN, MAX_AFFECTED, MAX_CAUSES, Finding
from controller.diagnosis.unschedulable import NodeSurveys, find_reason_in_message
from kubekit.text import format_command
from netperf.contract import CONTROLLER

MAX_CLOCK_DIFFERENCE_S = 5.0
"""Clocks of the leader and of this machine may differ by this much."""
_STARTING_REASONS = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons of a container that has not started yet."""
# `rollout undo` without a revision would return to the broken one when pasted twice.
_LATEST_REVISION = (
    "get replicasets -l 'app.kubernetes.io/name={},pod-template-hash notin (FAILED_HASHES)'"
    r""" -o jsonpath='{{range .items[*]}}{{.metadata.annotations.deployment\.kubernetes\.io/revision}}{{"\n"}}{{end}}' | sort -n | tail -1"""
)
_CONTROLLER_LOGS = f"logs deployment/{CONTROLLER} --tail=50"


class _Outage(NamedTuple):
    """The consequence if a program is down, and the alert about that."""

    consequence: str
    alert: str


_OUTAGES: dict[Program, _Outage] = {
    "controller": _Outage("costs and plans are not updated, and gates stay closed", "NetawareNoLeader"),
    "extender": _Outage("pods are placed without regard to the network", "NetawareExtenderDown"),
    "scheduler": _Outage("pods with its schedulerName stay Pending", "NetawareSchedulerDown"),
}


def find_program_findings(facts: Facts) -> Iterator[Finding]:
    """Findings about controller, scheduler and extender."""
    gated_keys = tuple(pod.metadata.key for pod in facts.pods if pod.is_gated)
    queued_pods = [pod for pod in facts.pods if pod.is_waiting and not pod.spec.scheduling_gates]
    queued_keys = tuple(pod.metadata.key for pod in queued_pods if pod.scheduler_name in facts.scheduler_names)
    status = facts.control_plane
    pods = {name: [pod for pod in status.pods or () if pod.program == name] for name in _OUTAGES}
    is_down = {name: status.pods is not None and not any(pod.is_ready for pod in pods[name]) for name in _OUTAGES}
    if is_down["controller"]:
        yield _report_down(facts, "controller", pods["controller"], gated_keys)
    elif status.can_read_lease and _has_no_holder(status.lease, facts.now_s):
        yield _report_no_leader(facts, gated_keys)
    # Some overlays have no scheduler. It is missing only if a pod waits for it.
    if is_down["scheduler"] and (pods["scheduler"] or queued_keys):
        yield _report_down(facts, "scheduler", pods["scheduler"], queued_keys)
    elif is_down["extender"] and pods["extender"]:
        yield _report_down(facts, "extender", pods["extender"], queued_keys)
    if status.failed_checks:
        lacks_rights = any("(403)" in line for line in status.failed_checks)
        unblock = "correct the NetworkPolicy or proxy that blocks connections from its pods to the API server"
        summary = "the controller is not ready: it does not see the current state of the cluster"
        fix = (
            "kubectl get --raw='/readyz?verbose'",
            facts.format_kubectl(_CONTROLLER_LOGS),
            *(APPLY_AGAIN if lacks_rights else (unblock,)),
        )
        yield Finding("controller-not-ready", "warning", summary, status.failed_checks[:MAX_CAUSES], fix=fix)


def _has_no_holder(lease: LeaseFact | None, now_s: float) -> bool:
    """Whether no replica holds the Lease: it is absent, released or expired."""
    if lease is None or lease.renewed_s is None or not lease.holder:
        return True
    return now_s - lease.renewed_s > lease.duration_s + MAX_CLOCK_DIFFERENCE_S


def _report_no_leader(facts: Facts, affects: tuple[str, ...]) -> Finding:
    lease = facts.control_plane.lease
    if lease is None or lease.renewed_s is None:
        since, cause = None, f"no controller has ever held the Lease {CONTROLLER}"
    else:
        since, age_s = lease.renewed_s, facts.now_s - lease.renewed_s
        cause = f"{lease.holder or 'no one'} renewed the Lease {CONTROLLER} last, {age_s:.0f} s ago"
    fix = (facts.format_kubectl(_CONTROLLER_LOGS), facts.format_kubectl("rollout restart deployment/{}", CONTROLLER))
    summary, alert = f"no controller leads: {_OUTAGES['controller'].consequence}", _OUTAGES["controller"].alert
    return Finding("no-leader", "critical", summary, (cause,), since, affects[:MAX_AFFECTED], fix, alert)


def _report_down(facts: Facts, program: Program, pods: list[ProgramPod], affects: tuple[str, ...]) -> Finding:
    deployment, (consequence, alert) = DEPLOYMENTS[program], _OUTAGES[program]
    cause = tuple(
        f"pod {pod.name} on {pod.node or 'no node'}: " + (pod.reason or f"not ready, phase {pod.phase or 'unknown'}")
        for pod in pods[:MAX_CAUSES]
    ) or (f"there is no pod of the {program}: its Deployment is missing or has 0 replicas",)
    if pods:
        # Show a pod that reports a failure, else a pod that is not ready, else a pod that starts.
        failed = [pod for pod in pods if pod.reason and pod.reason not in _STARTING_REASONS]
        shown_pod = (failed or [pod for pod in pods if not pod.reason] or pods)[0]
        failed_hashes = sorted({pod.template_hash for pod in failed if pod.template_hash})
        describe = facts.format_kubectl("describe pod {}", shown_pod.name)
        fix: tuple[str, ...] = (describe, *_fix_pod(facts, shown_pod, deployment, failed_hashes))
    else:
        fix = (
            facts.format_kubectl("describe deployment/{}", deployment),
            facts.format_kubectl("scale deployment/{} --replicas=2", deployment),
        )
    since = min((pod.since for pod in pods if pod.since is not None), default=None)
    summary = f"no {program} is ready: {consequence}"
    return Finding(f"{program}-down", "critical", summary, cause, since, affects[:MAX_AFFECTED], fix, alert)


def _fix_pod(facts: Facts, pod: ProgramPod, deployment: str, failed_hashes: Sequence[str]) -> tuple[str, ...]:
    """Commands that fix a pod of a Deployment, by the reason that the pod reports; ``failed_hashes`` are of failing templates."""
    if not pod.node:
        survey = NodeSurveys(facts.nodes).for_spec(PodSpec())
        return find_reason_in_message(pod.reason, f"{facts.netaware_namespace}/{pod.name}", "", survey).fix
    logs = facts.format_kubectl("logs {} --all-containers --tail=50", pod.name)
    if not pod.reason:
        return logs, facts.format_kubectl("rollout restart deployment/{}", deployment)
    if pod.reason in _STARTING_REASONS:
        wait = facts.format_kubectl("rollout status deployment/{} --timeout=60s", deployment)
        return wait, "correct the problem in the pod's events, if the pod does not start"
    undo = facts.format_kubectl("rollout undo deployment/{}", deployment)
    if failed_hashes:
        hashes = ",".join(format_command("{}", failed_hash) for failed_hash in failed_hashes)
        latest_revision = facts.format_kubectl(_LATEST_REVISION.replace("FAILED_HASHES", hashes), deployment)
        undo += f" --to-revision=$({latest_revision})"
    correct = "correct your overlay and apply it, if no earlier version ran"
    return (undo, correct) if "Image" in pod.reason else (logs, undo, correct)
