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
        group: name of the AppGroup in its label; empty without one.
        group_key: ``namespace/name`` of the AppGroup that it belongs to; empty for none.
        workload: selector of its workload in its label; empty without one.
        node: empty while it has none.
        scheduler: name of the scheduler that places it.
        gates: names of its scheduling gates.
        scheduled: its condition PodScheduled; None before a scheduler has tried it.
        target: the plan's node; empty without a plan.
        spec: has the constraints on its nodes.
        is_terminating: whether it is being deleted.
        created_s: unix seconds; None if unknown.
        has_placement: whether node affinity on the pod places it, so that its scheduler need not call our extender.
        owner: kind and name of its controller, with the Deployment for a ReplicaSet; None for a bare pod.
    """

    namespace: str
    name: str
    group: str = ""
    group_key: str = ""
    workload: str = ""
    node: str = ""
    phase: str = ""
    scheduler: str = DEFAULT_SCHEDULER
    gates: tuple[str, ...] = ()
    scheduled: Condition | None = None
    target: str = ""
    spec: GroupPodSpec = GroupPodSpec()
    is_terminating: bool = False
    created_s: float | None = None
    owner: tuple[str, str] | None = None
    has_placement: bool = False

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_active(self) -> bool:
        """Whether it is neither finished nor terminating."""
        return not self.is_terminating and self.phase not in FINISHED_PHASES

    @property
    def is_pending(self) -> bool:
        """Whether it is active and has no node."""
        return not self.node and self.is_active

    @property
    def found_no_node(self) -> bool:
        """Whether its scheduler tried it and found no node."""
        return self.is_pending and not self.gates and found_no_node(self.scheduled)


class NodeFact(msgspec.Struct, frozen=True, gc=False):
    """A node, with the taints that keep pods away, such as that of a cordon."""

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
