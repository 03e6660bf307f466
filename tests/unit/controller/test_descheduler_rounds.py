"""Random rounds keep limits, disruption budgets and protection; the checks share no code with the rules."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any, NamedTuple

import msgspec

from kubekit.selectors import selects
from tests.support.descheduler_builders import (
    NOW_S,
    BackoffEntry,
    DescheduleDecision,
    DeschedulerSnapshot,
    EvictionEntry,
    History,
    Host,
    PodInfo,
    decide_once,
    make_budget,
    make_config,
    make_host,
    make_pending_move,
    make_pod_info,
    make_snapshot,
    to_usage,
)

ROUNDS = 300
NAMESPACES = ("shop", "back.office", "kube-system")
OWNER_KINDS = (*("ReplicaSet",) * 6, "StatefulSet", "Job", "DaemonSet", "")
FINISHED_PHASES = {"Succeeded", "Failed"}
RECENT_EVICTION_S = 300
TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
REMOVAL_TAINT = {"key": "DeletionCandidateOfClusterAutoscaler", "effect": "PreferNoSchedule"}
ANNOTATIONS: tuple[dict[str, str], ...] = (
    *({},) * 8,
    {"descheduler.alpha.kubernetes.io/evict": "true"},
    {"descheduler.alpha.kubernetes.io/evict": "false"},
    {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
)
SPECS: tuple[dict[str, Any], ...] = (
    *({},) * 8,
    {"nodeSelector": {"size": "large"}},
    {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
    {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]},
    {"volumes": [{"name": "e", "emptyDir": {}}]},
)


class RoundInput(NamedTuple):
    """A random cluster, its history, and sections of its configuration as in YAML."""

    view: DeschedulerSnapshot
    history: History
    sections: dict[str, Any]


def is_chosen(rng: random.Random, share: float) -> bool:
    """True in this share of calls."""
    return rng.random() < share


def make_random_host(rng: random.Random, number: int) -> Host:
    return make_host(
        f"node-{number}",
        cpu=rng.choice(("2", "4", "3900m", "16")),
        memory="16Gi",
        pods=rng.choice(("8", "110")),
        labels={"size": rng.choice(("small", "large"))},
        taints=rng.choice((*([],) * 8, [TAINT], [REMOVAL_TAINT])),
        unschedulable=is_chosen(rng, 0.07),
        ready=not is_chosen(rng, 0.05),
    )


def make_random_pods(rng: random.Random, nodes: list[Host]) -> list[PodInfo]:
    """Pods of 4 to 12 workloads, mostly on half of the nodes, so that some are overutilized."""
    pods = []
    used_nodes = nodes if is_chosen(rng, 0.2) else nodes[: max(1, len(nodes) // 2)]
    for number in range(rng.randint(4, 12)):
        kind = rng.choice(OWNER_KINDS)
        fields: dict[str, Any] = {
            "namespace": rng.choice(("shop", *NAMESPACES)),
            "owner": f"{kind}/w{number}" if kind else "",
            "labels": {"app": f"w{number}"},
            "annotations": rng.choice(ANNOTATIONS),
            "cpu": rng.choice(("", "10m", "500m", "1", "2")),
            "spec": rng.choice(SPECS),
        }
        pods += [
            make_pod_info(
                f"w{number}-{i}",
                rng.choice(used_nodes).name,
                created_s=NOW_S - rng.choice((5, 600, 90_000)),
                phase=rng.choice((*("Running",) * 9, "Succeeded", "Failed", "Pending")),
                ready=not is_chosen(rng, 0.08),
                deleting=is_chosen(rng, 0.05),
                **fields,
            )
            for i in range(rng.choice((1, 2, 3, 4, 6, 12)))
        ]
    return pods


def make_random_history(rng: random.Random, pods: list[PodInfo]) -> History:
    workloads = sorted({pod.workload for pod in pods if pod.workload})
    moved = rng.sample(workloads, min(len(workloads), rng.choice((0, 0, 1, 2))))
    return History(
        backoffs={name: BackoffEntry(NOW_S + rng.choice((-10.0, 600.0)), 1, "returned") for name in moved},
        evictions=tuple(EvictionEntry(NOW_S - rng.choice((30, 1000, 5000)), name) for name in moved),
        pending_moves=tuple(
            make_pending_move(f"{name.partition('/')[0]}/gone", f"gone-{i}", name, "gone", NOW_S - 20)
            for i, name in enumerate(moved)
            if is_chosen(rng, 0.5)
        ),
    )


def make_random_sections(rng: random.Random) -> dict[str, Any]:
    policy: dict[str, Any] = {
        "lowThresholds": {"cpu": rng.randint(20, 45), "memory": 60},
        "highThresholds": {"cpu": rng.randint(46, 80), "memory": 80},
        "nodeFit": not is_chosen(rng, 0.15),
    }
    if is_chosen(rng, 0.25):
        policy["evictableNamespaces"] = {rng.choice(("include", "exclude")): rng.sample(NAMESPACES, 2)}
    if is_chosen(rng, 0.2):
        policy["podSelectors"] = [{"selector": {"matchLabels": {"app": f"w{i}"}}} for i in range(3)]
    limits = {
        "perNode": rng.randint(1, 4),
        "perNamespace": rng.choice((1, 2, 6)),
        "perRound": rng.choice((1, 2, 5, 10)),
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


def make_round_input(seed: int) -> RoundInput:
    """The random round of a seed."""
    rng = random.Random(seed)
    nodes = [make_random_host(rng, i) for i in range(rng.randint(2, 9))]
    pods = make_random_pods(rng, nodes)
    usage_by_pod = {pod.key: to_usage(rng.choice((0.0, 0.3, 0.6, 1.2)), rng.uniform(0.01, 0.5)) for pod in pods}
    usage_by_node = {node.name: Counter(to_usage(0.05, 0.1)) for node in nodes}
    for pod in pods:
        if pod.is_running:
            usage_by_node[pod.node].update(usage_by_pod[pod.key])
    # At most one budget covers a pod: the API server refuses the eviction of a pod with several.
    budgets = [make_budget("all", "app", rng.randint(0, 2), name) for name in NAMESPACES if is_chosen(rng, 0.4)]
    view = make_snapshot(nodes, pods, usage_by_node, usage_by_pod, budgets=budgets)
    return RoundInput(view, make_random_history(rng, pods), make_random_sections(rng))


def decide_round(round_input: RoundInput, **settings: Any) -> DescheduleDecision:
    config = make_config(**round_input.sections, **settings)
    return decide_once(round_input.view, config, history=round_input.history, ignore_durations=True)


def resolve_limit(limit: int | str, size: int) -> int:
    """The number of pods of a limit of a workload of this size, which may be a percentage."""
    return limit if isinstance(limit, int) else max(1, size * int(limit.rstrip("%")) // 100)


def assert_limits_of_workload(round_input: RoundInput, history: History, workload: str, move_count: int) -> None:
    """Check against the pods and the history, in which this round has found replacements of earlier moves."""
    limits, backoff = round_input.sections["limits"], round_input.history.backoffs.get(workload)
    assert backoff is None or backoff.until_s <= NOW_S
    pods = [pod for pod in round_input.view.pods.by_key.values() if pod.workload == workload]
    active_pods = [pod for pod in pods if not pod.is_terminating and pod.phase not in FINISHED_PHASES]
    pending_moves = [pending for pending in history.pending_moves if pending.move.workload == workload]
    awaited = sum(not pending.replacement_node for pending in pending_moves)
    size = len(active_pods) + awaited
    assert size >= round_input.sections["protection"]["minReplicas"]
    recent = sum(
        entry.workload == workload and NOW_S - entry.planned_at_s < RECENT_EVICTION_S for entry in history.evictions
    )
    assert recent + move_count <= resolve_limit(limits["perWorkload"], size)
    unavailable = max(sum(not pod.is_ready for pod in active_pods), awaited)
    assert unavailable + move_count <= resolve_limit(limits["unavailablePerWorkload"], size)


def assert_limits(round_input: RoundInput, history: History, moved_pods: list[PodInfo]) -> None:
    limits = round_input.sections["limits"]
    assert len(moved_pods) <= limits["perRound"]
    assert all(count <= limits["perNode"] for count in Counter(pod.node for pod in moved_pods).values())
    assert all(count <= limits["perNamespace"] for count in Counter(pod.namespace for pod in moved_pods).values())
    assert len({pod.key for pod in moved_pods}) == len(moved_pods)
    for workload, move_count in Counter(pod.workload for pod in moved_pods if pod.workload).items():
        assert_limits_of_workload(round_input, history, workload, move_count)
    for budget in round_input.view.budgets:
        evicted = [pod for pod in moved_pods if pod.namespace == budget.metadata.namespace]
        assert sum(selects(budget.spec.selector, pod.labels) for pod in evicted) <= budget.status.disruptions_allowed


def assert_pod_may_move(round_input: RoundInput, pod: PodInfo) -> None:
    """Only pods that protection and policy allow are moved."""
    protection, policy = round_input.sections["protection"], round_input.sections["policy"]
    assert pod.phase == "Running"
    assert not pod.is_terminating
    assert not pod.eviction_forbidden_by
    assert not pod.is_bare or pod.is_eviction_allowed
    assert not pod.has_local_storage or pod.is_eviction_allowed or protection["evictLocalStorage"]
    assert not pod.claim_names or protection["evictVolumeClaims"]
    assert pod.is_bare or pod.workload.split("/")[1] in protection["ownerKinds"]
    assert NOW_S - pod.created_s >= protection["minPodAgeS"]
    namespaces = policy.get("evictableNamespaces", {})
    assert pod.namespace in namespaces.get("include", [pod.namespace])
    assert pod.namespace not in namespaces.get("exclude", [])
    assert "podSelectors" not in policy or pod.labels["app"] in {"w0", "w1", "w2"}


def assert_targets_fit(round_input: RoundInput, decision: DescheduleDecision) -> None:
    """kube-scheduler could place each pod on its target, after the moves before it, and it stays below the high thresholds."""
    requested: dict[str, Counter[str]] = defaultdict(Counter)
    for pod in round_input.view.pods.by_key.values():
        if pod.phase not in FINISHED_PHASES:
            requested[pod.node].update(pod.requests)
    arriving: dict[str, Counter[str]] = defaultdict(Counter)
    for move in decision.plan.moves:
        if not move.target:
            assert not round_input.sections["policy"]["nodeFit"]
            continue
        pod, target = round_input.view.pods.by_key[move.pod], round_input.view.nodes[move.target]
        assert move.target != move.node
        assert target.is_schedulable
        assert not target.is_being_removed
        assert not pod.constraints.unmet_constraint(target.name, target.labels, target.taints)
        requested[move.target].update(pod.requests)
        for resource, amount in pod.requests.items():
            assert not amount or requested[move.target][resource] <= target.allocatable[resource]
        arriving[move.target].update(msgspec.to_builtins(move.usage))
        state = next(state for state in decision.plan.nodes if state.node == move.target)
        for resource, amount in arriving[move.target].items():
            usage_percent = state.usage_percent[resource] + 100 * amount / target.allocatable[resource]
            assert usage_percent <= state.high_thresholds[resource] + 1e-6


def check_round(seed: int) -> int:
    """Check one random round; returns its number of moves."""
    round_input = make_round_input(seed)

    decision = decide_round(round_input)

    equal_decision = decide_round(make_round_input(seed))
    assert msgspec.json.encode(equal_decision) == msgspec.json.encode(decision)
    assert decide_round(round_input, dryRun=True).plan.moves == decision.plan.moves, "a dry run plans the same moves"
    moved_pods = [round_input.view.pods.by_key[move.pod] for move in decision.plan.moves]
    assert_limits(round_input, decision.history, moved_pods)
    for pod in moved_pods:
        assert_pod_may_move(round_input, pod)
    assert_targets_fit(round_input, decision)
    return len(decision.plan.moves)


def test_random_rounds_keep_limits_budgets_and_protection_and_are_reproducible() -> None:
    move_counts = [check_round(seed) for seed in range(ROUNDS)]
    # Without moves, the checks would pass too.
    assert sum(move_counts) > ROUNDS / 6
    assert sum(map(bool, move_counts)) > ROUNDS / 10
