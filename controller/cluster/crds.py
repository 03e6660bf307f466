"""AppGroup and NetworkTopology in upstream's schema, reduced to the fields that netaware reads.

Decoding is as lenient as upstream's CRD (absent lists, quantities as numbers). The packages that use these types check values.
"""

from __future__ import annotations

from typing import Any

from kubekit.wire import Condition, Object, Resource, Wire
from netperf.contract import CONTROLLER

APPGROUPS = Resource("appgroup.diktyo.x-k8s.io", "v1alpha1", "appgroups", "AppGroup")
NETWORK_TOPOLOGIES = Resource("networktopology.diktyo.x-k8s.io", "v1alpha1", "networktopologies", "NetworkTopology")

APPGROUP_LABEL = "appgroup.diktyo.x-k8s.io"
WORKLOAD_LABEL = "appgroup.diktyo.x-k8s.io.workload"
"""Labels of a pod: name of its AppGroup, and selector of its workload in the AppGroup."""
SPREAD_ANNOTATION = "netaware.io/spread"
"""Annotation of an AppGroup, or of the pods of one of its workloads: whether replicas must span zones."""

NETPERF_COSTS = "NetperfCosts"
USER_DEFINED = "UserDefined"
"""Names of weights: the weight that netaware writes, and the default of the weight that users write."""
FIELD_MANAGER = CONTROLLER
"""Field manager of all writes of the controller."""


class WorkloadRef(Wire, frozen=True):
    """Reference to a workload; ``selector`` is the value of its pods' workload label, and unique in a group."""

    kind: str = ""
    name: str = ""
    selector: str = ""
    api_version: str = ""
    namespace: str = ""


class Dependency(Wire, frozen=True):
    """The workload that another depends on, the minimum bandwidth in bits per second as a quantity, and the highest allowed cost."""

    workload: WorkloadRef = WorkloadRef()
    min_bandwidth: str | int | None = None
    max_network_cost: int = 0


class Workload(Wire, frozen=True):
    """A workload of a group with its dependencies."""

    workload: WorkloadRef = WorkloadRef()
    dependencies: list[Dependency] | None = None


class AppGroupSpec(Wire, frozen=True):
    """spec of an AppGroup."""

    num_members: int = 0
    topology_sorting_algorithm: str = ""
    workloads: list[Workload] | None = None


class OrderedWorkload(Wire, frozen=True, omit_defaults=False):
    """A workload and its position in the order, counted from 1."""

    workload: WorkloadRef
    index: int


class AppGroupStatus(Wire, frozen=True):
    """status of an AppGroup; ``topology_order`` is sorted bytewise by selector, not by index."""

    running_workloads: int = 0
    schedule_start_time: str | None = None
    topology_calculation_time: str | None = None
    topology_order: list[OrderedWorkload] | None = None
    observed_generation: int = 0
    conditions: list[Condition] | None = None


class AppGroup(Object, frozen=True):
    """appgroup.diktyo.x-k8s.io/v1alpha1 AppGroup."""

    spec: AppGroupSpec = AppGroupSpec()
    status: AppGroupStatus = AppGroupStatus()


class CostInfo(Wire, frozen=True, omit_defaults=False):
    """Cost of the path to a destination, and its bandwidths as quantities of bits per second."""

    destination: str
    network_cost: int = 0
    bandwidth_capacity: str | int | None = None
    bandwidth_allocated: str | int | None = None


class OriginInfo(Wire, frozen=True, omit_defaults=False):
    """Costs of the paths from an origin."""

    origin: str
    cost_list: list[CostInfo] = []


class TopologyInfo(Wire, frozen=True, omit_defaults=False):
    """Costs between regions or between zones, by ``topology_key``."""

    topology_key: str
    origin_list: list[OriginInfo] = []


class WeightInfo(Wire, frozen=True, omit_defaults=False):
    """A named set of costs."""

    name: str
    topology_list: list[TopologyInfo] = []


class NetworkTopologySpec(Wire, frozen=True):
    """spec of a NetworkTopology. ``cost_policy``, a field of netaware's CRD, is decoded and checked by `netperf.policy`."""

    configmap_name: str = ""
    weights: list[WeightInfo] | None = None
    cost_policy: Any = None


class NetworkTopologyStatus(Wire, frozen=True):
    """status of a NetworkTopology."""

    node_count: int = 0
    weight_calculation_time: str | None = None
    observed_generation: int = 0
    conditions: list[Condition] | None = None


class NetworkTopology(Object, frozen=True):
    """networktopology.diktyo.x-k8s.io/v1alpha1 NetworkTopology."""

    spec: NetworkTopologySpec = NetworkTopologySpec()
    status: NetworkTopologyStatus = NetworkTopologyStatus()

    def weight(self, name: str) -> WeightInfo | None:
        """The weight of this name; None if there is none."""
        return next((w for w in self.spec.weights or () if w.name == name), None)
