"""Builds clusters, configurations and decisions for tests and benchmarks of the descheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from controller.cluster.hosts import Host, NodeCache, host_of
from controller.cluster.pod_info import PodInfo, PodReader
from controller.cluster.pods import Pod, Target
from controller.cluster.volumes import PersistentVolume, Volumes
from controller.descheduler.config import DeschedulerConfig, ResolvedConfig
from controller.descheduler.decide import DescheduleDecision, ReasonDurations, decide
from controller.descheduler.disruption_budgets import PodDisruptionBudget
from controller.descheduler.evaluation import evaluate_moves
from controller.descheduler.history import (
    BackoffEntry,
    BreakerEntry,
    EvictionEntry,
    History,
    PendingMove,
    add_moves,
    short_uid,
)
from controller.descheduler.node_load import AnomalyDetector
from controller.descheduler.plan import Move, NodeState
from controller.descheduler.snapshot import DeschedulerSnapshot, take_snapshot
from controller.descheduler.taints import nodes_to_taint
from controller.descheduler.usage import NO_USAGE, UsageBatch, UsageReading, UsageStore, UsageView
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.placement.inputs import PlanInputs
from controller.scheduler.state import State
from kubekit.wire import Node, format_time

GI = 1 << 30
NOW_S = 1_800_000_000.0
IMMEDIATE_ANOMALY: dict[str, Any] = {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1}
"""An anomaly condition that acts in the first round, for tests of everything but anomalies."""

_READER = PodReader()


class World:
    """Nodes, pods, disruption budgets and volumes.

    Attributes:
        network: the scheduler's `State`, with AppGroups and costs.
        pods: by key.
    """

    def __init__(self, config: SchedulerConfig | None = None, volumes: Volumes | None = None) -> None:
        self.network = State(config or SchedulerConfig(), "netaware-system")
        self.volumes, self.cache = volumes or Volumes(), NodeCache()
        self.pods: dict[str, PodInfo] = {}
        self.budgets: list[PodDisruptionBudget] = []

    @property
    def inputs(self) -> PlanInputs:
        return PlanInputs(self.network, self.cache, self.volumes)

    @property
    def nodes(self) -> dict[str, Host]:
        return self.cache.hosts

    def on_node_change(self, name: str, new: Node | None) -> None:
        self.cache.on_node_change(name, None, new)
        self.network.on_node_change(name, None, new)

    def on_pod_change(self, key: str, new: PodInfo | None) -> None:
        old = self.pods.pop(key, None)
        self.network.on_pod_change(key, old.group_pod if old else None, new.group_pod if new else None)
        if new is not None:
            self.pods[key] = new

    def snapshot(self, usage: UsageView = NO_USAGE) -> DeschedulerSnapshot:
        return replace(take_snapshot(self.inputs, self.pods, self.budgets, "netaware-system"), usage=usage)


def make_host(name: str, **fields: Any) -> Host:
    """A node in the descheduler's form, from the fields of `make_node`."""
    return host_of(make_node(name, **fields))


def make_node(
    name: str,
    *,
    cpu: str = "4",
    memory: str = "16Gi",
    pods: str = "110",
    bandwidth: str = "",
    labels: Mapping[str, str] | None = None,
    taints: Iterable[Mapping[str, str]] = (),
    unschedulable: bool = False,
    ready: bool = True,
) -> Node:
    """A node as the API server sends it."""
    allocatable = {"cpu": cpu, "memory": memory, "pods": pods}
    if bandwidth:
        allocatable["network.aware.com/bandwidth"] = bandwidth
    document = {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {"unschedulable": unschedulable, "taints": list(taints)},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": str(ready)}]},
    }
    return msgspec.convert(document, Node)


def make_pod_info(name: str, node_name: str, **fields: Any) -> PodInfo:
    """A pod in the descheduler's form, from the fields of `make_pod_document`."""
    return read_pod(make_pod_document(name, node_name, **fields))


def make_single_pod(name: str, node_name: str = "hot", **fields: Any) -> PodInfo:
    """The only pod of a workload."""
    return make_pod_info(name, node_name, **{"owner": f"ReplicaSet/{name}-1", **fields})


def make_pod_document(
    name: str,
    node_name: str,
    *,
    namespace: str = "default",
    owner: str = "ReplicaSet/web-5d4f",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    cpu: str = "",
    memory: str = "",
    priority: int = 0,
    priority_class: str = "",
    qos: str = "Burstable",
    created_s: float = NOW_S - 86_400,
    uid: str = "",
    phase: str = "Running",
    ready: bool = True,
    deleting: bool = False,
    spec: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A pod as the API server sends it. An empty ``owner`` makes it bare."""
    requests = {resource: amount for resource, amount in (("cpu", cpu), ("memory", memory)) if amount}
    kind, _, owner_name = owner.partition("/")
    owners = [{"kind": kind, "name": owner_name, "uid": f"uid-{owner}", "controller": True}] if owner else []
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"uid-{namespace}-{name}",
        "labels": dict(labels or {}),
        "annotations": dict(annotations or {}),
        "ownerReferences": owners,
        "creationTimestamp": format_time(created_s),
    }
    if deleting:
        metadata["deletionTimestamp"] = format_time(NOW_S)
    return {
        "metadata": metadata,
        "spec": {
            "nodeName": node_name,
            "priority": priority,
            "priorityClassName": priority_class,
            "containers": [{"name": "main", "resources": {"requests": requests}}],
            **(spec or {}),
        },
        "status": {"phase": phase, "qosClass": qos, "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def read_pod(document: Mapping[str, Any]) -> PodInfo:
    """Convert a pod of the API server to the descheduler's form."""
    return _READER.read(msgspec.convert(document, Pod))


def to_usage(cpu: float | None = None, memory: float | None = None, bandwidth: float | None = None) -> dict[str, float]:
    """Convert cores, GiB and bits per second to amounts by resource."""
    units = {"cpu": (cpu, 1000), "memory": (memory, GI), "network.aware.com/bandwidth": (bandwidth, 1)}
    return {resource: amount * unit for resource, (amount, unit) in units.items() if amount is not None}


def make_snapshot(
    nodes: Iterable[Host],
    pods: Iterable[PodInfo],
    node_usage: Mapping[str, Mapping[str, float]],
    pod_usage: Mapping[str, Mapping[str, float]] | None = None,
    *,
    budgets: Iterable[PodDisruptionBudget] = (),
    volumes: Volumes | None = None,
) -> DeschedulerSnapshot:
    """A snapshot without AppGroups; the keys of ``pod_usage`` are ``name``, for namespace default, or ``namespace/name``."""
    world = World(volumes=volumes)
    world.nodes.update((n.name, n) for n in nodes)
    world.pods.update((p.key, p) for p in pods)
    world.budgets += budgets
    used = {key if "/" in key else f"default/{key}": value for key, value in (pod_usage or {}).items()}
    return world.snapshot(UsageView(node_usage, used))


def make_budget(name: str, selector: str, allowed: int, namespace: str = "default") -> PodDisruptionBudget:
    """A PodDisruptionBudget for pods with the label ``app`` or ``app=web``; for all pods if the selector is empty."""
    key, is_value, value = selector.partition("=")
    expression = {"key": key, "operator": "In" if is_value else "Exists", "values": [value] if is_value else None}
    body = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchExpressions": [expression] if selector else []}},
        "status": {"disruptionsAllowed": allowed},
    }
    return msgspec.convert(body, PodDisruptionBudget)


def make_config(policy: Mapping[str, Any] | None = None, **sections: Any) -> ResolvedConfig:
    """A configuration whose policy (LowNodeLoadArgs) acts in the first round, by default with generous limits."""
    args = {
        "lowThresholds": {"cpu": 20, "memory": 30},
        "highThresholds": {"cpu": 50, "memory": 60},
        "anomalyCondition": IMMEDIATE_ANOMALY,
        **(policy or {}),
    }
    limit_names = ("perNode", "perNamespace", "perRound", "perWorkload", "unavailablePerWorkload")
    limits = {**dict.fromkeys(limit_names, 1000), **sections.pop("limits", {})}
    # Most made-up workloads have one young pod.
    protection = {"minReplicas": 1, "minPodAgeS": 0, **sections.pop("protection", {})}
    document = {"policy": args, "limits": limits, "protection": protection, **sections}
    return msgspec.convert(document, DeschedulerConfig).resolve()


def make_pending_move(
    pod: str = "default/old",
    uid: str = "u",
    workload: str = "default/Deployment/w",
    node: str = "hot",
    planned_at_s: float = NOW_S,
    strategy: Any = "LowNodeLoad",
    *,
    target: str = "",
    group: str = "",
    usage: Mapping[str, float] | None = None,
    cost_before: int = -1,
    violated_before: int = 0,
    **follow: Any,
) -> PendingMove:
    """An earlier move; ``follow`` are other fields of `PendingMove`."""
    move = Move(pod, uid, workload, node, target, strategy, "r", usage or {}, group=group)
    move = msgspec.structs.replace(move, cost_before=cost_before, violated_before=violated_before)
    return PendingMove(move, planned_at_s, **follow)


def list_moved_pods(decision: DescheduleDecision) -> list[str]:
    """Names of the pods that the plan moves, in order."""
    return [move.pod.partition("/")[2] for move in decision.plan.moves]


def decide_once(
    view: DeschedulerSnapshot,
    config: ResolvedConfig,
    *,
    history: History | None = None,
    durations: ReasonDurations | None = None,
    now: float = NOW_S,
    ignore_durations: bool = False,
) -> DescheduleDecision:
    """The decision of one round, by default the first one."""
    history, durations = history or History(), durations or ReasonDurations()
    return decide(view, history, durations, config, now, ignore_durations=ignore_durations).decision


def decide_on_hot_node(
    *pods: PodInfo,
    cpu_of_pods: float | None = 0.5,
    history: History | None = None,
    idle: Host | None = None,
    budgets: Iterable[PodDisruptionBudget] = (),
    policy: Mapping[str, Any] | None = None,
    **sections: Any,
) -> DescheduleDecision:
    """The decision for node ``hot``, which uses all its 4 cores, with these pods, and node ``idle``, by default a large one."""
    nodes = [make_host("hot"), idle or make_host("idle", cpu="64", memory="256Gi")]
    usage = {"hot": to_usage(4, 1), "idle": to_usage(0.1, 1)}
    view = make_snapshot(nodes, pods, usage, {pod.key: to_usage(cpu_of_pods, 0.1) for pod in pods}, budgets=budgets)
    return decide_once(view, make_config(policy, **sections), history=history)


def make_loaded_snapshot(
    cores_by_node: Mapping[str, float],
    cores_by_pod: Mapping[str, float],
    *,
    size: int = 4,
    **node_fields: Mapping[str, Any],
) -> DeschedulerSnapshot:
    """Nodes of ``size`` cores with these in use, and pods on node ``hot`` with those; ``node_fields`` are by name."""
    nodes = [make_host(name, **{"cpu": str(size), **node_fields.get(name, {})}) for name in cores_by_node]
    node_usage = {name: to_usage(cores, 1) for name, cores in cores_by_node.items()}
    pod_usage = {name: to_usage(cores, 0.1) for name, cores in cores_by_pod.items()}
    return make_snapshot(nodes, [make_single_pod(name) for name in cores_by_pod], node_usage, pod_usage)


def find_node_state(decision: DescheduleDecision, name: str = "hot") -> NodeState:
    return next(state for state in decision.plan.nodes if state.node == name)
