"""The conditions that a pod must meet before the descheduler moves it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.descheduler.conditions import CONDITIONS
from controller.descheduler.disruption_budgets import PodDisruptionBudgetSpec
from kubekit.selectors import LabelSelector, MatchExpression
from tests.support.descheduler_builders import (
    NOW_S,
    BackoffEntry,
    BreakerEntry,
    EvictionEntry,
    History,
    PodDisruptionBudget,
    decide_on_hot_node,
    decide_once,
    find_node_state,
    list_moved_pods,
    make_budget,
    make_config,
    make_loaded_snapshot,
    make_pending_move,
    make_pod_info,
    make_single_pod,
)

EVICT = "descheduler.alpha.kubernetes.io/evict"
WORKLOAD = "default/ReplicaSet/web-5d4f"
"""The workload of `make_pod_info`."""
CONDITIONS_OF_NODES = {"usage-lag", "breaker", "round-limit", "node-limit", "free-capacity"}
"""They stop all moves from a node, so the plan has their reason in the node's state, and skips no pod."""
TESTED_ELSEWHERE = {"reason-duration", "group-readiness", "planner"}


def make_case(condition: str, reason: str = "", pod: dict[str, Any] | None = None, **arguments: Any) -> Any:
    """A pod with fields of `make_pod_info` that fails a condition, and other arguments of `decide_on_hot_node`."""
    return pytest.param(condition, reason, pod or {}, arguments, id=condition)


def make_volume_fields(**source: Any) -> dict[str, Any]:
    """Fields of a pod with a volume of this source."""
    return {"spec": {"volumes": [{"name": "v", **source}]}}


def make_breaker_entries(
    count: int, helped: int, strategy: Any = "LowNodeLoad", age_s: float = 60
) -> tuple[BreakerEntry, ...]:
    """The entries of ``count`` moves, of which some helped."""
    return tuple(BreakerEntry(NOW_S - age_s, strategy, has_helped=i < helped) for i in range(count))


def set_unknown_operator(budget: PodDisruptionBudget) -> PodDisruptionBudget:
    """The budget with a selector that uses an operator of a future Kubernetes."""
    selector = LabelSelector(match_expressions=[MatchExpression("a", "Matches", ["b*"])])
    return msgspec.structs.replace(budget, spec=PodDisruptionBudgetSpec(selector))


CASES = [
    make_case(
        "usage-lag", "1 recent moves show", history=History(pending_moves=(make_pending_move(planned_at_s=NOW_S - 60),))
    ),
    *(
        make_case("eviction-protection", pod=fields)
        for fields in (
            {"annotations": {"kubernetes.io/config.mirror": "x"}},
            {"owner": "Node/hot"},
            {"owner": "DaemonSet/agent"},
            {"owner": "DaemonSet/agent", "annotations": {EVICT: "true"}},
            {"priority": 2_000_000_000},
            {"priority_class": "system-cluster-critical"},
            {"annotations": {EVICT: "false"}},
            {"annotations": {"descheduler.alpha.kubernetes.io/prefer-no-eviction": ""}},
            {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}},
            {"annotations": {"descheduler.koordinator.sh/eviction-cost": "2147483647"}},
        )
    ),
    make_case("bare-pod", pod={"owner": ""}),
    make_case("owner-kind", pod={"owner": "Job/migrate"}),
    make_case("owner-kind", pod={"owner": "TaskRun/build"}),
    make_case("volume-claim", pod=make_volume_fields(persistentVolumeClaim={"claimName": "c"})),
    make_case("local-storage", pod=make_volume_fields(emptyDir={})),
    make_case("local-storage", pod=make_volume_fields(hostPath={"path": "/x"})),
    make_case("namespace", policy={"evictableNamespaces": {"exclude": ["default"]}}),
    *(
        make_case("namespace", f"the admission policy forbids evictions in {namespace}", {"namespace": namespace})
        for namespace in ("kube-system", "kube-public", "kube-node-lease", "netaware-system")
    ),
    make_case("pod-selector", policy={"podSelectors": [{"selector": {"matchLabels": {"app": "other"}}}]}),
    make_case(
        "pod-age",
        "it is 30 s old, less than protection.minPodAgeS",
        {"created_s": NOW_S - 30},
        protection={"minPodAgeS": 60},
    ),
    make_case("min-replicas", f"{WORKLOAD} has 1 of at least 2 pods", protection={"minReplicas": 2}),
    make_case("pod-usage", "it uses no cpu", cpu_of_pods=0),
    make_case("pod-usage", "its use of cpu is not known", cpu_of_pods=None),
    make_case(
        "breaker",
        "0 of 4 moves in 24 h helped",
        history=History(breaker_entries=(BreakerEntry(NOW_S, "LowNodeLoad"),) * 4),
    ),
    make_case("round-limit", "limit of 0 evictions per round", limits={"perRound": 0}),
    make_case("node-limit", "limit of 0 evictions per node", limits={"perNode": 0}),
    make_case(
        "free-capacity", "1 node is underutilized, and numberOfNodes asks for more than 1", policy={"numberOfNodes": 1}
    ),
    make_case("namespace-limit", "limit of 0 evictions per namespace", limits={"perNamespace": 0}),
    make_case(
        "group-limit",
        "another pod of AppGroup default/g is being moved",
        {"labels": {"appgroup.diktyo.x-k8s.io": "g"}},
        history=History(pending_moves=(make_pending_move(node="far", group="default/g"),)),
    ),
    make_case(
        "replica-backoff", pod={"uid": "q"}, history=History(backoffs={"q": BackoffEntry(NOW_S + 60, 1, "planner")})
    ),
    make_case(
        "replica-backoff",
        "the outcome of that move is not known yet",
        {"uid": "q"},
        history=History(
            pending_moves=(make_pending_move(node="far", replacement_uid="q", replacement_bound_at_s=NOW_S),)
        ),
    ),
    make_case(
        "workload-backoff",
        f"{WORKLOAD} had 2 failed moves in a row (returned); not moved for another 120 min",
        history=History(backoffs={WORKLOAD: BackoffEntry(NOW_S + 7200, 2, "returned")}),
    ),
    make_case(
        "workload-limit", limits={"perWorkload": 1}, history=History(evictions=(EvictionEntry(NOW_S - 299, WORKLOAD),))
    ),
    make_case(
        "unavailable-limit",
        f"1 of 1 pods of {WORKLOAD} are not available",
        {"ready": False},
        limits={"unavailablePerWorkload": 1},
    ),
    make_case(
        "unavailable-limit",
        f"1 of 2 pods of {WORKLOAD} are not available",
        limits={"unavailablePerWorkload": 1},
        history=History(pending_moves=(make_pending_move(node="far", workload=WORKLOAD),)),
    ),
    make_case(
        "disruption-budget",
        "default/x allows no disruption",
        {"labels": {"a": "b"}},
        budgets=[make_budget("x", "a=b", 0)],
    ),
    make_case(
        "disruption-budget",
        "several PodDisruptionBudgets cover it: default/all, default/x",
        {"labels": {"a": "b"}},
        budgets=[make_budget("x", "a=b", 9), make_budget("all", "", 9)],
    ),
    make_case(
        "disruption-budget",
        "PodDisruptionBudget default/x may cover it: 'Matches' is not an operator",
        budgets=[set_unknown_operator(make_budget("x", "a", 9)), make_budget("other", "c=d", 9)],
    ),
    make_case("node-fit", "0/1 nodes are available: 1 insufficient cpu", {"cpu": "65"}),
]


@pytest.mark.parametrize(("condition", "reason", "pod_fields", "arguments"), CASES)
def test_a_pod_that_fails_a_condition_is_not_moved_and_the_plan_says_why(
    condition: str, reason: str, pod_fields: dict[str, Any], arguments: dict[str, Any]
) -> None:
    pod = make_pod_info("p", "hot", **pod_fields)

    decision = decide_on_hot_node(pod, **{"cpu_of_pods": 2.5, **arguments})

    assert not decision.plan.moves
    if condition in CONDITIONS_OF_NODES:
        assert not decision.plan.skips
        assert reason in find_node_state(decision).reason
    else:
        (skip,) = decision.plan.skips
        assert skip.condition == condition
        assert reason in skip.reason


def test_every_condition_has_a_case_in_the_order_in_which_they_are_checked() -> None:
    tested_here = [condition.name for condition in CONDITIONS if condition.name not in TESTED_ELSEWHERE]
    assert list(dict.fromkeys(case.id for case in CASES)) == tested_here


@pytest.mark.parametrize(
    ("fields", "sections"),
    [
        ({}, {}),
        ({"owner": "", "annotations": {EVICT: "true"}}, {}),
        (make_volume_fields(emptyDir={}), {"protection": {"evictLocalStorage": True}}),
        ({**make_volume_fields(emptyDir={}), "annotations": {EVICT: "true"}}, {}),
        (make_volume_fields(persistentVolumeClaim={"claimName": "c"}), {"protection": {"evictVolumeClaims": True}}),
        ({"owner": "Job/migrate"}, {"protection": {"ownerKinds": ["Job"]}}),
        ({"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}}, {}),
    ],
)
def test_pods_that_settings_or_annotations_allow_are_moved(fields: dict[str, Any], sections: dict[str, Any]) -> None:
    assert list_moved_pods(decide_on_hot_node(make_single_pod("p", **fields), **sections)) == ["p"]


@pytest.mark.parametrize(
    ("limit", "pods_elsewhere", "max_moves"),
    # The workload has 8 pods on the hot node: 10 % of 8 is less than 1 pod; of 28, 2 pods.
    [("10%", 0, 1), ("10%", 20, 2), ("50%", 0, 4), (3, 0, 3), (0, 0, 0), ("0%", 0, 0)],
)
def test_a_percentage_of_a_workload_is_rounded_down_but_at_least_one_pod(
    limit: int | str, pods_elsewhere: int, max_moves: int
) -> None:
    pods = [make_pod_info(f"p{i}", "hot") for i in range(8)]
    pods += [make_pod_info(f"far-{i}", "elsewhere") for i in range(pods_elsewhere)]
    limits = {"perWorkload": limit, "unavailablePerWorkload": 100}
    assert len(list_moved_pods(decide_on_hot_node(*pods, cpu_of_pods=0.3, limits=limits))) == max_moves


@pytest.mark.parametrize("limit", ["perNode", "perNamespace", "perRound"])
@pytest.mark.parametrize(
    ("replacement", "moves"),
    [
        pytest.param({}, 1, id="two awaited replacements: 3 - 2 moves"),
        pytest.param({"replacement_node": "idle", "replacement_bound_at_s": NOW_S - 250}, 3, id="bound"),
    ],
)
def test_limits_count_earlier_moves_whose_replacements_are_not_bound_yet(
    replacement: dict[str, Any], moves: int, limit: str
) -> None:
    view = make_loaded_snapshot({"hot": 39, "idle": 1}, {f"p{i}": 2 for i in range(4)}, size=40)
    earlier_moves = tuple(
        make_pending_move(
            f"default/old{i}", f"old{i}", f"default/Deployment/o{i}", planned_at_s=NOW_S - 300, **replacement
        )
        for i in range(2)
    )
    decision = decide_once(view, make_config(limits={limit: 3}), history=History(pending_moves=earlier_moves))
    assert len(list_moved_pods(decision)) == moves


@pytest.mark.parametrize(
    ("phase_of_moved_pod", "is_recent_move"), [(None, False), ("Running", True), ("Failed", False)]
)
def test_a_moved_pod_that_still_terminates_is_a_recent_move(
    phase_of_moved_pod: str | None, *, is_recent_move: bool
) -> None:
    """Its grace period may be longer than `limits.usageLagS`, and until its containers end the node is as loaded as before."""
    bound: dict[str, Any] = {"replacement_node": "idle", "replacement_bound_at_s": NOW_S - 250}
    move = make_pending_move("default/old", "old", planned_at_s=NOW_S - 250, **bound)
    pods = [make_single_pod("p")]
    if phase_of_moved_pod is not None:
        pods.append(make_single_pod("old", uid="old", deleting=True, phase=phase_of_moved_pod))

    decision = decide_on_hot_node(*pods, history=History(pending_moves=(move,)))

    assert list_moved_pods(decision) == ([] if is_recent_move else ["p"])


@pytest.mark.parametrize(
    ("entries", "min_success_percent", "is_stopped"),
    [
        pytest.param(make_breaker_entries(3, 0), 50, False, id="fewer than four moves"),
        (make_breaker_entries(4, 1), 50, True),
        (make_breaker_entries(4, 2), 50, False),
        (make_breaker_entries(10, 4), 50, True),
        (make_breaker_entries(10, 4), 40, False),
        (make_breaker_entries(10, 0), 0, False),
        pytest.param(make_breaker_entries(10, 0, age_s=86_401), 50, False, id="more than a day ago"),
        pytest.param(make_breaker_entries(10, 0, "NetworkMisplacement"), 50, False, id="of another strategy"),
    ],
)
def test_the_breaker_stops_a_strategy_if_too_few_moves_helped(
    entries: tuple[BreakerEntry, ...], min_success_percent: int, *, is_stopped: bool
) -> None:
    view = make_loaded_snapshot({"hot": 3, "idle": 0.1}, {"p": 1})
    config, history = make_config(limits={"minSuccessPercent": min_success_percent}), History(breaker_entries=entries)

    decision = decide_once(view, config, history=history)
    dry_run = decide_once(view, config, history=history, ignore_durations=True)

    assert list_moved_pods(decision) == ([] if is_stopped else ["p"])
    assert find_node_state(decision).is_stuck is is_stopped
    assert ("moves in 24 h helped" in find_node_state(decision).reason) is is_stopped
    assert dry_run.plan == decision.plan
