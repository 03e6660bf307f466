"""Builds nodes, costs, AppGroups and pods, and the scheduler's state with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup, AppGroupStatus, NetworkTopology
from controller.cluster.pods import GATE, Pod
from controller.cluster.services import Service
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.state import State
from kubekit.wire import Node, Object
from tests.support.bodies import REGION, ZONE, make_appgroup_spec, make_weight_body

Costs = Mapping[tuple[str, str], int]


def make_zone_labels(region: str, zone: str) -> dict[str, str]:
    return {key: value for key, value in ((REGION, region), (ZONE, zone)) if value}


def make_node(name: str, region: str, zone: str, **allocatable: str) -> Node:
    metadata = {"name": name, "labels": make_zone_labels(region, zone)}
    return msgspec.convert({"metadata": metadata, "status": {"allocatable": allocatable}}, Node)


def make_topology_with_weights(*weights: Mapping[str, Any]) -> NetworkTopology:
    body = {"metadata": {"name": "nt-default", "namespace": "default"}, "spec": {"weights": weights}}
    return msgspec.convert(body, NetworkTopology)


def make_topology(zone_costs: Costs, region_costs: Costs | None = None) -> NetworkTopology:
    """A NetworkTopology with one weight, of these costs by origin and destination."""
    return make_topology_with_weights(make_weight_body(zone_costs, region_costs))


def make_app_group(
    calls: Mapping[str, Mapping[str, Any]],
    namespace: str = "default",
    *,
    name: str = "a1",
    algorithm: str = "KahnSort",
    members: int = 1,
    generation: int = 1,
    status: AppGroupStatus | None = None,
) -> AppGroup:
    """An AppGroup; ``calls`` has maxNetworkCost by caller and callee, as in ``{"web": {"db": 15}}``, or all fields of the dependency."""
    metadata = {"name": name, "namespace": namespace, "generation": generation}
    spec = make_appgroup_spec(calls, members=members, algorithm=algorithm)
    group = msgspec.convert({"metadata": metadata, "spec": spec}, AppGroup)
    return group if status is None else msgspec.structs.replace(group, status=status)


def make_pod(workload: str, node_name: str = "", *, name: str = "p1", group: str = "a1", **spec: Any) -> Pod:
    """A pod, running if it has a node. ``metadata`` and ``status`` add fields to those of the pod, other keywords to its spec."""
    metadata = {"name": name, "namespace": "default", "uid": f"u-{name}", **spec.pop("metadata", {})}
    metadata.setdefault("labels", {APPGROUP_LABEL: group, WORKLOAD_LABEL: workload} if group else {})
    status = {"phase": "Running" if node_name else "Pending", **spec.pop("status", {})}
    spec = {"nodeName": node_name, "schedulerName": "network-aware-scheduler", **spec}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Pod)


def make_group_pod(
    workload: str,
    node_name: str,
    *,
    group: str = "g",
    name: str = "p",
    namespace: str = "shop",
    phase: str = "Running",
    created: str = "2026-01-01T00:00:00Z",
    is_terminating: bool = False,
) -> Pod:
    """A pod with a creation time, by default of group g in namespace shop."""
    times = {"creationTimestamp": created}
    if is_terminating:
        times["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    metadata = {"namespace": namespace, **times}
    return make_pod(workload, node_name, name=name, group=group, metadata=metadata, status={"phase": phase})


def make_gated_pod(workload: str = "P1", **fields: Any) -> Pod:
    """A pod with the scheduling gate, and the fields of `make_pod`."""
    return make_pod(workload, **{"schedulingGates": [{"name": GATE}], **fields})


def make_state(config: SchedulerConfig, *objects: Object) -> State:
    """The state with these objects; an `Object` is a Namespace."""
    state = State(config, "netaware-system")
    for item in objects:
        key = item.metadata.key
        if isinstance(item, Node):
            state.on_node_change(key, None, item)
        elif isinstance(item, Pod):
            state.on_pod_change(key, None, item)
        elif isinstance(item, AppGroup):
            state.on_group_change(key, None, item)
        elif isinstance(item, NetworkTopology):
            state.on_topology_change(key, None, item)
        elif isinstance(item, Service):
            state.on_service_change(key, None, item)
        else:
            state.on_namespace_change(key, None, item)
    return state


def make_group_state(
    nodes: Iterable[Node],
    costs: NetworkTopology,
    calls: Mapping[str, Mapping[str, int]],
    placements: Iterable[tuple[str, str]] = (),
    config: SchedulerConfig | None = None,
) -> State:
    """The state with AppGroup a1 and its bound pods, given as workload and node."""
    pods = (make_pod(workload, node, name=f"{workload.lower()}-{i}") for i, (workload, node) in enumerate(placements))
    return make_state(config or SchedulerConfig(), *nodes, costs, make_app_group(calls), *pods)
