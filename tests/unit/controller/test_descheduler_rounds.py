"""Random rounds keep limits, disruption budgets and protection, and always have the same result.

``python -m tests.unit.controller.test_descheduler_rounds 10000 [FIRST]`` runs more rounds than the test. The checks share no code with
the rules.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter, defaultdict
from typing import Any, NamedTuple

import msgspec

from kubekit.selectors import selects
from tests.support.descheduler_builders import (
    NOW_S,
    BackoffEntry,
    BreakerEntry,
    DescheduleDecision,
    DeschedulerConfig,
    DeschedulerSnapshot,
    EvictionEntry,
    History,
    Host,
    PersistentVolume,
    PodInfo,
    ReasonDurations,
    UsageView,
    Volumes,
    decide,
    make_budget,
    make_host,
    make_pending_move,
    make_pod_info,
    make_snapshot,
)

ROUNDS = 300
NAMESPACES = ("shop", "back.office", "kube-system")
ZONE = "topology.kubernetes.io/zone"
KINDS = ("ReplicaSet", "StatefulSet", "Job", "DaemonSet", "TaskRun", "")
GI = float(1 << 30)


class World(NamedTuple):
    """A random cluster, its history, and its configuration as in YAML."""

    view: DeschedulerSnapshot
    history: History
    config: dict[str, Any]


def is_chosen(rng: random.Random, share: float) -> bool:
    return rng.random() < share


def make_node(rng: random.Random, number: int) -> Host:
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


def make_spec(rng: random.Random, labels: dict[str, str]) -> dict[str, Any]:
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
        kind, required = rng.choice(("podAffinity", "podAntiAffinity")), is_chosen(rng, 0.6)
        name = "requiredDuringSchedulingIgnoredDuringExecution"
        wish = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "podAffinityTerm": term}]}
        spec["affinity"] = {kind: {name: [term]} if required else wish}
    if is_chosen(rng, 0.15):
        spec["volumes"] = [{"name": "d", "persistentVolumeClaim": {"claimName": f"claim-{rng.randint(0, 3)}"}}]
    elif is_chosen(rng, 0.1):
        spec["volumes"] = [{"name": "e", "emptyDir": {}}]
    if is_chosen(rng, 0.03):
        spec["priorityClassName"] = "system-cluster-critical"
    return spec


def make_pods(rng: random.Random, nodes: list[Host]) -> list[PodInfo]:
    pods = []
    busy = nodes if is_chosen(rng, 0.2) else nodes[: max(1, len(nodes) // 2)]
    for w in range(rng.randint(4, 12)):
        namespace, kind = rng.choice(("shop", *NAMESPACES)), rng.choice((*KINDS, *("ReplicaSet",) * 6))
        labels = {"app": f"w{w}"}
        spec = make_spec(rng, labels)
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
            bound = rng.choice(busy).name if not is_chosen(rng, 0.06) else ""
            phase = "Pending" if not bound else rng.choice(("Running",) * 9 + ("Succeeded", "Failed", "Pending"))
            pods.append(
                make_pod_info(
                    f"w{w}-{i}",
                    bound,
                    namespace=namespace,
                    owner=f"{kind}/w{w}" if kind else "",
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


def make_usage(rng: random.Random, nodes: list[Host], pods: list[PodInfo]) -> UsageView:
    used: dict[str, dict[str, float]] = {}
    by_node: dict[str, dict[str, float]] = defaultdict(lambda: {"cpu": 50.0, "memory": 0.1 * GI})
    for info in pods:
        if info.node and info.is_running and not is_chosen(rng, 0.05):
            amounts = {"cpu": rng.choice((0.0, 1.0, 300.0, 600.0, 1200.0)), "memory": rng.uniform(0.01, 0.5) * GI}
            if is_chosen(rng, 0.03):
                del amounts["cpu"]
            used[info.key] = amounts
            for resource, amount in amounts.items():
                by_node[info.node][resource] += amount
    return UsageView({n.name: dict(by_node[n.name]) for n in nodes if not is_chosen(rng, 0.05)}, used)


def make_config(rng: random.Random) -> dict[str, Any]:
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
        which = rng.choice(("include", "exclude"))
        policy["evictableNamespaces"] = {which: rng.sample(NAMESPACES, 2)}
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


def make_history(rng: random.Random, pods: list[PodInfo]) -> History:
    workloads = sorted({p.workload for p in pods if p.workload})
    some = rng.sample(workloads, min(len(workloads), rng.choice((0, 0, 1, 2))))
    return History(
        backoffs={name: BackoffEntry(NOW_S + rng.choice((-10.0, 600.0)), 1, "returned") for name in some},
        evictions=tuple(EvictionEntry(NOW_S - rng.choice((30, 1000, 5000)), name) for name in some),
        pending_moves=tuple(
            make_pending_move(
                f"{name.partition('/')[0]}/gone", f"gone-{i}", name, rng.choice(("gone", "Node-0.example")), NOW_S - 20
            )
            for i, name in enumerate(some)
            if is_chosen(rng, 0.5)
        ),
        breaker_entries=tuple(BreakerEntry(NOW_S - 60, "LowNodeLoad", is_chosen(rng, 0.8)) for _ in some * 2),
    )


def make_volumes(rng: random.Random, nodes: list[Host]) -> Volumes:
    volumes = []
    for i in range(4):
        for namespace in NAMESPACES:
            on = {"key": "kubernetes.io/hostname", "operator": "In", "values": [rng.choice(nodes).name]}
            body = {
                "metadata": {"name": f"{namespace}-{i}".lower()},
                "spec": {
                    "claimRef": {"namespace": namespace, "name": f"claim-{i}"},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on]}]}},
                },
            }
            volumes.append(msgspec.convert(body, PersistentVolume))
    return Volumes.from_objects(volumes, [])


def make_world(seed: int) -> World:
    """The random cluster of a seed."""
    rng = random.Random(seed)
    nodes = [make_node(rng, i) for i in range(rng.randint(2, 9))]
    pods = make_pods(rng, nodes)
    narrow = rng.randint(0, 6) if is_chosen(rng, 0.5) else 0
    budgets = [make_budget(f"b{i}", f"app=w{i}", rng.randint(0, 2), rng.choice(NAMESPACES)) for i in range(narrow)]
    budgets += [
        make_budget("all", "app", rng.randint(0, 2), name) for name in NAMESPACES if not narrow and is_chosen(rng, 0.6)
    ]
    usage = make_usage(rng, nodes, pods)
    view = make_snapshot(nodes, pods, usage.by_node, usage.by_pod, budgets=budgets, volumes=make_volumes(rng, nodes))
    return World(view, make_history(rng, pods), make_config(rng))


def check_round(seed: int) -> int:
    """Check one random round; returns its number of moves."""
    world = make_world(seed)
    decision = decide_round(world)
    for same in (world, make_world(seed)):
        assert msgspec.json.encode(decide_round(same)) == msgspec.json.encode(decision), (
            "equal arguments, equal results"
        )
    dry = decide_round(world, dryRun=True)
    assert dry.plan.moves == decision.plan.moves, "a dry run plans the same moves"
    check_limits(world, decision)
    for move in decision.plan.moves:
        check_pod(world, world.view.pods.by_key[move.pod])
    check_targets(world, decision)
    check_budgets(world, decision)
    assert len(decision.history.pending_moves) <= len(world.history.pending_moves)
    return len(decision.plan.moves)


def decide_round(world: World, **more: Any) -> DescheduleDecision:
    config = msgspec.convert({**world.config, **more}, DeschedulerConfig).resolve()
    return decide(world.view, world.history, ReasonDurations(), config, NOW_S, assume_lasting=True).decision


def check_limits(world: World, decision: DescheduleDecision) -> None:
    limits, moves = world.config["limits"], decision.plan.moves
    assert len(moves) <= limits["perRound"]
    assert max(Counter(m.node for m in moves).values(), default=0) <= limits["perNode"]
    assert max(Counter(m.pod.partition("/")[0] for m in moves).values(), default=0) <= limits["perNamespace"]
    assert len({m.uid for m in moves}) == len(moves)
    for workload, count in Counter(m.workload for m in moves).items():
        check_workload(world, decision.history, workload, count)


def check_workload(world: World, history: History, workload: str, count: int) -> None:
    backoff = world.history.backoffs.get(workload)
    assert backoff is None or backoff.until_s <= NOW_S
    pods = [p for p in world.view.pods.by_key.values() if p.workload == workload]
    if not pods:
        return  # a bare pod
    awaited = sum(f.move.workload == workload and not f.replacement_node for f in history.pending_moves)
    active = [p for p in pods if not p.is_terminating and p.phase not in {"Succeeded", "Failed"}]
    size = len(active) + awaited
    assert size >= world.config["protection"]["minReplicas"]
    recent = sum(s.workload == workload and NOW_S - s.planned_at_s < 300 for s in world.history.evictions)
    assert recent + count <= resolve_limit(world.config["limits"]["perWorkload"], size)
    missing = max(sum(not p.is_ready for p in active), awaited)
    assert missing + count <= max(resolve_limit(world.config["limits"]["unavailablePerWorkload"], size), missing)


def resolve_limit(limit: int | str, size: int) -> int:
    return limit if isinstance(limit, int) else max(1, size * int(limit.rstrip("%")) // 100)


def check_pod(world: World, info: PodInfo) -> None:
    """Only pods that protection and policy allow are moved."""
    protection, policy = world.config["protection"], world.config["policy"]
    assert info.phase == "Running"
    assert not info.is_terminating
    assert not info.eviction_forbidden_by
    assert not info.is_bare or info.is_eviction_allowed
    assert not info.has_local_storage or info.is_eviction_allowed or protection["evictLocalStorage"]
    assert not info.claim_names or protection["evictVolumeClaims"]
    kind = info.workload.split("/")[1] if info.workload else ""
    assert not kind or kind in protection["ownerKinds"]
    assert NOW_S - info.created_s >= protection["minPodAgeS"]
    namespaces = policy.get("evictableNamespaces", {})
    assert info.namespace in namespaces.get("include", [info.namespace])
    assert info.namespace not in namespaces.get("exclude", [])
    if "podSelectors" in policy:
        assert info.labels["app"] in {"w0", "w1", "w2"}


def check_targets(world: World, decision: DescheduleDecision) -> None:
    """kube-scheduler could place each pod on its target, after the moves before it."""
    requested: dict[str, Counter[str]] = defaultdict(Counter)
    for info in world.view.pods.by_key.values():
        if info.node and info.phase not in {"Succeeded", "Failed"}:
            requested[info.node].update(info.requests)
    arriving: dict[str, Counter[str]] = defaultdict(Counter)
    for move in decision.plan.moves:
        if not move.target:
            assert not world.config["policy"]["nodeFit"]
            continue
        info, target = world.view.pods.by_key[move.pod], world.view.nodes[move.target]
        assert move.target != move.node
        assert target.is_schedulable
        assert not target.is_being_removed
        assert not info.constraints.unmet_constraint(target.name, target.labels, target.taints)
        requested[move.target].update(info.requests)
        for resource, amount in info.requests.items():
            assert not amount or requested[move.target][resource] <= target.allocatable[resource]
        arriving[move.target].update(msgspec.to_builtins(move.usage))
        state = next(s for s in decision.plan.nodes if s.node == move.target)
        for resource, amount in arriving[move.target].items():
            more = 100 * amount / target.allocatable[resource]
            assert (
                resource not in state.high_thresholds
                or state.usage_percent[resource] + more <= state.high_thresholds[resource] + 1e-6
            )


def check_budgets(world: World, decision: DescheduleDecision) -> None:
    for pdb in world.view.budgets:
        pods = [world.view.pods.by_key[move.pod] for move in decision.plan.moves]
        evicted = [p for p in pods if p.namespace == pdb.metadata.namespace and selects(pdb.spec.selector, p.labels)]
        assert len(evicted) <= pdb.status.disruptions_allowed


def test_random_rounds_keep_limits_budgets_and_protection_and_are_reproducible() -> None:
    moves = [check_round(seed) for seed in range(ROUNDS)]
    # Without moves, the checks would pass too.
    assert sum(moves) > ROUNDS / 6
    assert sum(map(bool, moves)) > ROUNDS / 10


if __name__ == "__main__":
    started_at, rounds, first = time.monotonic(), int(sys.argv[1]), int((*sys.argv, "0")[2])
    moves = [check_round(seed) for seed in range(first, first + rounds)]
    print(
        f"{rounds} rounds, {sum(moves)} moves in {sum(map(bool, moves))} of them, {time.monotonic() - started_at:.0f} s: "
        "all checks passed"
    )
