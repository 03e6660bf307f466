"""Findings about netaware's own programs: readiness, leadership, and failed checks of their /readyz."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller.cluster.pods import PodSpec
from controller.diagnosis.facts import Facts
from controller.diagnosis.findings import APPLY_AGAIN, MAX_AFFECTED, MAX_CAUSES, Finding
from controller.diagnosis.snapshot import LeaseFact, Program, ProgramPod
from controller.diagnosis.unschedulable import NodeSurveys, reason_in_message
from kubekit.text import format_command
from netperf.contract import CONTROLLER, SCHEDULER

LEASE_SLACK_S = 5.0
"""Clocks of the leader and of this machine may differ by this much."""
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons of a container that has not started yet."""
# `rollout undo` without a revision would return to the broken one when pasted twice.
_LATEST_REVISION = (
    "kubectl -n {netaware_namespace} get replicasets -l 'app.kubernetes.io/name={name},pod-template-hash notin ({not_in})'"
    r""" -o jsonpath='{{range .items[*]}}{{.metadata.annotations.deployment\.kubernetes\.io/revision}}{{"\n"}}{{end}}' | sort -n | tail -1"""
)
_CONSEQUENCES: dict[Program, str] = {
    "controller": "costs and plans are not updated, and gates stay shut",
    "extender": "pods are placed without regard to the network",
    "scheduler": "pods that name our scheduler stay Pending",
}


def find_program_findings(facts: Facts) -> Iterator[Finding]:
    """Findings about controller, scheduler and extender."""
    gated_keys = tuple(p.metadata.key for p in facts.pods if p.is_gated)
    queued = [p for p in facts.pods if p.is_waiting and not p.spec.scheduling_gates]
    queued_keys = tuple(p.metadata.key for p in queued if p.scheduler in facts.our_schedulers)
    status = facts.control_plane
    pods = {name: [pod for pod in status.programs or () if pod.program == name] for name in _CONSEQUENCES}
    is_down = {name: status.programs is not None and not any(pod.is_ready for pod in pods[name]) for name in pods}
    if is_down["controller"]:
        yield _program_down(facts, "controller", pods["controller"], gated_keys, "NetawareNoLeader")
    elif status.can_read_lease and _is_unheld(status.lease, facts.now):
        yield _no_leader(facts, gated_keys)
    # Some overlays have no scheduler. It is missing only if a pod waits for it.
    if is_down["scheduler"] and (pods["scheduler"] or queued_keys):
        yield _program_down(facts, "scheduler", pods["scheduler"], queued_keys, "NetawareSchedulerDown")
    elif is_down["extender"] and pods["extender"]:
        yield _program_down(facts, "extender", pods["extender"], queued_keys, "NetawareExtenderDown")
    if status.failed_checks:
        lacks_rights = any("(403)" in line for line in status.failed_checks)
        open_path = "open the path from its pods to the API server; a NetworkPolicy or a proxy blocks it"
        summary = "the controller is not ready: it does not see the current state of the cluster"
        fix = (
            "kubectl get --raw='/readyz?verbose'",
            format_command(f"kubectl -n {{}} logs deployment/{CONTROLLER} --tail=50", facts.netaware_namespace),
            *(APPLY_AGAIN if lacks_rights else (open_path,)),
        )
        yield Finding("controller-not-ready", "warning", summary, status.failed_checks[:MAX_CAUSES], fix=fix)


def _no_leader(facts: Facts, affects: tuple[str, ...]) -> Finding:
    lease = facts.control_plane.lease
    holder = lease.holder if lease is not None else ""
    since = lease.renewed_s if lease is not None else None
    if since is None:
        cause = f"no controller has ever held the Lease {CONTROLLER}"
    else:
        cause = f"the Lease {CONTROLLER} was last renewed {facts.now - since:.0f} s ago by {holder or 'no one'}"
    fix = (
        format_command(f"kubectl -n {{}} logs deployment/{CONTROLLER} --tail=50", facts.netaware_namespace),
        format_command(f"kubectl -n {{}} rollout restart deployment/{CONTROLLER}", facts.netaware_namespace),
    )
    summary = f"no controller leads: {_CONSEQUENCES['controller']}"
    return Finding("no-leader", "critical", summary, (cause,), since, affects[:MAX_AFFECTED], fix, "NetawareNoLeader")


def _is_unheld(lease: LeaseFact | None, now: float) -> bool:
    """Whether no replica holds the Lease: it is absent, released or expired."""
    if lease is None or lease.renewed_s is None or not lease.holder:
        return True
    return now - lease.renewed_s > lease.duration_s + LEASE_SLACK_S


def _program_down(
    facts: Facts, program: Program, pods: list[ProgramPod], affects: tuple[str, ...], alert: str
) -> Finding:
    cause = tuple(
        f"pod {pod.name} on {pod.node or 'no node'}: {pod.reason or pod.phase or 'not ready'}"
        for pod in pods[:MAX_CAUSES]
    ) or (f"there is no pod of the {program}: its Deployment is missing or has 0 replicas",)
    # The extender runs beside the scheduler, in its pods.
    name = CONTROLLER if program == "controller" else SCHEDULER
    fix: tuple[str, ...]
    if pods:
        # A pod that reports a failure explains more than one that is not ready, and that more than one that starts.
        failed = [pod for pod in pods if pod.reason and pod.reason not in _STARTING]
        shown = (failed or [pod for pod in pods if not pod.reason] or pods)[0]
        templates = sorted({pod.template_hash for pod in failed if pod.template_hash})
        fix = (
            format_command("kubectl -n {} describe pod {}", facts.netaware_namespace, shown.name),
            *_fix_pod(facts, shown, name, templates),
        )
    else:
        fix = (
            format_command("kubectl -n {} describe deployment/{}", facts.netaware_namespace, name),
            format_command("kubectl -n {} scale deployment/{} --replicas=2", facts.netaware_namespace, name),
        )
    since = min((pod.since for pod in pods if pod.since is not None), default=None)
    summary = f"no {program} is ready: {_CONSEQUENCES[program]}"
    return Finding(f"{program}-down", "critical", summary, cause, since, affects[:MAX_AFFECTED], fix, alert)


def _fix_pod(facts: Facts, pod: ProgramPod, name: str, templates: Sequence[str]) -> tuple[str, ...]:
    """Commands that fix a pod, by the reason that it reports.

    Args:
        facts: facts of the cluster.
        pod: a pod of the program.
        name: name of its Deployment.
        templates: hashes of the pod templates whose pods fail.
    """
    if not pod.node:
        return reason_in_message(
            pod.reason, pod.name, facts.netaware_namespace, "", NodeSurveys(facts.nodes).survey(PodSpec())
        ).fix
    logs = format_command("kubectl -n {} logs {} --all-containers --tail=50", facts.netaware_namespace, pod.name)
    if not pod.reason:
        return logs, format_command("kubectl -n {} rollout restart deployment/{}", facts.netaware_namespace, name)
    if pod.reason in _STARTING:
        wait = format_command(
            "kubectl -n {} rollout status deployment/{} --timeout=60s", facts.netaware_namespace, name
        )
        return wait, "correct what its events name, if it does not start"
    undo = format_command("kubectl -n {} rollout undo deployment/{}", facts.netaware_namespace, name)
    if templates:
        # Several hashes are one argument of the selector.
        revisions = format_command("{}", templates).replace(" ", ",")
        latest = format_command(
            _LATEST_REVISION, netaware_namespace=facts.netaware_namespace, name=name, not_in="NOT_IN"
        ).replace("NOT_IN", revisions)
        undo += f" --to-revision=$({latest})"
    correct = "correct your overlay and apply it, if no earlier version ran"
    return (undo, correct) if "Image" in pod.reason else (logs, undo, correct)
