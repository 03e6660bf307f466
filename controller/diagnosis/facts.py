"""The input of a diagnosis, as plain data."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.cluster.pods import DEFAULT_SCHEDULER, OUR_SCHEDULER, GroupPodSpec, found_no_node
from controller.cluster.resources import AppGroup
from controller.diagnosis.model import AgentView, BandwidthView, NetworkView
from controller.diagnosis.snapshot import ControlPlaneStatus
from kubekit.wire import FINISHED_PHASES, Condition, Taint
from netperf.contract import HOME_NAMESPACE


class PodFact(msgspec.Struct, frozen=True, gc=False):
    """A pod that is pending, or that belongs to an AppGroup.

    Attributes:
        group: the AppGroup that its label names.
        group_key: ``namespace/name`` of the AppGroup that it belongs to; empty for none.
        gates: names of its scheduling gates.
        scheduled: its condition PodScheduled, None before any scheduler tried it.
        target: the plan's node; empty without a plan.
        spec: constraints on its nodes.
        terminating: being deleted.
        created: unix seconds.
        has_placement: whether node affinity on the pod places it, so that its scheduler need not call our extender.
        owner: kind and name of its controller, a Deployment rather than its ReplicaSet; None for a bare pod.
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
        """Name of the scheduler that places it."""
        return self.scheduler or DEFAULT_SCHEDULER

    @property
    def is_active(self) -> bool:
        """Whether it is neither finished nor being deleted."""
        return not self.terminating and self.phase not in FINISHED_PHASES

    @property
    def is_pending(self) -> bool:
        """Whether it is active and has no node."""
        return not self.node and self.is_active

    @property
    def found_no_node(self) -> bool:
        """Whether its scheduler tried it and found no node."""
        return self.is_pending and not self.gates and found_no_node(self.scheduled)


class NodeFact(msgspec.Struct, frozen=True, gc=False):
    """A node, with the taints that keep pods away; a cordon counts as one."""

    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    zone: str = ""


class Facts(msgspec.Struct, frozen=True):
    """The cluster at one time.

    Attributes:
        now: unix seconds.
        network: zones and pairs of the NetworkTopology that the scheduler uses.
        topologies: the conditions of each NetworkTopology, by ``namespace/name``.
        unreachable: pairs of zones (origin, destination) that the leader has published as unreachable.
        max_wait_s: longest time that a pod stays gated, seconds.
        our_schedulers: names of schedulers that call our extender; empty for all.
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
