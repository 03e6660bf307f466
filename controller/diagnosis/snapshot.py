"""A snapshot of all objects that views and findings are computed from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.costs import CostIndex, is_one_zone, location_of
from controller.cluster.membership import Membership
from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import GroupPod, Placement, placement_of
from controller.cluster.resources import AppGroup, NetworkTopology
from controller.cluster.services import Service
from controller.scheduler.config import SchedulerConfig
from controller.traffic.prices import PriceTable
from kubekit.wire import Node, Object
from netperf.contract import HOME_NAMESPACE
from netperf.plans import ZonePlan
from netperf.policy import CostPolicy

Program = Literal["controller", "extender", "scheduler"]


class ProgramPod(msgspec.Struct, frozen=True):
    """A pod of one of our programs.

    Attributes:
        reason: state of containers that do not run: ``ImagePullBackOff``, ``CrashLoopBackOff``, ``Error``; the scheduler's message
            if it has no node; empty otherwise.
        template: hash of its pod template; empty if unknown.
    """

    program: Program
    name: str
    node: str = ""
    phase: str = ""
    ready: bool = False
    reason: str = ""
    since: float | None = None
    template: str = ""


class LeaseFact(msgspec.Struct, frozen=True):
    """The leader's Lease. ``renewed`` is unix seconds; None when it was never renewed."""

    holder: str = ""
    renewed: float | None = None
    duration_s: float = 10.0


class ControlPlaneStatus(msgspec.Struct, frozen=True):
    """The state of our own programs, as far as the reader may see it.

    Attributes:
        installed: whether the cluster knows our definitions.
        topologies_known: whether NetworkTopologies could be listed.
        programs: pods of our programs; None when they may not be listed, so that nothing is concluded from their absence.
        lease: None without one; ``lease_known`` if it could be read.
        complaints: what the controller's replicas report from /readyz, a line each.
    """

    installed: bool = True
    topologies_known: bool = True
    programs: tuple[ProgramPod, ...] | None = None
    lease: LeaseFact | None = None
    lease_known: bool = True
    complaints: tuple[str, ...] = ()


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of one moment, read by a command or taken from a program's stores.

    Attributes:
        now_s: wall clock, unix seconds.
        home: the namespace that netaware lives in.
        groups: of all namespaces, because membership of pods depends on all groups of one name.
        namespaces: with the labels by which they consent to AppGroups elsewhere.
        pods: at least those of AppGroups; others are ignored.
        bandwidth_pods: those that may ask for bandwidth; others are ignored.
        agent_pods: pods of the agent's DaemonSet; empty where agents run outside pods.
        results: ``data`` of the results ConfigMaps by ``namespace/name``, shards included.
        plans: the probe plan, one per origin zone.
        services: those of the groups' pods at least; they say which replica answers a call.
        policy: the controller's default cost policy.
        scheduler: the scheduler's configuration: the costs that count, the gates' limits, and the schedulers' names (empty for
            all).
        verdicts: pod (namespace/name) -> direction -> its agent's verdict, from Prometheus; empty without it.
        prices: of bytes between zones; None if not configured.
        control_plane: the state of our own programs; None if it was not read, and then nothing is diagnosed.
    """

    now_s: float
    home: str = HOME_NAMESPACE
    nodes: tuple[Node, ...] = ()
    topologies: tuple[NetworkTopology, ...] = ()
    groups: tuple[AppGroup, ...] = ()
    namespaces: tuple[Object, ...] = ()
    pods: tuple[GroupPod, ...] = ()
    bandwidth_pods: tuple[PodInfo, ...] = ()
    agent_pods: tuple[PodInfo, ...] = ()
    results: Mapping[str, Mapping[str, str]] = {}
    plans: tuple[ZonePlan, ...] = ()
    services: tuple[Service, ...] = ()
    policy: CostPolicy = CostPolicy()
    scheduler: SchedulerConfig = SchedulerConfig()
    verdicts: Mapping[str, Mapping[str, str]] = {}
    prices: PriceTable | None = None
    control_plane: ControlPlaneStatus | None = None

    @property
    def rules(self) -> NetworkOverheadArgs:
        """The scheduler's choice of NetworkTopology and weights."""
        return self.scheduler.rules

    @property
    def one_zone(self) -> bool:
        """Whether costs take all nodes for one zone, see `is_one_zone`."""
        return self.scheduler.by_answer and is_one_zone(map(location_of, self.nodes))

    def costs(self) -> CostIndex:
        """The costs that the scheduler uses; made at each call."""
        return CostIndex.from_objects(self.topologies, self.rules, self.home, one_zone=self.one_zone)

    @property
    def placements(self) -> dict[str, Placement]:
        """Default placement mode of each namespace; other namespaces have ``scheduler.placement``."""
        default = self.scheduler.placement
        return {n.metadata.name: placement_of(n.metadata.labels, default) for n in self.namespaces}

    @property
    def membership(self) -> Membership:
        """The rule that assigns pods to AppGroups; made at each call."""
        return Membership.from_objects(self.groups, self.namespaces, self.rules)
