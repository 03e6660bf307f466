"""The snapshot of all objects from which views and findings are computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from controller.cluster.config import NetworkOverheadArgs
from controller.cluster.costs import CostIndex, has_no_zone_labels, location_of
from controller.cluster.crds import AppGroup, NetworkTopology
from controller.cluster.membership import Membership
from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import Placement, Pod, placement_of
from controller.cluster.services import Service
from controller.scheduler.config import SchedulerConfig
from controller.traffic.prices import PriceTable
from kubekit.wire import Node, Object
from netperf.contract import NETAWARE_NAMESPACE
from netperf.plans import ZonePlan
from netperf.policy import CostPolicy

Program = Literal["controller", "extender", "scheduler"]


class ProgramPod(msgspec.Struct, frozen=True):
    """A pod of one of our programs.

    Attributes:
        reason: why a container does not run, such as ``ImagePullBackOff`` or ``Error``; the scheduler's message for a pod without a
            node; empty otherwise.
        since: time of the last change of its readiness, unix seconds.
        template_hash: hash of its pod template; empty if unknown.
    """

    program: Program
    name: str
    node: str = ""
    phase: str = ""
    is_ready: bool = False
    reason: str = ""
    since: float | None = None
    template_hash: str = ""


class LeaseFact(msgspec.Struct, frozen=True):
    """The leader's Lease. ``renewed_s`` is the time of the last renewal, unix seconds; None without one."""

    holder: str = ""
    renewed_s: float | None = None
    duration_s: float = 10.0


class ControlPlaneStatus(msgspec.Struct, frozen=True):
    """The state of netaware's own programs.

    Attributes:
        is_installed: whether the cluster has netaware's CustomResourceDefinitions.
        can_list_topologies: whether NetworkTopologies could be listed.
        programs: pods of the programs; None if they cannot be listed.
        lease: the leader's Lease; None without one.
        can_read_lease: whether the Lease could be read.
        failed_checks: failed checks of /readyz of the controller's replicas, a line each.
    """

    is_installed: bool = True
    can_list_topologies: bool = True
    programs: tuple[ProgramPod, ...] | None = None
    lease: LeaseFact | None = None
    can_read_lease: bool = True
    failed_checks: tuple[str, ...] = ()


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of one time, read by a command or copied from a program's stores.

    Attributes:
        now_s: wall clock, unix seconds.
        netaware_namespace: where netaware is installed.
        groups: of all namespaces, because membership of pods depends on all groups with one name.
        namespaces: with the labels by which they admit AppGroups of other namespaces.
        pods: at least those of AppGroups; others are ignored.
        bandwidth_pods: at least those that request bandwidth or have a limit; others are ignored.
        agent_pods: pods of the agent's DaemonSet; empty where agents run outside pods.
        results: ``data`` of the results ConfigMaps by ``namespace/name``, shards included.
        plans: the probe plan, one per origin zone.
        services: at least those of the groups' pods; they decide which replica answers a call.
        policy: the controller's default cost policy.
        scheduler: the scheduler's configuration.
        verdicts: pod (namespace/name) -> direction -> verdict of its agent, from Prometheus; empty without it.
        prices: prices of bytes between zones; None if not configured.
        control_plane: the state of netaware's programs; None if it was not read.
    """

    now_s: float
    netaware_namespace: str = NETAWARE_NAMESPACE
    nodes: tuple[Node, ...] = ()
    topologies: tuple[NetworkTopology, ...] = ()
    groups: tuple[AppGroup, ...] = ()
    namespaces: tuple[Object, ...] = ()
    pods: tuple[Pod, ...] = ()
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
    def network_overhead_args(self) -> NetworkOverheadArgs:
        """The scheduler's choice of NetworkTopology and weights."""
        return self.scheduler.network_overhead_args

    @property
    def is_one_zone(self) -> bool:
        """Whether costs treat all nodes as one zone, see `has_no_zone_labels`."""
        return not self.scheduler.is_parity and has_no_zone_labels(map(location_of, self.nodes))

    def costs(self) -> CostIndex:
        """The costs that the scheduler uses; made at each call."""
        return CostIndex.from_objects(
            self.topologies, self.network_overhead_args, self.netaware_namespace, is_one_zone=self.is_one_zone
        )

    @property
    def placements(self) -> dict[str, Placement]:
        """Default placement mode of each namespace; other namespaces have ``scheduler.placement``."""
        default = self.scheduler.placement
        return {n.metadata.name: placement_of(n.metadata.labels, default) for n in self.namespaces}

    @property
    def membership(self) -> Membership:
        """The rule that assigns pods to AppGroups; made at each call."""
        return Membership.from_objects(self.groups, self.namespaces, self.network_overhead_args)
