"""The input of `diagnose`: plain data, built from a snapshot."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from controller.cluster.crds import AppGroup
from controller.cluster.eligibility import blocking_taints
from controller.cluster.membership import Membership
from controller.cluster.pods import DEFAULT_SCHEDULER, OUR_SCHEDULER, PlacementMode, Pod, placement_mode_of, target_of
from controller.diagnosis.agents import build_agents
from controller.diagnosis.bandwidth import build_bandwidth
from controller.diagnosis.cluster_views import AgentView, BandwidthView, NetworkView
from controller.diagnosis.control_plane import ControlPlaneStatus
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.diagnosis.zones import build_network
from kubekit.owners import find_workload
from kubekit.text import format_command
from kubekit.wire import Condition, Taint, parse_time_or_none
from netperf.contract import NETAWARE_NAMESPACE, ZONE_LABEL
from netperf.latencies import LATENCY_ANNOTATION, decode_latencies


class PodFact(Pod, frozen=True):
    """A pod of `Facts.pods`.

    Attributes:
        group_key: ``namespace/name`` of the AppGroup that it belongs to; empty if it belongs to none, even if its label names one.
        needs_no_extender: whether netaware places it whatever its scheduler is: its mode is affinity, or its gate opened with a target.
    """

    group_key: str = ""
    needs_no_extender: bool = False

    @property
    def printable_scheduler_name(self) -> str:
        """Its schedulerName, by default that of kube-scheduler, with ``?`` for characters that are unsafe in a command line."""
        return re.sub(r"[^A-Za-z0-9._/-]", "?", self.spec.scheduler_name) or DEFAULT_SCHEDULER

    @property
    def scheduled_condition(self) -> Condition:
        """Its condition PodScheduled; with the status Unknown if it has none, because it was never gated, and no scheduler tried it."""
        return self.condition("PodScheduled") or Condition("PodScheduled", "Unknown")

    @property
    def created_s(self) -> float | None:
        """Time of its creation, unix seconds; None if unknown."""
        return parse_time_or_none(self.metadata.creation_timestamp)

    @property
    def owner(self) -> tuple[str, str] | None:
        """Kind and name of its controller, with the Deployment for a ReplicaSet; None for a bare pod."""
        return find_workload(self.metadata)

    @property
    def is_unschedulable(self) -> bool:
        """Whether it is pending, and its scheduler tried it and found no node."""
        return self.is_waiting and not self.spec.scheduling_gates and self.status.scheduling_failed


class NodeFact(msgspec.Struct, frozen=True, gc=False):
    """A node, with the taints that exclude pods, such as that of a cordon; ``zone`` is empty without a zone label."""

    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    zone: str = ""


class Facts(msgspec.Struct, frozen=True):
    """The cluster at one time.

    Attributes:
        now_s: wall clock, unix seconds.
        control_plane: the state of netaware's programs; the default, which has no fault, if it was not read.
        network: see `build_network`.
        agents: the agent of every node.
        bandwidth: see `build_bandwidth`.
        groups: all AppGroups.
        pods: pods with the label of an AppGroup, and the pod that `build_facts` was given.
        nodes: all nodes by name.
        topology_conditions: the conditions of each NetworkTopology, by ``namespace/name``.
        unreachable_pairs: pairs of zones (origin, destination) that the leader has published as unreachable.
        max_gate_wait_s: longest time that a pod stays gated, seconds.
        scheduler_names: schedulers that call netaware's extender; empty for all.
        netaware_namespace: where netaware is installed.
    """

    now_s: float
    control_plane: ControlPlaneStatus = ControlPlaneStatus()
    network: NetworkView = NetworkView()
    agents: tuple[AgentView, ...] = ()
    bandwidth: BandwidthView = BandwidthView()
    groups: tuple[AppGroup, ...] = ()
    pods: tuple[PodFact, ...] = ()
    nodes: Mapping[str, NodeFact] = {}
    topology_conditions: Mapping[str, tuple[Condition, ...]] = {}
    unreachable_pairs: tuple[tuple[str, str], ...] = ()
    max_gate_wait_s: float = 120.0
    scheduler_names: tuple[str, ...] = (OUR_SCHEDULER,)
    netaware_namespace: str = NETAWARE_NAMESPACE

    @property
    def groups_by_key(self) -> dict[str, AppGroup]:
        """The AppGroups by ``namespace/name``."""
        return {group.metadata.key: group for group in self.groups}

    def format_kubectl(self, template: str, *values: object) -> str:
        """A kubectl command in netaware's namespace; see `format_command` for the arguments."""
        return format_command(f"kubectl -n {{}} {template}", self.netaware_namespace, *values)


def build_facts(snapshot: ClusterSnapshot, pod: Pod | None = None) -> Facts:
    """The facts of a snapshot, with ``pod`` added if the snapshot lacks it."""
    membership = snapshot.build_membership()
    default_mode = snapshot.scheduler.placement
    mode_by_namespace = {
        namespace.metadata.name: placement_mode_of(namespace.metadata.labels, default_mode)
        for namespace in snapshot.namespaces
    }
    latencies = [decode_latencies(t.metadata.annotation(LATENCY_ANNOTATION)) for t in snapshot.topologies]
    pods = snapshot.pods
    if pod is not None and all(pod.metadata.key != other.metadata.key for other in pods):
        pods = (*pods, pod)
    return Facts(
        now_s=snapshot.now_s,
        control_plane=snapshot.control_plane or ControlPlaneStatus(),
        network=build_network(snapshot),
        agents=build_agents(snapshot),
        bandwidth=build_bandwidth(snapshot),
        groups=snapshot.groups,
        pods=tuple(
            build_pod_fact(p, membership, mode_by_namespace.get(p.metadata.namespace, default_mode)) for p in pods
        ),
        nodes={
            node.metadata.name: NodeFact(
                node.metadata.labels or {}, blocking_taints(node), node.metadata.label(ZONE_LABEL)
            )
            for node in snapshot.nodes
        },
        topology_conditions={t.metadata.key: tuple(t.status.conditions or ()) for t in snapshot.topologies},
        unreachable_pairs=tuple(sorted({pair for published in latencies for pair in published.unreachable_pairs})),
        max_gate_wait_s=snapshot.scheduler.gates.max_wait_s,
        scheduler_names=snapshot.scheduler.scheduler_names,
        netaware_namespace=snapshot.netaware_namespace,
    )


def build_pod_fact(pod: Pod, membership: Membership, namespace_mode: PlacementMode) -> PodFact:
    """The facts of a pod; ``namespace_mode`` is the placement mode of its namespace, which counts if the pod has no mode itself."""
    return PodFact(
        metadata=pod.metadata,
        spec=pod.spec,
        status=pod.status,
        group_key=membership.group_key_of(pod.metadata.namespace, pod.group),
        # A target is enough: if its scheduler does not call the extender, the patch with the target also added node affinity.
        needs_no_extender=(
            target_of(pod) is not None or placement_mode_of(pod.metadata.labels, namespace_mode) == "affinity"
        ),
    )
