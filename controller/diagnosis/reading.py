"""Turns a snapshot into facts, and reads the state of netaware's own programs from the API server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from controller.cluster.eligibility import blocking_taints
from controller.cluster.membership import Membership
from controller.cluster.pods import Placement, Pod, placement_of, target_of
from controller.diagnosis.agents import build_agents
from controller.diagnosis.bandwidth import build_bandwidth
from controller.diagnosis.facts import Facts, NodeFact, PodFact, unix_seconds
from controller.diagnosis.snapshot import (
    ClusterSnapshot,
    ControlPlaneStatus,
    LeaseFact,
    Program,
    ProgramPod,
)
from controller.diagnosis.zones import build_network
from kubekit.client import Client
from kubekit.conditions import find_condition
from kubekit.errors import ApiError, KubekitError
from kubekit.lease import Lease
from kubekit.owners import TEMPLATE_HASH_LABEL
from kubekit.wire import LEASES, PODS, Condition, Object, Wire
from netperf.contract import CONTROLLER, NAME_LABEL, SCHEDULER
from netperf.latencies import LATENCY_ANNOTATION, decode_latencies

PROGRAMS: dict[str, Sequence[Program]] = {
    CONTROLLER: ("controller",),
    # The extender is a container beside the scheduler.
    SCHEDULER: ("scheduler", "extender"),
}
PROGRAM_SELECTOR = f"{NAME_LABEL} in ({', '.join(PROGRAMS)})"


class _Reason(Wire, frozen=True):
    reason: str = ""


class _State(Wire, frozen=True):
    waiting: _Reason | None = None
    terminated: _Reason | None = None


class _Container(Wire, frozen=True):
    name: str = ""
    ready: bool = False
    state: _State = _State()


class _Status(Wire, frozen=True):
    phase: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[_Container] | None = None


class _Spec(Wire, frozen=True):
    node_name: str = ""


class ProgramPodObject(Object, frozen=True):
    """A pod of netaware's own programs, with the states of its containers."""

    spec: _Spec = _Spec()
    status: _Status = _Status()


def read_facts(snapshot: ClusterSnapshot, pod: Pod | None = None) -> Facts:
    """The facts of a snapshot, with one more pod if that is not in it."""
    status, membership = snapshot.control_plane or ControlPlaneStatus(), snapshot.membership
    latencies = [decode_latencies(t.metadata.annotation(LATENCY_ANNOTATION)) for t in snapshot.topologies]
    placements, default = snapshot.placements, snapshot.scheduler.placement
    agents = build_agents(snapshot)
    zones = {agent.node: agent.zone for agent in agents}
    added = () if pod is None or any(pod.metadata.key == p.metadata.key for p in snapshot.pods) else (pod,)
    return Facts(
        now=snapshot.now_s,
        control_plane=status,
        network=build_network(snapshot),
        agents=agents,
        bandwidth=build_bandwidth(snapshot),
        groups=snapshot.groups,
        pods=tuple(
            read_pod(p, membership, placements.get(p.metadata.namespace, default)) for p in (*snapshot.pods, *added)
        ),
        nodes={
            node.metadata.name: NodeFact(node.metadata.labels or {}, blocking_taints(node), zones[node.metadata.name])
            for node in snapshot.nodes
        },
        topologies={t.metadata.key: tuple(t.status.conditions or ()) for t in snapshot.topologies},
        unreachable=tuple(sorted({pair for published in latencies for pair in published.unreachable})),
        max_wait_s=snapshot.scheduler.gates.max_wait_s,
        our_schedulers=snapshot.scheduler.scheduler_names,
        netaware_namespace=snapshot.netaware_namespace,
    )


async def read_control_plane(
    client: Client,
    netaware_namespace: str,
    *,
    is_installed: bool,
    can_list_topologies: bool = True,
    failed_checks: Iterable[str] = (),
) -> ControlPlaneStatus:
    """The state of netaware's programs in ``netaware_namespace``. A Lease or pods that cannot be read are unknown."""
    lease, programs = None, None
    try:
        spec = (await client.get(LEASES, CONTROLLER, Lease, namespace=netaware_namespace)).spec
        duration_s = float(spec.lease_duration_seconds or 10)
        lease = LeaseFact(spec.holder_identity or "", unix_seconds(spec.renew_time), duration_s)
        can_read_lease = True
    except KubekitError as error:
        can_read_lease = isinstance(error, ApiError) and error.is_not_found
    with contextlib.suppress(KubekitError):
        programs = read_programs(
            await client.list(PODS, ProgramPodObject, namespace=netaware_namespace, label_selector=PROGRAM_SELECTOR)
        )
    return ControlPlaneStatus(is_installed, can_list_topologies, programs, lease, can_read_lease, tuple(failed_checks))


def read_programs(pods: Iterable[ProgramPodObject]) -> tuple[ProgramPod, ...] | None:
    """Pods of controller and scheduler; None without any, because the programs need not run as pods."""
    program_pods = []
    for pod in pods:
        for program in PROGRAMS.get(pod.metadata.label(NAME_LABEL), ()):
            named = [c for c in pod.status.container_statuses or () if program in c.name]
            containers = named or pod.status.container_statuses or []
            is_ready = bool(containers) and all(c.ready for c in containers) and pod.metadata.deletion_timestamp is None
            states = [state for c in containers for state in (c.state.waiting, c.state.terminated) if state is not None]
            reason = next((state.reason for state in states), "")
            scheduled, ready_condition = (
                find_condition(pod.status.conditions, type_) for type_ in ("PodScheduled", "Ready")
            )
            if not reason and not pod.spec.node_name and scheduled is not None:
                reason = scheduled.message
            since = unix_seconds(ready_condition.last_transition_time) if ready_condition is not None else None
            template = pod.metadata.label(TEMPLATE_HASH_LABEL)
            name, node = pod.metadata.name, pod.spec.node_name
            program_pods.append(ProgramPod(program, name, node, pod.status.phase, is_ready, reason, since, template))
    return tuple(program_pods) or None


def read_pod(pod: Pod, membership: Membership, placement: Placement = "extender") -> PodFact:
    """The facts of a pod; ``placement`` is the mode of its namespace, for a pod without a label."""
    return PodFact(
        metadata=pod.metadata,
        spec=pod.spec,
        status=pod.status,
        group_key=membership.group_key_of(pod.metadata.namespace, pod.group),
        has_placement=target_of(pod) is not None or placement_of(pod.metadata.labels, placement) != "extender",
    )
