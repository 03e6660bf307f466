"""The snapshot of all objects from which views and findings are computed."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.cluster.costs import CostIndex, location_of
from controller.cluster.crds import AppGroup, NetworkTopology
from controller.cluster.membership import Membership
from controller.cluster.pod_info import PodInfo
from controller.cluster.pods import Pod
from controller.cluster.services import Service
from controller.diagnosis.control_plane import ControlPlaneStatus
from controller.scheduler.config import SchedulerConfig
from controller.traffic.prices import PriceTable
from kubekit.wire import Node, Object
from netperf.contract import NETAWARE_NAMESPACE
from netperf.plans import ZonePlan
from netperf.policy import CostPolicy


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All objects at one point in time, read by a command or copied from a program's stores.

    Attributes:
        now_s: wall clock, unix seconds.
        netaware_namespace: where netaware is installed.
        nodes, topologies: all nodes and NetworkTopologies.
        groups: of all namespaces, because membership of pods depends on all groups with one name.
        namespaces: with the labels by which they admit AppGroups of other namespaces.
        pods: pods with the label of an AppGroup.
        bandwidth_pods: a superset of the pods that request bandwidth or have a limit.
        agent_pods: pods of the agent's DaemonSet; empty if agents run outside pods.
        results: ``data`` of the results ConfigMaps by ``namespace/name``, shards included.
        plans: the probe plan, one part per origin zone; without malformed parts.
        services: a superset of the Services of the groups' pods; they decide which replica answers a call.
        policy: the controller's default cost policy.
        scheduler: the scheduler's configuration.
        verdicts_by_pod: pod (namespace/name) -> direction -> verdict of its agent, from Prometheus; empty without it.
        prices: prices per GB between zones; None if not configured.
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
    verdicts_by_pod: Mapping[str, Mapping[str, str]] = {}
    prices: PriceTable | None = None
    control_plane: ControlPlaneStatus | None = None

    def build_cost_index(self) -> CostIndex:
        """The costs that the scheduler uses."""
        index = CostIndex(self.scheduler.network_overhead_args, self.netaware_namespace)
        if not self.scheduler.has_upstream_parity:
            index.on_nodes_change(map(location_of, self.nodes))
        for topology in self.topologies:
            index.on_change(topology.metadata.key, None, topology)
        return index

    def build_membership(self) -> Membership:
        """The rule that assigns pods to AppGroups."""
        return Membership.from_objects(self.groups, self.namespaces, self.scheduler.network_overhead_args)
