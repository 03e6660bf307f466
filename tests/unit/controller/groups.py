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
from tests.support.bodies import appgroup_spec, weight_body
from tests.unit.controller import scheduling


class GroupCase(msgspec.Struct, frozen=True):
    """A random group in a random cluster with one node per zone.

    Attributes:
        replicas: number by workload.
        edges: dependent, dependency and maxNetworkCost.
        cost: between zones; 0 within a zone.
        slots: number of pods that fit into each zone.
    """

    replicas: tuple[int, ...]
    edges: tuple[tuple[int, int, int], ...]
    cost: tuple[tuple[int, ...], ...]
    slots: tuple[int, ...]


def random_case(rng: random.Random) -> GroupCase:
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


def price_placement(case: GroupCase, counts: list[tuple[int, ...]]) -> tuple[int, int]:
    """Violations and cost of a placement, given as pods per zone of each workload."""
    violations = total = 0
    for i, j, most in case.edges:
        for a, here in enumerate(counts[i]):
            for b, there in enumerate(counts[j]):
                pairs = here * there
                total += pairs * case.cost[a][b]
                violations += pairs * (case.cost[a][b] > most)
    return violations, total


def find_optimum(case: GroupCase, known: tuple[int, int] | None = None) -> tuple[int, int]:
    """Fewest violations, then the lowest cost, over all placements that fit; ``known`` is the value of one, which shortens the search."""
    zones, workloads = len(case.slots), len(case.replicas)
    options = [
        [tuple(Counter(chosen)[z] for z in range(zones)) for chosen in combinations_with_replacement(range(zones), n)]
        for n in range(4)
    ]
    penalty = 10**6
    # Each workload has as many placed neighbours as possible, so that bounds are effective early.
    order = [max(range(workloads), key=lambda w: sum(w in e[:2] for e in case.edges))]
    while len(order) < workloads:
        remaining = [w for w in range(workloads) if w not in order]
        order.append(
            max(remaining, key=lambda w: (sum(w in e[:2] and (e[0] in order or e[1] in order) for e in case.edges), -w))
        )
    near: list[list[tuple[int, list[list[int]]]]] = []
    for at, w in enumerate(order):
        links = []
        for i, j, most in case.edges:
            table = [[c + penalty * (c > most) for c in row] for row in case.cost]
            if i == w and j in order[:at]:
                links.append((j, table))
            if j == w and i in order[:at]:
                links.append((i, [list(column) for column in zip(*table, strict=True)]))
        near.append(links)
    best = [known[0] * penalty + known[1] if known else 10**18]
    place: list[tuple[int, ...]] = [()] * workloads

    def extend(at: int, free: tuple[int, ...], so_far: int) -> None:
        if at == workloads:
            best[0] = min(best[0], so_far)
            return
        w = order[at]
        pay = [sum(table[z][b] * n for j, table in near[at] for b, n in enumerate(place[j]) if n) for z in range(zones)]
        choices = []
        for counts in options[case.replicas[w]]:
            if all(n <= f for n, f in zip(counts, free, strict=True)):
                cost = so_far + sum(n * p for n, p in zip(counts, pay, strict=True))
                if cost < best[0]:
                    choices.append((cost, counts))
        for cost, counts in sorted(choices):
            if cost >= best[0]:
                break
            place[w] = counts
            extend(at + 1, tuple(f - n for f, n in zip(free, counts, strict=True)), cost)

    extend(0, case.slots, 0)
    return divmod(best[0], penalty)


def node(name: str, zone: str, cpu: str = "8", *, labels: dict[str, str] | None = None, **spec: Any) -> Node:
    """A node of the region r."""
    known = {ZONE_LABEL: zone, REGION_LABEL: "r", "kubernetes.io/hostname": name, **(labels or {})}
    body = {"metadata": {"name": name, "labels": known}, "spec": spec}
    return msgspec.convert({**body, "status": {"allocatable": {"cpu": cpu, "memory": "64Gi", "pods": "110"}}}, Node)


def service(workload: str, distribution: str = "", **spec: Any) -> Service:
    """A Service of a workload's pods; ``annotations`` are of the object, other keywords fields of the spec."""
    meta = {"name": f"svc-{workload}", "namespace": "default", "annotations": spec.pop("annotations", {})}
    body = {"selector": {WORKLOAD_LABEL: workload}, "trafficDistribution": distribution, **spec}
    return msgspec.convert({"metadata": meta, "spec": body}, Service)


def group_of(
    case: GroupCase, algorithm: str = "KahnSort", name: str = "g", namespace: str = "default", **annotations: str
) -> AppGroup:
    """The AppGroup of a case, with workloads w0, w1, ...; ``spread=`` and so on are annotations."""
    calls = {
        f"w{caller}": {f"w{j}": most for i, j, most in case.edges if i == caller}
        for caller in range(len(case.replicas))
    }
    spec = appgroup_spec(calls, members=sum(case.replicas), algorithm=algorithm)
    notes = {f"netaware.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    meta = {"name": name, "namespace": namespace, "annotations": notes}
    return msgspec.convert({"metadata": meta, "spec": spec}, AppGroup)


def weight_of(case: GroupCase, name: str = "UserDefined") -> WeightInfo:
    """Costs between the zones of a case."""
    costs = {(f"z{a}", f"z{b}"): cost for a, row in enumerate(case.cost) for b, cost in enumerate(row) if a != b}
    return msgspec.convert(weight_body(costs, name=name), WeightInfo)


def pods_of(case: GroupCase, **spec: Any) -> list[Pod]:
    """Gated pods of a case, with a request of one cpu."""
    return [waiting_pod(f"w{i}-{k}", f"w{i}", **spec) for i, count in enumerate(case.replicas) for k in range(count)]


def waiting_pod(name: str, workload: str, cpu: str = "1", **spec: Any) -> Pod:
    """A gated pod."""
    requested = [{"resources": {"requests": {"cpu": cpu}}}]
    return scheduling.gated(workload, name=name, group="g", **{"containers": requested, **spec})


def bound_pod(name: str, workload: str, host: str, cpu: str = "1") -> Pod:
    """A running pod."""
    pod = waiting_pod(name, workload, cpu)
    spec = msgspec.structs.replace(pod.spec, node_name=host, scheduling_gates=None)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=name), spec=spec)


def snapshot(case: GroupCase, nodes: Sequence[Node] | None = None, **changes: Any) -> GroupSnapshot:
    """The case with pending pods, on these nodes or on one per zone.

    ``services`` route calls to the pods. ``spread`` (none) and ``objective`` (parity) are annotations, unless the group has them.
    """
    wishes = {
        f"netaware.io/{name}": changes.pop(name, said) for name, said in (("spread", "none"), ("objective", "parity"))
    }
    group: AppGroup = changes.pop("group", group_of(case))
    noted = msgspec.structs.replace(group.metadata, annotations=wishes | (group.metadata.annotations or {}))
    pods = changes.pop("pods", pods_of(case))
    state = State(SchedulerConfig(), "netaware-system")
    for each in changes.pop("services", ()):
        state.on_service_change(each.metadata.key, None, each)
    if nodes is None:
        nodes = [node(f"n{zone}", f"z{zone}", str(slots)) for zone, slots in enumerate(case.slots)]
    defaults: dict[str, Any] = {
        "replicas": {},
        "costs": CostTable(weight_of(case)),
        "hosts": {each.metadata.name: host_of(each) for each in nodes},
        "used": {},
        "assigned_nodes": {pod.metadata.key: pod.spec.node_name for pod in pods if pod.is_bound},
    }
    return GroupSnapshot(
        graph=build_graph(group.spec),
        pods=pods,
        group=msgspec.structs.replace(group, metadata=noted),
        routings=state.routings_of(pods),
        **(defaults | changes),
    )


def plan_of(case: GroupCase, nodes: Sequence[Node] | None = None, **changes: Any) -> Plan:
    """The plan of `snapshot`."""
    return plan_group(snapshot(case, nodes, **changes))
