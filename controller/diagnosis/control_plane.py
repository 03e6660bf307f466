"""The state of netaware's own programs, read from the API server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Literal

import msgspec

from kubekit.client import Client
from kubekit.conditions import find_condition
from kubekit.errors import KubekitError
from kubekit.lease import LeaderElectionConfig, Lease
from kubekit.owners import TEMPLATE_HASH_LABEL
from kubekit.wire import LEASES, PODS, Object, PodSpec, PodStatus, Wire, parse_time_or_none
from netperf.contract import CONTROLLER, NAME_LABEL, SCHEDULER

Program = Literal["controller", "extender", "scheduler"]
DEPLOYMENT_BY_PROGRAM: dict[Program, str] = {"controller": CONTROLLER, "extender": SCHEDULER, "scheduler": SCHEDULER}
"""The Deployment whose pods contain a program; the extender is a container of the scheduler's pods."""


class ProgramPod(msgspec.Struct, frozen=True):
    """A pod of one of netaware's programs.

    Attributes:
        program: the program that the other fields describe; a pod of the Deployment netaware-scheduler runs two.
        name, node, phase: the pod's name, node and phase; ``node`` is empty before the pod is bound.
        is_ready: whether the program's containers are ready, and the pod is not being deleted.
        reason: why a container does not run, such as ``ImagePullBackOff``, or why the pod has no node; empty otherwise.
        ready_changed_at_s: time of the last change of its condition Ready, unix seconds; None if unknown.
        template_hash: hash of its pod template; empty if unknown.
    """

    program: Program
    name: str
    node: str = ""
    phase: str = ""
    is_ready: bool = False
    reason: str = ""
    ready_changed_at_s: float | None = None
    template_hash: str = ""


class LeaseStatus(msgspec.Struct, frozen=True):
    """The leader's Lease.

    Attributes:
        holder: identity of the leader; empty if released.
        renewed_at_s: time of the last renewal, unix seconds; None if there is none, as after netaware's own release.
        duration_s: time from a renewal to the expiry.
    """

    holder: str = ""
    renewed_at_s: float | None = None
    duration_s: float = LeaderElectionConfig.duration_s


class ControlPlaneStatus(msgspec.Struct, frozen=True):
    """The state of netaware's own programs.

    Attributes:
        is_installed: whether the cluster has netaware's CustomResourceDefinitions.
        can_list_topologies: whether the reader may list NetworkTopologies.
        pods: pods of the programs; None if they cannot be listed, or the programs do not run as pods.
        lease: the leader's Lease; None if there is none or it cannot be read.
        is_lease_conclusive: True if ``lease`` shows who leads; None then means that no replica leads. False if it could not be read, or
            if the controller that reads it runs without leader election.
        failed_checks: failed checks of the controller's /readyz, a line each. If the controller diagnoses itself, only checks of kinds of
            objects that it has not listed yet.
    """

    is_installed: bool = True
    can_list_topologies: bool = True
    pods: tuple[ProgramPod, ...] | None = None
    lease: LeaseStatus | None = None
    is_lease_conclusive: bool = True
    failed_checks: tuple[str, ...] = ()


class _ContainerState(Wire, frozen=True):
    reason: str = ""


class _Container(Wire, frozen=True):
    name: str = ""
    ready: bool = False
    state: dict[str, _ContainerState] = {}


class _ProgramPodStatus(PodStatus, frozen=True):
    container_statuses: list[_Container] | None = None


class ProgramPodObject(Object, frozen=True):
    """A pod of netaware's own programs, with the states of its containers."""

    spec: PodSpec = PodSpec()
    status: _ProgramPodStatus = _ProgramPodStatus()


async def read_control_plane(client: Client, netaware_namespace: str, status: ControlPlaneStatus) -> ControlPlaneStatus:
    """Read the Lease and the pods of the programs, and add them to ``status``; each is None if it cannot be read."""
    lease = None
    try:
        spec = (await client.get(LEASES, CONTROLLER, Lease, namespace=netaware_namespace)).spec
        duration_s = float(spec.lease_duration_seconds or LeaderElectionConfig.duration_s)
        lease = LeaseStatus(spec.holder_identity or "", parse_time_or_none(spec.renew_time), duration_s)
        is_lease_conclusive = True
    except KubekitError as error:
        is_lease_conclusive = error.is_not_found
    pods = None
    with contextlib.suppress(KubekitError):
        selector = f"{NAME_LABEL} in ({CONTROLLER}, {SCHEDULER})"
        objects = await client.list(PODS, ProgramPodObject, namespace=netaware_namespace, label_selector=selector)
        pods = build_program_pods(objects)
    return msgspec.structs.replace(status, pods=pods, lease=lease, is_lease_conclusive=is_lease_conclusive)


def build_program_pods(pods: Iterable[ProgramPodObject]) -> tuple[ProgramPod, ...] | None:
    """Build a `ProgramPod` for each pod and each program in it; None without pods, because the programs need not run as pods."""
    program_pods = tuple(
        _build_program_pod(pod, program)
        for pod in pods
        for program, deployment in DEPLOYMENT_BY_PROGRAM.items()
        if pod.metadata.label(NAME_LABEL) == deployment
    )
    return program_pods or None


def _build_program_pod(pod: ProgramPodObject, program: Program) -> ProgramPod:
    all_containers = pod.status.container_statuses or []
    # The scheduler's container is kube-scheduler; an installation may give containers other names, and then all count.
    containers = [c for c in all_containers if program in c.name] or all_containers
    # A container is waiting, terminated or running; only the first two have a reason.
    reason = next((state.reason for c in containers for state in c.state.values() if state.reason), "")
    scheduled = find_condition(pod.status.conditions, "PodScheduled")
    if not reason and not pod.spec.node_name and scheduled is not None:
        reason = scheduled.message
    ready = find_condition(pod.status.conditions, "Ready")
    return ProgramPod(
        program=program,
        name=pod.metadata.name,
        node=pod.spec.node_name,
        phase=pod.status.phase,
        is_ready=bool(containers) and all(c.ready for c in containers) and pod.metadata.deletion_timestamp is None,
        reason=reason,
        ready_changed_at_s=ready.changed_at_s if ready is not None else None,
        template_hash=pod.metadata.label(TEMPLATE_HASH_LABEL),
    )
