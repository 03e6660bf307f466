"""Random clusters, histories and configurations for rounds of the descheduler, by seed."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any, NamedTuple

import msgspec

from tests.support.descheduler_builders import (
    NOW_S,
    BackoffEntry,
    BreakerEntry,
    DeschedulerSnapshot,
    EvictionEntry,
    History,
    Host,
    PersistentVolume,
    PodInfo,
    UsageView,
    Volumes,
    make_budget,
    make_host,
    make_pending_move,
    make_pod_info,
    make_snapshot,
)

NAMESPACES = ("shop", "back.office", "kube-system")
ZONE = "topology.kubernetes.io/zone"
OWNER_KINDS = ("ReplicaSet", "StatefulSet", "Job", "DaemonSet", "TaskRun", "")
GI = float(1 << 30)


class RoundInput(NamedTuple):
    """A random cluster, its history, and its configuration as in YAML."""

    view: DeschedulerSnapshot
    history: History
    config: dict[str, Any]


def is_chosen(rng: random.Random, share: float) -> bool:
    """True in this share of calls."""
    return rng.random() < share


def make_random_host(rng: random.Random, number: int) -> Host:
    taints = []
    if is_chosen(rng, 0.15):
        taints.append(
            {"key": "gpu", "value": "yes", "effect": rng.choice(("NoSchedule", "PreferNoSchedule", "NoExecute"))}
        )
    if is_chosen(rng, 0.05):
        taints.append({"key": "DeletionCandidateOfClusterAutoscaler", "effect": "PreferNoSchedule"})
    labels = {"size": rng.choice(("small", "large"))}
    if not is_chosen(rng, 0.1):
        labels[ZONE] = f"z.{number % 3}"
    return make_host(
        f"Node-{number}.example",
        cpu=rng.choice(("2", "4", "3900m", "16")),
        memory=rng.choice(("4Gi", "16Gi", "64Gi")),
        pods=rng.choice(("8", "110")),
        labels=labels,
        taints=taints,
        unschedulable=is_chosen(rng, 0.07),
        ready=not is_chosen(rng, 0.05),
    )


def make_random_spec(rng: random.Random, labels: dict[str, str]) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    if is_chosen(rng, 0.15):
        spec["nodeSelector"] = {"size": rng.choice(("small", "large"))}
    if is_chosen(rng, 0.2):
        spec["tolerations"] = [{"key": "gpu", "operator": "Exists"}]
    if is_chosen(rng, 0.15):
        spec["topologySpreadConstraints"] = [
            {
                "topologyKey": rng.choice((ZONE, "kubernetes.io/hostname")),
                "maxSkew": rng.randint(1, 2),
                "whenUnsatisfiable": rng.choice(("DoNotSchedule", "ScheduleAnyway")),
                "labelSelector": {"matchLabels": labels},
            }
        ]
    if is_chosen(rng, 0.15):
        kind, is_required = rng.choice(("podAffinity", "podAntiAffinity")), is_chosen(rng, 0.6)
        preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "podAffinityTerm": term}]}
        spec["affinity"] = {
            kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]} if is_required else preferred
        }
    if is_chosen(rng, 0.15):
        spec["volumes"] = [{"name": "d", "persistentVolumeClaim": {"claimName": f"claim-{rng.randint(0, 3)}"}}]
    elif is_chosen(rng, 0.1):
        spec["volumes"] = [{"name": "e", "emptyDir": {}}]
    if is_chosen(rng, 0.03):
        spec["priorityClassName"] = "system-cluster-critical"
    return spec


def make_random_pods(rng: random.Random, nodes: list[Host]) -> list[PodInfo]:
    """Pods of 4 to 12 workloads, mostly on half of the nodes, so that some are overutilized."""
    pods = []
    used_nodes = nodes if is_chosen(rng, 0.2) else nodes[: max(1, len(nodes) // 2)]
    for number in range(rng.randint(4, 12)):
        namespace, kind = rng.choice(("shop", *NAMESPACES)), rng.choice((*OWNER_KINDS, *("ReplicaSet",) * 6))
        labels = {"app": f"w{number}"}
        spec = make_random_spec(rng, labels)
        annotations = rng.choice(
            (
                *({},) * 8,
                {"descheduler.alpha.kubernetes.io/evict": rng.choice(("true", "false"))},
                {"descheduler.alpha.kubernetes.io/prefer-no-eviction": ""},
                {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
                {"descheduler.koordinator.sh/eviction-cost": rng.choice(("5", "-3", "2147483647", "x"))},
            )
        )
        priority = rng.choice((*(0,) * 8, 1000, 2_000_000_000))
        cpu = rng.choice(("", "10m", "500m", "1", "2"))
        for i in range(rng.choice((1, 2, 3, 4, 6, 12))):
            node_name = rng.choice(used_nodes).name if not is_chosen(rng, 0.06) else ""
            phase = "Pending" if not node_name else rng.choice(("Running",) * 9 + ("Succeeded", "Failed", "Pending"))
            pods.append(
                make_pod_info(
                    f"w{number}-{i}",
                    node_name,
                    namespace=namespace,
                    owner=f"{kind}/w{number}" if kind else "",
                    labels=labels,
                    annotations=annotations,
                    cpu=cpu,
                    memory=rng.choice(("", "128Mi", "1Gi")),
                    priority=priority,
                    qos=rng.choice(("BestEffort", "Burstable", "Guaranteed")),
                    created_s=NOW_S - rng.choice((-3, 5, 600, 90_000)),
                    phase=phase,
                    ready=not is_chosen(rng, 0.08),
                    deleting=is_chosen(rng, 0.05),
                    spec=spec,
                )
            )
    return pods


def make_random_usage(rng: random.Random, nodes: list[Host], pods: list[PodInfo]) -> UsageView:
    by_pod: dict[str, dict[str, float]] = {}
    by_node: dict[str, dict[str, float]] = defaultdict(lambda: {"cpu": 50.0, "memory": 0.1 * GI})
    for pod in pods:
        if pod.node and pod.is_running and not is_chosen(rng, 0.05):
            amounts = {"cpu": rng.choice((0.0, 1.0, 300.0, 600.0, 1200.0)), "memory": rng.uniform(0.01, 0.5) * GI}
            if is_chosen(rng, 0.03):
                del amounts["cpu"]
            by_pod[pod.key] = amounts
            for resource, amount in amounts.items():
                by_node[pod.node][resource] += amount
    return UsageView({node.name: dict(by_node[node.name]) for node in nodes if not is_chosen(rng, 0.05)}, by_pod)


def make_random_config(rng: random.Random) -> dict[str, Any]:
    low, high = rng.randint(20, 45), rng.randint(46, 80)
    policy: dict[str, Any] = {
        "lowThresholds": {"cpu": low, "memory": 60},
        "highThresholds": {"cpu": high, "memory": 80},
        "nodeFit": not is_chosen(rng, 0.15),
        "numberOfNodes": rng.choice((0, 0, 0, 0, 0, 2)),
    }
    if is_chosen(rng, 0.2):
        policy["useDeviationThresholds"] = True
        policy["lowThresholds"], policy["highThresholds"] = {"cpu": 10}, {"cpu": 10}
    if is_chosen(rng, 0.25):
        list_name = rng.choice(("include", "exclude"))
        policy["evictableNamespaces"] = {list_name: rng.sample(NAMESPACES, 2)}
    if is_chosen(rng, 0.2):
        policy["podSelectors"] = [{"selector": {"matchLabels": {"app": f"w{i}"}}} for i in range(3)]
    limits = {
        "perNode": 0 if is_chosen(rng, 0.05) else rng.randint(1, 4),
        "perNamespace": 0 if is_chosen(rng, 0.05) else rng.choice((1, 2, 6)),
        "perRound": 0 if is_chosen(rng, 0.05) else rng.choice((1, 2, 5, 10)),
        "perWorkload": rng.choice((1, 2, "10%", "50%")),
        "unavailablePerWorkload": rng.choice((1, 2, "10%", "50%")),
    }
    protection = {
        "evictLocalStorage": is_chosen(rng, 0.3),
        "evictVolumeClaims": is_chosen(rng, 0.4),
        "minReplicas": rng.choice((1, 2, 3)),
        "minPodAgeS": rng.choice((0, 60)),
        "ownerKinds": rng.choice((["ReplicaSet"], ["ReplicaSet", "StatefulSet"], ["ReplicaSet", "Job"])),
    }
    return {"policy": policy, "limits": limits, "protection": protection}


def make_random_history(rng: random.Random, pods: list[PodInfo]) -> History:
    workloads = sorted({pod.workload for pod in pods if pod.workload})
    moved = rng.sample(workloads, min(len(workloads), rng.choice((0, 0, 1, 2))))
    return History(
        backoffs={name: BackoffEntry(NOW_S + rng.choice((-10.0, 600.0)), 1, "returned") for name in moved},
        evictions=tuple(EvictionEntry(NOW_S - rng.choice((30, 1000, 5000)), name) for name in moved),
        pending_moves=tuple(
            make_pending_move(
                f"{name.partition('/')[0]}/gone", f"gone-{i}", name, rng.choice(("gone", "Node-0.example")), NOW_S - 20
            )
            for i, name in enumerate(moved)
            if is_chosen(rng, 0.5)
        ),
        breaker_entries=tuple(BreakerEntry(NOW_S - 60, "LowNodeLoad", is_chosen(rng, 0.8)) for _ in moved * 2),
    )


def make_random_volumes(rng: random.Random, nodes: list[Host]) -> Volumes:
    volumes = []
    for i in range(4):
        for namespace in NAMESPACES:
            on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [rng.choice(nodes).name]}
            body = {
                "metadata": {"name": f"{namespace}-{i}".lower()},
                "spec": {
                    "claimRef": {"namespace": namespace, "name": f"claim-{i}"},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
                },
            }
            volumes.append(msgspec.convert(body, PersistentVolume))
    return Volumes.from_objects(volumes, [])


def make_round_input(seed: int) -> RoundInput:
    """The random round of a seed."""
    rng = random.Random(seed)
    nodes = [make_random_host(rng, i) for i in range(rng.randint(2, 9))]
    pods = make_random_pods(rng, nodes)
    # At most one budget covers a pod: the API server refuses the eviction of a pod with several.
    workload_budgets = rng.randint(0, 6) if is_chosen(rng, 0.5) else 0
    budgets = [
        make_budget(f"b{i}", f"app=w{i}", rng.randint(0, 2), rng.choice(NAMESPACES)) for i in range(workload_budgets)
    ]
    budgets += [
        make_budget("all", "app", rng.randint(0, 2), name)
        for name in NAMESPACES
        if not workload_budgets and is_chosen(rng, 0.6)
    ]
    usage = make_random_usage(rng, nodes, pods)
    view = make_snapshot(
        nodes, pods, usage.by_node, usage.by_pod, budgets=budgets, volumes=make_random_volumes(rng, nodes)
    )
    return RoundInput(view, make_random_history(rng, pods), make_random_config(rng))
