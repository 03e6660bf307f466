"""The input of a diagnosis, as plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from controller.cluster.crds import AppGroup
from controller.cluster.pods import DEFAULT_SCHEDULER, OUR_SCHEDULER, Pod
from controller.diagnosis.model import AgentView, BandwidthView, NetworkView
from controller.diagnosis.snapshot import ControlPlaneStatus
from kubekit.owners import owner_of
from kubekit.wire import Condition, Taint, parse_time
from netperf.contract import NETAWARE_NAMESPACE


class PodFact(Pod, frozen=True):
    """A pod that is pending or has the label of an AppGroup, with what follows from other objects.

    Attributes:
        group_key: ``namespace/name`` of the AppGroup that it belongs to; empty for none.
        has_placement: whether node affinity on the pod places it, so that its scheduler need not call our extender.
    """

    group_key: str = ""
    has_placement: bool = False

    @property
    def scheduler(self) -> str:
        """Name of the scheduler that places it."""
        # The API server accepts any text here, and it becomes part of commands.
        return re.sub(r"[^A-Za-z0-9._/-]", "?", self.spec.scheduler_name) or DEFAULT_SCHEDULER

    @property
    def scheduled(self) -> Condition | None:
        """Its condition PodScheduled; None before a scheduler has tried it."""
        return self.condition("PodScheduled")

    @property
    def created_s(self) -> float | None:
        """Time of its creation, unix seconds; None if unknown."""
        return unix_seconds(self.metadata.creation_timestamp)

    @property
    def owner(self) -> tuple[str, str] | None:
        """Kind and name of its controller, with the Deployment for a ReplicaSet; None for a bare pod."""
        return owner_of(self.metadata)

    @property
    def is_unschedulable(self) -> bool:
        """Whether it is pending, and its scheduler tried it and found no node."""
        return self.is_waiting and not self.spec.scheduling_gates and self.status.scheduling_failed


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
    netaware_namespace: str = NETAWARE_NAMESPACE

    @property
    def interval_s(self) -> float:
        """Length of a round of probes; 0 without a plan."""
        return self.network.interval_s or 0.0


def unix_seconds(text: str | None) -> float | None:
    """A time of the API as unix seconds; None for an absent or malformed one."""
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None
