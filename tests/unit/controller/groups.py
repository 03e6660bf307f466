"""Builds cases of groups in clusters with one node per zone, and plans them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import msgspec

from controller.cluster.costs import CostTable
from controller.cluster.crds import WORKLOAD_LABEL, AppGroup, WeightInfo
from controller.cluster.dependency_graph import build_graph
from controller.cluster.hosts import host_of
from controller.cluster.pods import Pod
from controller.cluster.services import Service
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.placement.planner import Plan, plan_group
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.state import State
from kubekit.wire import Node
from netperf.contract import REGION_LABEL, ZONE_LABEL
from tests.support.bodies import make_appgroup_spec, make_weight_body
from tests.unit.controller import scheduler_objects


class GroupCase(msgspec.Struct, frozen=True):
    """A group, and a cluster with one node per zone.

    Attributes:
        replicas: [workload] number of replicas.
        edges: dependent, dependency and maxNetworkCost.
        cost: [zone, zone] network cost; 0 within a zone.
        slots: [zone] number of pods that fit.
    """

    replicas: tuple[int, ...]
    edges: tuple[tuple[int, int, int], ...]
    cost: tuple[tuple[int, ...], ...]
    slots: tuple[int, ...]


def make_chain(replicas: tuple[int, ...] = (1, 1, 1), limit: int = 100) -> GroupCase:
    """w0 calls w1, which calls w2; of three zones, neighbours have cost 5, the outer two cost 50."""
    edges = tuple((i, i + 1, limit) for i in range(len(replicas) - 1))
    return GroupCase(replicas, edges, ((0, 5, 50), (5, 0, 5), (50, 5, 0)), (9, 9, 9))


def make_lone_workload(replicas: int, slots: tuple[int, ...] = (9, 9)) -> GroupCase:
    """w0 calls no workload; zones have cost 5."""
    zones = range(len(slots))
    return GroupCase((replicas,), (), tuple(tuple(5 * (a != b) for b in zones) for a in zones), slots)


def draw_case(rng: random.Random) -> GroupCase:
    """5 to 9 workloads of 1 to 3 replicas in 3 to 6 zones whose capacity binds."""
    zone_count, workload_count = rng.randint(3, 6), rng.randint(5, 9)
    replicas = tuple(rng.choice((1, 1, 2, 3)) for _ in range(workload_count))
    points = [(rng.random(), rng.random()) for _ in range(zone_count)]
    cost = tuple(tuple(0 if a == b else max(2, int(30 * math.dist(a, b))) for b in points) for a in points)
    pairs = [(i, j) for j in range(1, workload_count) for i in range(j) if rng.random() < 0.35]
    pairs += [(rng.randrange(j), j) for j in range(1, workload_count) if not any(pair[1] == j for pair in pairs)]
    max_cost = max(max(row) for row in cost)
    edges = tuple((i, j, rng.randint(max_cost // 2, max_cost)) for i, j in pairs)
    slots = [1] * zone_count
    for _ in range(max(0, sum(replicas) + rng.randint(0, 3) - zone_count)):
        slots[rng.randrange(zone_count)] += 1
    return GroupCase(replicas, edges, cost, tuple(slots))


def make_zone_node(name: str, zone: str, cpu: str = "8", **spec: Any) -> Node:
    """A node of the region r."""
    labels = {ZONE_LABEL: zone, REGION_LABEL: "r", "kubernetes.io/hostname": name}
    body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
    return msgspec.convert({**body, "status": {"allocatable": {"cpu": cpu, "memory": "64Gi", "pods": "110"}}}, Node)


def make_nodes(**cpus: int) -> list[Node]:
    """Nodes with this many cores: a and a2 in z0, b in z1, c in z2, d in z3."""
    return [make_zone_node(name, f"z{'abcd'.index(name[0])}", str(cpu)) for name, cpu in cpus.items()]


def make_service(workload: str, distribution: str = "", **spec: Any) -> Service:
    """A Service of a workload's pods; ``annotations`` are of the object, other keywords fields of the spec."""
    metadata = {"name": f"svc-{workload}", "namespace": "default", "annotations": spec.pop("annotations", {})}
    spec = {"selector": {WORKLOAD_LABEL: workload}, "trafficDistribution": distribution, **spec}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Service)


def make_group(
    case: GroupCase, name: str = "g", namespace: str = "default", *, algorithm: str = "KahnSort", **annotations: str
) -> AppGroup:
    """The AppGroup of a case, with workloads w0, w1, ...; ``spread=`` and so on are annotations."""
    calls = {
        f"w{caller}": {f"w{j}": max_cost for i, j, max_cost in case.edges if i == caller}
        for caller in range(len(case.replicas))
    }
    texts = {f"netaware.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    metadata = {"name": name, "namespace": namespace, "annotations": texts}
    spec = make_appgroup_spec(calls, members=sum(case.replicas), algorithm=algorithm)
    return msgspec.convert({"metadata": metadata, "spec": spec}, AppGroup)


def make_weight(case: GroupCase, name: str = "UserDefined") -> WeightInfo:
    """Costs between the zones of a case."""
    costs = {(f"z{a}", f"z{b}"): cost for a, row in enumerate(case.cost) for b, cost in enumerate(row) if a != b}
    return msgspec.convert(make_weight_body(costs, name=name), WeightInfo)


def make_waiting_pod(name: str, workload: str, cpu: str = "1", **spec: Any) -> Pod:
    """A gated pod of group g."""
    containers = [{"resources": {"requests": {"cpu": cpu}}}]
    return scheduler_objects.make_gated_pod(workload, name=name, group="g", **{"containers": containers, **spec})


def make_bound_pod(name: str, workload: str, node_name: str, cpu: str = "1") -> Pod:
    """A pod of group g on a node."""
    pod = make_waiting_pod(name, workload, cpu)
    spec = msgspec.structs.replace(pod.spec, node_name=node_name, scheduling_gates=None)
    return msgspec.structs.replace(with_metadata(pod, uid=name), spec=spec)


def make_pods(case: GroupCase) -> list[Pod]:
    """Gated pods of a case, with a request of one cpu."""
    return [make_waiting_pod(f"w{i}-{k}", f"w{i}") for i, count in enumerate(case.replicas) for k in range(count)]


def with_metadata(pod: Pod, **changes: Any) -> Pod:
    """A copy of a pod with other metadata."""
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, **changes))


def make_snapshot(case: GroupCase, nodes: Sequence[Node] | None = None, **changes: Any) -> GroupSnapshot:
    """The case with pending pods, on these nodes or on one per zone.

    ``services`` route calls to the pods. ``spread`` (none) and ``objective`` (parity) are annotations, unless the group has them.
    """
    defaults = {"spread": "none", "objective": "parity"}
    annotations = {f"netaware.io/{name}": changes.pop(name, value) for name, value in defaults.items()}
    group: AppGroup = changes.pop("group", make_group(case))
    metadata = msgspec.structs.replace(group.metadata, annotations=annotations | (group.metadata.annotations or {}))
    pods = changes.pop("pods", make_pods(case))
    state = State(SchedulerConfig(), "netaware-system")
    for service in changes.pop("services", ()):
        state.on_service_change(service.metadata.key, None, service)
    if nodes is None:
        nodes = [make_zone_node(f"n{zone}", f"z{zone}", str(slots)) for zone, slots in enumerate(case.slots)]
    fields: dict[str, Any] = {
        "replicas": {},
        "costs": CostTable(make_weight(case)),
        "hosts": {node.metadata.name: host_of(node) for node in nodes},
        "used": {},
        "assigned_nodes": {pod.metadata.key: pod.spec.node_name for pod in pods if pod.is_bound},
    }
    return GroupSnapshot(
        graph=build_graph(group.spec),
        pods=pods,
        group=msgspec.structs.replace(group, metadata=metadata),
        routings=state.routings_of(pods),
        **(fields | changes),
    )


def plan_case(case: GroupCase, nodes: Sequence[Node] | None = None, **changes: Any) -> Plan:
    """The plan of `make_snapshot`."""
    return plan_group(make_snapshot(case, nodes, **changes))


def map_nodes_by_pod(plan: Plan) -> dict[str, str | None]:
    """Node by pod, without the namespace default; None for an unplaced pod."""
    nodes: dict[str, str | None] = {key: target.node for key, target in plan.targets.items()}
    return {key.removeprefix("default/"): node for key, node in (nodes | dict.fromkeys(plan.unplaced)).items()}


def map_zones_by_pod(plan: Plan) -> dict[str, str]:
    """Zone by placed pod, without the namespace default."""
    return {key.removeprefix("default/"): target.zone for key, target in plan.targets.items()}
