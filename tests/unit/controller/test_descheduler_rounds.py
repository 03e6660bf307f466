"""Random rounds keep limits, disruption budgets and protection; the checks share no code with the rules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import msgspec

from kubekit.selectors import selects
from tests.support.descheduler_builders import (
    NOW_S,
    DescheduleDecision,
    DeschedulerConfig,
    History,
    Move,
    PodInfo,
    decide_once,
)
from tests.unit.controller.random_rounds import RoundInput, make_round_input

ROUNDS = 300
FINISHED_PHASES = {"Succeeded", "Failed"}
RECENT_EVICTION_S = 300


def decide_round(round_input: RoundInput, **settings: Any) -> DescheduleDecision:
    config = msgspec.convert({**round_input.config, **settings}, DeschedulerConfig).resolve()
    return decide_once(round_input.view, config, history=round_input.history, assume_lasting=True)


def max_moves_by(moves: tuple[Move, ...], read_key: Callable[[Move], str]) -> int:
    """The largest number of moves with one key."""
    return max(Counter(map(read_key, moves)).values(), default=0)


def resolve_limit(limit: int | str, size: int) -> int:
    """The number of pods of a limit of a workload of this size, which may be a percentage."""
    return limit if isinstance(limit, int) else max(1, size * int(limit.rstrip("%")) // 100)


def assert_limits(round_input: RoundInput, decision: DescheduleDecision) -> None:
    limits, moves = round_input.config["limits"], decision.plan.moves
    assert len(moves) <= limits["perRound"]
    assert max_moves_by(moves, lambda move: move.node) <= limits["perNode"]
    assert max_moves_by(moves, lambda move: move.pod.partition("/")[0]) <= limits["perNamespace"]
    assert max_moves_by(moves, lambda move: move.uid) <= 1
    for workload, move_count in Counter(move.workload for move in moves).items():
        assert_limits_of_workload(round_input, decision.history, workload, move_count)


def assert_limits_of_workload(round_input: RoundInput, history: History, workload: str, move_count: int) -> None:
    limits, backoff = round_input.config["limits"], round_input.history.backoffs.get(workload)
    assert backoff is None or backoff.until_s <= NOW_S
    pods = [pod for pod in round_input.view.pods.by_key.values() if pod.workload == workload]
    if not pods:
        return  # The moved pod is bare.
    awaited = sum(
        pending.move.workload == workload and not pending.replacement_node for pending in history.pending_moves
    )
    active_pods = [pod for pod in pods if not pod.is_terminating and pod.phase not in FINISHED_PHASES]
    size = len(active_pods) + awaited
    assert size >= round_input.config["protection"]["minReplicas"]
    recent = sum(
        entry.workload == workload and NOW_S - entry.planned_at_s < RECENT_EVICTION_S
        for entry in round_input.history.evictions
    )
    assert recent + move_count <= resolve_limit(limits["perWorkload"], size)
    unavailable = max(sum(not pod.is_ready for pod in active_pods), awaited)
    max_unavailable = resolve_limit(limits["unavailablePerWorkload"], size)
    assert unavailable + move_count <= max(max_unavailable, unavailable)


def assert_pod_may_move(round_input: RoundInput, pod: PodInfo) -> None:
    """Only pods that protection and policy allow are moved."""
    protection, policy = round_input.config["protection"], round_input.config["policy"]
    assert pod.phase == "Running"
    assert not pod.is_terminating
    assert not pod.eviction_forbidden_by
    assert not pod.is_bare or pod.is_eviction_allowed
    assert not pod.has_local_storage or pod.is_eviction_allowed or protection["evictLocalStorage"]
    assert not pod.claim_names or protection["evictVolumeClaims"]
    owner_kind = pod.workload.split("/")[1] if pod.workload else ""
    assert not owner_kind or owner_kind in protection["ownerKinds"]
    assert NOW_S - pod.created_s >= protection["minPodAgeS"]
    namespaces = policy.get("evictableNamespaces", {})
    assert pod.namespace in namespaces.get("include", [pod.namespace])
    assert pod.namespace not in namespaces.get("exclude", [])
    if "podSelectors" in policy:
        assert pod.labels["app"] in {"w0", "w1", "w2"}


def assert_targets_fit(round_input: RoundInput, decision: DescheduleDecision) -> None:
    """kube-scheduler could place each pod on its target, after the moves before it, and it stays below the high thresholds."""
    requested: dict[str, Counter[str]] = defaultdict(Counter)
    for pod in round_input.view.pods.by_key.values():
        if pod.node and pod.phase not in FINISHED_PHASES:
            requested[pod.node].update(pod.requests)
    arriving: dict[str, Counter[str]] = defaultdict(Counter)
    for move in decision.plan.moves:
        if not move.target:
            assert not round_input.config["policy"]["nodeFit"]
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
            usage_percent = state.usage_percent.get(resource, 0) + 100 * amount / target.allocatable[resource]
            assert usage_percent <= state.high_thresholds.get(resource, float("inf")) + 1e-6


def assert_budgets(round_input: RoundInput, decision: DescheduleDecision) -> None:
    moved_pods = [round_input.view.pods.by_key[move.pod] for move in decision.plan.moves]
    for pdb in round_input.view.budgets:
        in_namespace = [pod for pod in moved_pods if pod.namespace == pdb.metadata.namespace]
        evicted = [pod for pod in in_namespace if selects(pdb.spec.selector, pod.labels)]
        assert len(evicted) <= pdb.status.disruptions_allowed


def check_round(seed: int) -> int:
    """Check one random round; returns its number of moves."""
    round_input = make_round_input(seed)

    decision = decide_round(round_input)

    for equal_input in (round_input, make_round_input(seed)):
        assert msgspec.json.encode(decide_round(equal_input)) == msgspec.json.encode(decision)
    assert decide_round(round_input, dryRun=True).plan.moves == decision.plan.moves, "a dry run plans the same moves"
    assert_limits(round_input, decision)
    for move in decision.plan.moves:
        assert_pod_may_move(round_input, round_input.view.pods.by_key[move.pod])
    assert_targets_fit(round_input, decision)
    assert_budgets(round_input, decision)
    assert len(decision.history.pending_moves) <= len(round_input.history.pending_moves)
    return len(decision.plan.moves)


def test_random_rounds_keep_limits_budgets_and_protection_and_are_reproducible() -> None:
    move_counts = [check_round(seed) for seed in range(ROUNDS)]
    # Without moves, the checks would pass too.
    assert sum(move_counts) > ROUNDS / 6
    assert sum(map(bool, move_counts)) > ROUNDS / 10
