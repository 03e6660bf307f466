"""A cluster of nodes, AppGroups and pods with their plans, without an API server."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from controller.cluster.crds import AppGroup, WorkloadRef
from controller.cluster.hosts import NodeCache
from controller.cluster.pod_info import PodReader
from controller.cluster.pods import TARGET_ANNOTATION, Pod, Target, target_of
from controller.cluster.volumes import Volumes
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.gating.group_plans import GroupPlans, PlanState
from controller.scheduler.metrics import GateMetrics
from controller.scheduler.placement import native_library
from controller.scheduler.placement.inputs import PlanInputs
from controller.scheduler.placement.planner import Plan, PlanningError, plan_group
from controller.scheduler.placement.snapshot import GroupSnapshot
from controller.scheduler.state import State
from tests.support.bodies import make_appgroup_spec
from tests.unit.controller import groups, scheduler_objects

# Compiles the search before a test's event loop runs: tests fail if the loop waits for the compiler.
native_library.library_path()


class FakeDeclaredReplicas:
    """Declared replicas by selector, the same in all namespaces."""

    def __init__(self) -> None:
        self.by_workload: dict[str, int] = {}

    def replicas_by_selector(self, _namespace: str, workloads: Sequence[WorkloadRef]) -> Mapping[str, int]:
        return {w.selector: self.by_workload[w.selector] for w in workloads if w.selector in self.by_workload}


class PlanningCluster:
    """Plans groups in this process.

    Attributes:
        cpu: cores of nodes that are added.
        failure: raised instead of the next plans.
        plan_duration_s: how long a plan takes on the cluster's clock, `now_s`.
        searches: namespace and search time of each plan.
    """

    def __init__(self, host_count: int, cpu: int) -> None:
        self.config = SchedulerConfig()
        self.state, self.node_cache, self.volumes = State(self.config, "netaware-system"), NodeCache(), Volumes()
        self.cpu, self.now_s = cpu, 1000.0
        self.pods: dict[str, Pod] = {}
        self.declared, self.enqueued = FakeDeclaredReplicas(), list[str]()
        self.failure: PlanningError | None = None
        self.plan_duration_s = 0.0
        self.searches, self.planned_snapshots = list[tuple[str, float]](), list[GroupSnapshot]()
        for i in range(host_count):
            self.add_node(f"n{i:02d}", f"z{i % 3}")
        self.plans = GroupPlans(
            PlanInputs(self.state, self.node_cache, self.volumes, None, self.declared),  # type: ignore[arg-type]
            self.list_pods,
            config=self.config.gates,
            metrics=GateMetrics(CollectorRegistry()),
            solve=self.solve,
            enqueue=self.enqueued.append,
            notify=lambda _: None,
            clock=lambda: self.now_s,
        )

    def add_node(self, name: str, zone: str) -> None:
        node = groups.make_zone_node(name, zone, str(self.cpu))
        self.state.on_node_change(name, None, node)
        self.node_cache.on_node_change(name, None, node)

    def add_group(self, key: str, members: int, mutual_callers: int = 0) -> None:
        """Add a group whose workload P1 calls P2, and further workloads that all call each other."""
        others = [f"w{i}" for i in range(mutual_callers)]
        calls = {"P1": {"P2": 9}, "P2": {}}
        calls |= {caller: {callee: 9 for callee in others if callee != caller} for caller in others}
        self.put_group(key, calls, members)

    def put_group(self, key: str, calls: Mapping[str, Mapping[str, int]], members: int) -> None:
        namespace, _, name = key.partition("/")
        body = {"metadata": {"name": name, "namespace": namespace}, "spec": make_appgroup_spec(calls, members=members)}
        self.state.on_group_change(key, None, msgspec.convert(body, AppGroup))

    def add_pod(self, group: str, name: str, workload: str, cpu: int) -> Pod:
        namespace, _, label = group.partition("/")
        owner = {"kind": "ReplicaSet", "uid": f"{group}-{workload}", "controller": True}
        metadata = {"namespace": namespace, "uid": name, "resourceVersion": "1", "ownerReferences": [owner]}
        requested = [{"resources": {"requests": {"cpu": str(cpu)}}}]
        pod = scheduler_objects.make_gated_pod(
            workload, name=name, group=label, metadata=metadata, containers=requested
        )
        self.pods[pod.metadata.key] = pod
        return pod

    def update_pod(self, key: str, **changes: Any) -> None:
        body = msgspec.to_builtins(self.pods[key])
        body["spec"] |= changes.pop("spec", {})
        body["status"] |= changes.pop("status", {})
        body["metadata"] |= changes.pop("metadata", {})
        self.pods[key] = msgspec.convert(body, Pod)

    def open_gate(self, key: str, target: Target | None) -> None:
        annotations = {TARGET_ANNOTATION: msgspec.json.encode(target).decode()} if target is not None else {}
        self.update_pod(key, spec={"schedulingGates": []}, metadata={"annotations": annotations})

    def bind(self, key: str, node: str) -> None:
        """Bind a pod; the node's usage lacks it until `count_on_node`."""
        self.update_pod(
            key, spec={"nodeName": node, "schedulingGates": []}, status={"phase": "Running", "conditions": []}
        )

    def count_on_node(self, key: str) -> None:
        self.node_cache.on_pod_change(key, None, PodReader().read(self.pods[key]))

    def bind_and_count(self, key: str, node: str) -> None:
        self.bind(key, node)
        self.count_on_node(key)

    def request_plan(self, group: str) -> PlanState:
        return self.plans.get_or_request(group, self.list_pods(group))

    async def plan_nodes(self, group: str) -> dict[str, str]:
        """Make the group's plan; returns node by pod."""
        await self.plans.make_plan(group)
        return {key: target.node for key, target in self.last_plan(group).targets.items()}

    def delete_pod(self, key: str) -> None:
        del self.pods[key]
        self.node_cache.on_pod_change(key, None, None)
        self.plans.reservations.forget_pod(key)

    def list_pods(self, group: str) -> list[Pod]:
        namespace, _, label = group.partition("/")
        return [p for p in self.pods.values() if p.metadata.namespace == namespace and p.group == label]

    async def solve(self, snapshot: GroupSnapshot, search_s: float) -> Plan:
        if self.failure is not None:
            raise self.failure
        self.now_s += self.plan_duration_s
        self.planned_snapshots.append(snapshot)
        self.searches.append((snapshot.group.metadata.namespace, search_s))
        return plan_group(snapshot, time_limit_s=search_s)

    def refuse(self, key: str, node: str) -> None:
        """Record that the scheduler refused this node for a pod."""
        self.plans.reservations.refused_nodes.add(self.pods[key], node)

    def refused_nodes(self, key: str) -> Set[str]:
        return self.plans.reservations.refused_nodes.nodes_by_pod([self.pods[key]]).get(key, frozenset())

    async def plan_all(self, *groups: str) -> None:
        """Request plans of these groups, and wait until they are made."""
        for group in groups:
            self.request_plan(group)
        planner, made = asyncio.create_task(self.plans.run()), len(self.searches)
        while len(self.searches) < made + len(groups):
            await asyncio.sleep(0)
        planner.cancel()

    def last_plan(self, group: str) -> Plan:
        """The last plan, even if it is not valid any more; an empty plan if there is none."""
        cached = self.plans._cached_plans.get(group)
        return cached.plan if cached is not None else Plan()

    def choose_node(self, pod: Pod, rng: random.Random) -> str:
        """The node to which the scheduler binds a pod: the target if it fits, else any that fits; empty if there is none."""
        bound_millicores: Counter[str] = Counter()
        for other in self.pods.values():
            bound_millicores[other.spec.node_name] += self._requested_millicores(other)
        free_millicores = 1000 * self.cpu - self._requested_millicores(pod)
        fitting = [node for node in self.node_cache.hosts if bound_millicores[node] <= free_millicores]
        target = target_of(pod)
        if target is not None and target.node in fitting and not pod.status.scheduling_failed:
            return target.node
        return rng.choice(fitting) if fitting else ""

    def list_overcommitted_nodes(self) -> list[str]:
        """Nodes with gated pods whose bound and planned pods request more CPU than the node has."""
        millicores: Counter[str] = Counter()
        nodes_of_gated: set[str] = set()
        for group in self.state.groups:
            targets = self.last_plan(group).targets
            for pod in self.list_pods(group):
                target = targets.get(pod.metadata.key)
                node = pod.spec.node_name or (target.node if target is not None and pod.is_waiting else "")
                millicores[node] += self._requested_millicores(pod)
                if pod.is_gated:
                    nodes_of_gated.add(node)
        return sorted(node for node in nodes_of_gated - {""} if millicores[node] > 1000 * self.cpu)

    def _requested_millicores(self, pod: Pod) -> int:
        return self.plans.reservations.requests_with_ports_of(pod)["cpu"]


def make_cluster_with_one_pod(hosts: int = 3, cpu: int = 1) -> PlanningCluster:
    """A cluster of nodes with 4 cores, and group d/g1 with one pod, d/a."""
    cluster = PlanningCluster(hosts, 4)
    cluster.add_group("d/g1", 1)
    cluster.add_pod("d/g1", "a", "P1", cpu)
    return cluster
