"""Random groups, and their best placement by brute force, which plans are compared with."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import combinations_with_replacement
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
    """A random group in a random cluster with one node per zone.

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


def draw_case(rng: random.Random) -> GroupCase:
    """5 to 9 workloads of 1 to 3 replicas in 3 to 6 zones whose capacity binds."""
    zones, workloads = rng.randint(3, 6), rng.randint(5, 9)
    replicas = tuple(rng.choice((1, 1, 2, 3)) for _ in range(workloads))
    points = [(rng.random(), rng.random()) for _ in range(zones)]
    cost = tuple(
        tuple(
            0 if a == b else max(2, int(30 * ((ax - bx) ** 2 + (ay - by) ** 2) ** 0.5))
            for b, (bx, by) in enumerate(points)
        )
        for a, (ax, ay) in enumerate(points)
    )
    pairs = [(i, j) for j in range(1, workloads) for i in range(j) if rng.random() < 0.35]
    pairs += [(rng.randrange(j), j) for j in range(1, workloads) if not any(p[1] == j for p in pairs)]
    highest = max(max(row) for row in cost)
    edges = tuple((i, j, rng.randint(highest // 2, highest)) for i, j in pairs)
    slots = [1] * zones
    for _ in range(max(0, sum(replicas) + rng.randint(0, 3) - zones)):
        slots[rng.randrange(zones)] += 1
    return GroupCase(replicas, edges, cost, tuple(slots))


def price_placement(case: GroupCase, counts_by_workload: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Violations and cost of a placement, given as pods per zone of each workload."""
    violations = cost = 0
    for caller, callee, limit in case.edges:
        for caller_zone, caller_count in enumerate(counts_by_workload[caller]):
            for callee_zone, callee_count in enumerate(counts_by_workload[callee]):
                pair_count, pair_cost = caller_count * callee_count, case.cost[caller_zone][callee_zone]
                cost += pair_count * pair_cost
                violations += pair_count * (pair_cost > limit)
    return violations, cost


VIOLATION_COST = 10**6
"""Cost of a violation in the search of the optimum, so that fewer violations are always cheaper."""


def find_optimum(case: GroupCase, upper_bound: tuple[int, int]) -> tuple[int, int]:
    """Fewest violations, then the lowest cost, over all placements that fit; ``upper_bound`` is that of one of them."""
    zones = range(len(case.slots))
    # By number of replicas: all ways to spread them, as pods per zone.
    spreads = [
        [tuple(Counter(chosen)[zone] for zone in zones) for chosen in combinations_with_replacement(zones, replicas)]
        for replicas in range(4)
    ]
    order = _search_order(case)
    neighbours_by_step = [_priced_neighbours(case, workload, order[:step]) for step, workload in enumerate(order)]
    best = upper_bound[0] * VIOLATION_COST + upper_bound[1]
    spread_by_workload: dict[int, tuple[int, ...]] = {}

    def place_from(step: int, free_slots: tuple[int, ...], placed_cost: int) -> None:
        """Try all spreads of the workloads from a step of the order on, the cheapest first."""
        nonlocal best
        if step == len(order):
            best = min(best, placed_cost)
            return
        pod_costs = [
            sum(
                prices[zone][z] * n
                for other, prices in neighbours_by_step[step]
                for z, n in enumerate(spread_by_workload[other])
            )
            for zone in zones
        ]
        options = [
            (placed_cost + sum(n * cost for n, cost in zip(spread, pod_costs, strict=True)), spread)
            for spread in spreads[case.replicas[order[step]]]
            if all(n <= free for n, free in zip(spread, free_slots, strict=True))
        ]
        for cost, spread in sorted(options):
            if cost >= best:
                break
            spread_by_workload[order[step]] = spread
            place_from(step + 1, tuple(free - n for free, n in zip(free_slots, spread, strict=True)), cost)

    place_from(0, case.slots, 0)
    return divmod(best, VIOLATION_COST)


def _priced_neighbours(case: GroupCase, workload: int, placed: Sequence[int]) -> list[tuple[int, list[list[int]]]]:
    """The placed workloads that share an edge with a workload, each with prices of the edge by its zone and theirs."""
    neighbours = []
    for caller, callee, limit in case.edges:
        prices = [[cost + VIOLATION_COST * (cost > limit) for cost in row] for row in case.cost]
        if caller == workload and callee in placed:
            neighbours.append((callee, prices))
        if callee == workload and caller in placed:
            neighbours.append((caller, [list(column) for column in zip(*prices, strict=True)]))
    return neighbours


def _search_order(case: GroupCase) -> list[int]:
    """Workloads, each with as many neighbours before it as possible, so that bounds are effective early."""
    order: list[int] = []
    for _ in case.replicas:
        remaining = [w for w in range(len(case.replicas)) if w not in order]
        # The first has no neighbour before it: it is the workload with the most edges.
        edges = [edge for edge in case.edges if not order or edge[0] in order or edge[1] in order]
        order.append(max(remaining, key=lambda w: (sum(w in edge[:2] for edge in edges), -w)))
    return order


def make_zone_node(name: str, zone: str, cpu: str = "8", *, labels: dict[str, str] | None = None, **spec: Any) -> Node:
    """A node of the region r."""
    all_labels = {ZONE_LABEL: zone, REGION_LABEL: "r", "kubernetes.io/hostname": name, **(labels or {})}
    body = {"metadata": {"name": name, "labels": all_labels}, "spec": spec}
    return msgspec.convert({**body, "status": {"allocatable": {"cpu": cpu, "memory": "64Gi", "pods": "110"}}}, Node)


def make_service(workload: str, distribution: str = "", **spec: Any) -> Service:
    """A Service of a workload's pods; ``annotations`` are of the object, other keywords fields of the spec."""
    meta = {"name": f"svc-{workload}", "namespace": "default", "annotations": spec.pop("annotations", {})}
    body = {"selector": {WORKLOAD_LABEL: workload}, "trafficDistribution": distribution, **spec}
    return msgspec.convert({"metadata": meta, "spec": body}, Service)


def make_group(
    case: GroupCase, algorithm: str = "KahnSort", name: str = "g", namespace: str = "default", **annotations: str
) -> AppGroup:
    """The AppGroup of a case, with workloads w0, w1, ...; ``spread=`` and so on are annotations."""
    calls = {
        f"w{caller}": {f"w{j}": most for i, j, most in case.edges if i == caller}
        for caller in range(len(case.replicas))
    }
    spec = make_appgroup_spec(calls, members=sum(case.replicas), algorithm=algorithm)
    texts = {f"netaware.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    meta = {"name": name, "namespace": namespace, "annotations": texts}
    return msgspec.convert({"metadata": meta, "spec": spec}, AppGroup)


def make_weight(case: GroupCase, name: str = "UserDefined") -> WeightInfo:
    """Costs between the zones of a case."""
    costs = {(f"z{a}", f"z{b}"): cost for a, row in enumerate(case.cost) for b, cost in enumerate(row) if a != b}
    return msgspec.convert(make_weight_body(costs, name=name), WeightInfo)


def make_pods(case: GroupCase, **spec: Any) -> list[Pod]:
    """Gated pods of a case, with a request of one cpu."""
    return [
        make_waiting_pod(f"w{i}-{k}", f"w{i}", **spec) for i, count in enumerate(case.replicas) for k in range(count)
    ]


def make_waiting_pod(name: str, workload: str, cpu: str = "1", **spec: Any) -> Pod:
    """A gated pod."""
    requested = [{"resources": {"requests": {"cpu": cpu}}}]
    return scheduler_objects.make_gated_pod(workload, name=name, group="g", **{"containers": requested, **spec})


def make_bound_pod(name: str, workload: str, host: str, cpu: str = "1") -> Pod:
    """A running pod."""
    pod = make_waiting_pod(name, workload, cpu)
    spec = msgspec.structs.replace(pod.spec, node_name=host, scheduling_gates=None)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=name), spec=spec)


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
    for routed_service in changes.pop("services", ()):
        state.on_service_change(routed_service.metadata.key, None, routed_service)
    if nodes is None:
        nodes = [make_zone_node(f"n{zone}", f"z{zone}", str(slots)) for zone, slots in enumerate(case.slots)]
    fields: dict[str, Any] = {
        "replicas": {},
        "costs": CostTable(make_weight(case)),
        "hosts": {n.metadata.name: host_of(n) for n in nodes},
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
    """The plan of `snapshot`."""
    return plan_group(make_snapshot(case, nodes, **changes))
