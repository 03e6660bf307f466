"""The facts that a diagnosis reads, as plain data."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.cluster.pods import DEFAULT_SCHEDULER, OUR_SCHEDULER, GroupPodSpec, found_no_node
from controller.cluster.resources import AppGroup
from controller.diagnosis.model import AgentView, BandwidthView, NetworkView
from controller.diagnosis.snapshot import ControlPlaneStatus
from kubekit.wire import FINISHED, Condition, Taint
from netperf.contract import HOME_NAMESPACE


class PodFact(msgspec.Struct, frozen=True, gc=False):
    """A pod that waits, or that belongs to an AppGroup.

    Attributes:
        group: the AppGroup that its label names.
        group_key: ``namespace/name`` of the AppGroup that it belongs to; empty for none.
        gates: names of its scheduling gates.
        scheduled: its condition PodScheduled, None before any scheduler tried it.
        target: the node that the plan wants it on, empty without a plan.
        spec: what may limit its nodes.
        terminating: being deleted.
        created: unix seconds.
        has_placement: the pod itself carries its place (node affinity), so that its scheduler need not ask us.
        owner: kind and name of what made it, a Deployment rather than its ReplicaSet; None for a bare pod.
    """

    namespace: str
    name: str
    group: str = ""
    group_key: str = ""
    workload: str = ""
    node: str = ""
    phase: str = ""
    scheduler: str = ""
    gates: tuple[str, ...] = ()
    scheduled: Condition | None = None
    target: str = ""
    spec: GroupPodSpec = GroupPodSpec()
    terminating: bool = False
    created: float | None = None
    owner: tuple[str, str] | None = None
    has_placement: bool = False

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def scheduler_name(self) -> str:
        """Name of the scheduler that is to place it."""
        return self.scheduler or DEFAULT_SCHEDULER

    @property
    def is_active(self) -> bool:
        """Neither finished nor being deleted."""
        return not self.terminating and self.phase not in FINISHED

    @property
    def is_pending(self) -> bool:
        """Not bound, and active."""
        return not self.node and self.is_active

    @property
    def found_no_node(self) -> bool:
        """The scheduler tried it and found no node."""
        return self.is_pending and not self.gates and found_no_node(self.scheduled)


class NodeFact(msgspec.Struct, frozen=True, gc=False):
    """A node as far as pods may go there: its labels, and the taints that keep pods away (a cordon is one)."""

    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    zone: str = ""


class Facts(msgspec.Struct, frozen=True):
    """One moment.

    Attributes:
        now: unix seconds.
        network: zones and pairs of the NetworkTopology that the scheduler uses.
        topologies: the conditions of each NetworkTopology, by ``namespace/name``.
        unreachable: (origin, destination) zones that the leader has published as unreachable.
        max_wait_s: a gate is opened after this time in any case.
        our_schedulers: names of schedulers that ask us; empty for all.
    """

    now: float
    control_plane: ControlPlaneStatus = ControlPlaneStatus()
    network: NetworkView = NetworkView()
    agents: tuple[AgentView, ...] = ()
    bandwidth: BandwidthView = BandwidthView()
    groups: tuple[AppGroup, ...] = ()
    pods: tuple[PodFact, ...] = ()
    nodes: Mapping[str, NodeFact] = {}
    topologies: Mapping[str, tuple[Condition, ...]] = {}
    unreachable: tuple[tuple[str, str], ...] = ()
    max_wait_s: float = 120.0
    our_schedulers: tuple[str, ...] = (OUR_SCHEDULER,)
    home: str = HOME_NAMESPACE

    @property
    def interval_s(self) -> float:
        """Length of a round of probes; 0 without a plan."""
        return self.network.interval_s or 0.0
