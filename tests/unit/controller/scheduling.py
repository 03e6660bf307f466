"""Builds nodes, costs, AppGroups and pods, and the scheduler's state with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from controller.cluster.crds import AppGroup, AppGroupStatus, NetworkTopology
from controller.cluster.pods import GATE, Pod
from controller.cluster.services import Service
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.state import State
from kubekit.wire import Node, Object
from tests.support.bodies import REGION, ZONE, appgroup_spec, weight_body

GROUP, WORKLOAD = "appgroup.diktyo.x-k8s.io", "appgroup.diktyo.x-k8s.io.workload"
Costs = Mapping[tuple[str, str], int]


def labels_of(region: str, zone: str) -> dict[str, str]:
    return {key: value for key, value in ((REGION, region), (ZONE, zone)) if value}


def node(name: str, region: str, zone: str, **allocatable: str) -> Node:
    body = {"metadata": {"name": name, "labels": labels_of(region, zone)}, "status": {"allocatable": allocatable}}
    return msgspec.convert(body, Node)


def topology_of(*weights: Mapping[str, Any]) -> NetworkTopology:
    body = {"metadata": {"name": "nt-default", "namespace": "default"}, "spec": {"weights": weights}}
    return msgspec.convert(body, NetworkTopology)


def topology(zones: Costs, regions: Costs | None = None) -> NetworkTopology:
    return topology_of(weight_body(zones, regions))


def app_group(
    calls: Mapping[str, Mapping[str, Any]],
    namespace: str = "default",
    *,
    name: str = "a1",
    algorithm: str = "KahnSort",
    members: int = 1,
    generation: int = 1,
    status: AppGroupStatus | None = None,
) -> AppGroup:
    """An AppGroup with calls as in `appgroup_spec`."""
    metadata = {"name": name, "namespace": namespace, "generation": generation}
    spec = appgroup_spec(calls, members=members, algorithm=algorithm)
    group = msgspec.convert({"metadata": metadata, "spec": spec}, AppGroup)
    return group if status is None else msgspec.structs.replace(group, status=status)


def pod(workload: str, node: str = "", *, name: str = "p1", group: str = "a1", **fields: Any) -> Pod:
    """A pod, bound if it has a node; ``metadata`` and ``status`` are further fields of these, other keywords fields of the spec."""
    meta = {"name": name, "namespace": "default", "uid": f"u-{name}", **fields.pop("metadata", {})}
    meta.setdefault("labels", {GROUP: group, WORKLOAD: workload} if group else {})
    status = {"phase": "Running" if node else "Pending", **fields.pop("status", {})}
    spec = {"nodeName": node, "schedulerName": "network-aware-scheduler", **fields}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, Pod)


def group_pod(
    workload: str,
    on: str,
    *,
    of: str = "g",
    name: str = "p",
    namespace: str = "shop",
    phase: str = "Running",
    created: str = "2026-01-01T00:00:00Z",
    leaving: bool = False,
) -> Pod:
    """A pod of an AppGroup's workload on a node."""
    times = {"creationTimestamp": created} | ({"deletionTimestamp": "2026-01-02T00:00:00Z"} if leaving else {})
    metadata = {"namespace": namespace, **times}
    return pod(workload, on, name=name, group=of, metadata=metadata, status={"phase": phase})


def gated(workload: str = "P1", **fields: Any) -> Pod:
    return pod(workload, **{"schedulingGates": [{"name": GATE}], **fields})


def state_with(config: SchedulerConfig, *objects: Object) -> State:
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


def state_of(
    nodes: Iterable[Node],
    costs: NetworkTopology,
    calls: Mapping[str, Mapping[str, int]],
    placed: Iterable[tuple[str, str]] = (),
    config: SchedulerConfig | None = None,
) -> State:
    """The state with an AppGroup and pods that are bound, given as workload and node."""
    pods = (pod(w, node, name=f"{w.lower()}-{number}") for number, (w, node) in enumerate(placed))
    return state_with(config or SchedulerConfig(), *nodes, costs, app_group(calls), *pods)
