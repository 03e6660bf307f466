"""All inputs of a group's plan; also as they are after the eviction of a pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from controller.cluster.costs import CostTable
from controller.cluster.crds import AppGroup
from controller.cluster.dependency_graph import DependencyGraph
from controller.cluster.hosts import Host
from controller.cluster.pods import NodeSelector, Pod, Target
from controller.cluster.resource_requests import Amounts, add_amounts, requests_with_ports_of
from controller.cluster.services import Routing
from controller.scheduler.config import AllocatableArgs
from controller.scheduler.placement.foreign_pods import ForeignPods
from controller.traffic.prices import PriceTable


class GroupSnapshot(msgspec.Struct, frozen=True):
    """All inputs of a plan.

    Attributes:
        graph: the group's workloads and dependencies.
        pods: the group's pods, finished and terminating pods included.
        replicas: workload selector -> declared replicas; without workloads whose declaration is unknown.
        costs: network costs and latencies between locations.
        hosts: node -> host, of every node.
        used: node -> requests of the pods on it.
        released_targets: pod key -> target of a released pod, which stays because kube-scheduler may be binding the pod.
        previous_targets: pod key -> target of the previous plan, which wins over equally good targets.
        assigned_nodes: key -> node of each of ``pods`` that ``used`` counts; they come from two watches, either of which may be ahead.
        group: the AppGroup, for its annotations.
        routings: workload selector -> routing of calls to it; of other workloads any replica answers.
        has_topology: whether a NetworkTopology has the costs.
        reserved: node -> requests beyond ``used``: of other groups' pods that are expected there; negative for evicted or preempted pods.
        refused_nodes: pod key -> nodes that kube-scheduler refused to such pods or that stayed full, and that have not changed since.
        volumes: pod key, or workload selector for declared replicas without a pod -> node selectors of its volumes; all must match.
        avoided_nodes: nodes that the descheduler finds overutilized; used only as a last resort.
        foreign_pods: bound pods outside the group that rules relate to its pods, see `find_foreign_pods`.
        seed_offset: varies the random seed between plans for the same request.
        prices: prices of bytes between zones, for objectives with prices; None if not configured.
        allocatable: arguments of NodeResourcesAllocatable, by which nodes are preferred for their size.
    """

    graph: DependencyGraph
    pods: Sequence[Pod]
    replicas: Mapping[str, int]
    costs: CostTable
    hosts: Mapping[str, Host]
    used: Mapping[str, Amounts]
    released_targets: Mapping[str, Target] = {}
    previous_targets: Mapping[str, Target] = {}
    assigned_nodes: Mapping[str, str] = {}
    group: AppGroup = AppGroup()
    routings: Mapping[str, Routing] = {}
    has_topology: bool = True
    reserved: Mapping[str, Amounts] = {}
    refused_nodes: Mapping[str, frozenset[str]] = {}
    volumes: Mapping[str, tuple[NodeSelector, ...]] = {}
    avoided_nodes: frozenset[str] = frozenset()
    foreign_pods: Sequence[ForeignPods] = ()
    seed_offset: int = 0
    prices: PriceTable | None = None
    allocatable: AllocatableArgs = AllocatableArgs()


def without_pod(snapshot: GroupSnapshot, key: str) -> GroupSnapshot:
    """The snapshot after the eviction of a bound pod, whose replacement waits under the same key."""
    pod = next(pod for pod in snapshot.pods if pod.metadata.key == key)
    node, replace = pod.spec.node_name, msgspec.structs.replace
    waiting = replace(pod, spec=replace(pod.spec, node_name=""), status=replace(pod.status, phase="Pending"))
    reserved, assigned_nodes = dict(snapshot.reserved), dict(snapshot.assigned_nodes)
    if assigned_nodes.pop(key, ""):
        reserved[node] = dict(reserved.get(node, {}))
        add_amounts(reserved[node], requests_with_ports_of(pod.spec, pod.status), -1)
    pods = [waiting if other is pod else other for other in snapshot.pods]
    return replace(snapshot, pods=pods, assigned_nodes=assigned_nodes, reserved=reserved)
