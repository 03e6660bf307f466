"""The conditions of a move, the order in which pods move, and rules of node fit that `test_planners` does not test."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import pytest

from controller.descheduler.conditions import CONDITIONS
from controller.descheduler.disruption_budgets import PodDisruptionBudgetSpec
from kubekit.selectors import LabelSelector, MatchExpression
from tests.support.descheduler_builders import (
    NOW_S,
    BackoffEntry,
    BreakerEntry,
    DescheduleDecision,
    EvictionEntry,
    History,
    Host,
    PodDisruptionBudget,
    PodInfo,
    decide_once,
    list_moved_pods,
    make_budget,
    make_config,
    make_host,
    make_pending_move,
    make_pod_info,
    make_single_pod,
    make_snapshot,
    to_usage,
)

EVICT = "descheduler.alpha.kubernetes.io/evict"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
BY_HOST = {"topologyKey": "kubernetes.io/hostname"}
BIG = make_host("idle", cpu="64", memory="256Gi")


def decide_for(
    *pods: PodInfo,
    cpu: float | None = 0.5,
    history: History | None = None,
    idle: Host = BIG,
    budgets: Iterable[PodDisruptionBudget] = (),
    **sections: Any,
) -> DescheduleDecision:
    """The decision for a node at 100 % cpu with these pods of half a core each, and an idle node, which is large by default."""
    nodes = [make_host("hot"), idle]
    usage = {"hot": to_usage(4, 1), "idle": to_usage(0.1, 1)}
    view = make_snapshot(nodes, pods, usage, {p.key: to_usage(cpu, 0.1) for p in pods}, budgets=budgets)
    return decide_once(view, make_config(sections.pop("policy", None), **sections), history=history)


WEB = "default/ReplicaSet/web-5d4f"


def with_volume(**source: Any) -> dict[str, Any]:
    return {"spec": {"volumes": [{"name": "v", **source}]}}


def with_unknown_operator(given: PodDisruptionBudget) -> PodDisruptionBudget:
    """The budget with a selector that is newer than this code."""
    selector = LabelSelector(match_expressions=[MatchExpression("a", "Matches", ["b*"])])
    return msgspec.structs.replace(given, spec=PodDisruptionBudgetSpec(selector))


class Case(NamedTuple):
    """A pod of an overutilized node that fails one condition.

    Attributes:
        reason: the reported reason, or a part of it.
        pod: fields of the pod.
        given: history, settings, budgets, and cores in use by the pod.
    """

    condition: str
    reason: str
    pod: dict[str, Any]
    given: dict[str, Any]


def case(condition: str, reason: str = "", pod: dict[str, Any] | None = None, **given: Any) -> Case:
    return Case(condition, reason, pod or {}, given)


CASES = [
    case(
        "usage-lag", "1 recent moves show", history=History(pending_moves=(make_pending_move(planned_at_s=NOW_S - 60),))
    ),
    *(
        case("eviction-protection", pod=fields)
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
    case("bare-pod", pod={"owner": ""}),
    case("owner-kind", pod={"owner": "Job/migrate"}),
    case("owner-kind", pod={"owner": "TaskRun/build"}),
    case("volume-claim", pod=with_volume(persistentVolumeClaim={"claimName": "c"})),
    case("local-storage", pod=with_volume(emptyDir={})),
    case("local-storage", pod=with_volume(hostPath={"path": "/x"})),
    case("namespace", policy={"evictableNamespaces": {"exclude": ["default"]}}),
    *(
        case("namespace", f"the admission policy forbids evictions in {namespace}", {"namespace": namespace})
        for namespace in ("kube-system", "kube-public", "kube-node-lease", "netaware-system")
    ),
    case("pod-selector", policy={"podSelectors": [{"selector": {"matchLabels": {"app": "other"}}}]}),
    case(
        "pod-age",
        "it is 30 s old, less than protection.minPodAgeS",
        {"created_s": NOW_S - 30},
        protection={"minPodAgeS": 60},
    ),
    case("min-replicas", f"{WEB} has 1 of at least 2 pods", protection={"minReplicas": 2}),
    case("pod-usage", "it uses no cpu", cpu=0),
    case("pod-usage", "its use of cpu is not known", cpu=None),
    case(
        "breaker",
        "0 of 4 moves in 24 h helped",
        history=History(breaker_entries=(BreakerEntry(NOW_S, "LowNodeLoad"),) * 4),
    ),
    case("round-limit", "limit of 0 evictions per round", limits={"perRound": 0}),
    case("node-limit", "limit of 0 evictions per node", limits={"perNode": 0}),
    case(
        "free-capacity", "1 node is underutilized, and numberOfNodes asks for more than 1", policy={"numberOfNodes": 1}
    ),
    case("namespace-limit", "limit of 0 evictions per namespace", limits={"perNamespace": 0}),
    case(
        "group-limit",
        "another pod of AppGroup default/g is being moved",
        {"labels": {"appgroup.diktyo.x-k8s.io": "g"}},
        history=History(pending_moves=(make_pending_move(node="far", group="default/g"),)),
    ),
    case("replica-backoff", pod={"uid": "q"}, history=History(backoffs={"q": BackoffEntry(NOW_S + 60, 1, "planner")})),
    case(
        "workload-backoff",
        f"{WEB} had 2 failed moves in a row (returned); not moved for another 120 min",
        history=History(backoffs={WEB: BackoffEntry(NOW_S + 7200, 2, "returned")}),
    ),
    case("workload-limit", limits={"perWorkload": 1}, history=History(evictions=(EvictionEntry(NOW_S - 299, WEB),))),
    case(
        "unavailable-limit",
        f"1 of 1 pods of {WEB} are not available",
        {"ready": False},
        limits={"unavailablePerWorkload": 1},
    ),
    case(
        "disruption-budget",
        "default/x allows no disruption",
        {"labels": {"a": "b"}},
        budgets=[make_budget("x", "a=b", 0)],
    ),
    case(
        "disruption-budget",
        "several PodDisruptionBudgets cover it: default/all, default/x",
        {"labels": {"a": "b"}},
        budgets=[make_budget("x", "a=b", 9), make_budget("all", "", 9)],
    ),
    case(
        "disruption-budget",
        "PodDisruptionBudget default/x may cover it: 'Matches' is not an operator",
        budgets=[with_unknown_operator(make_budget("x", "a", 9)), make_budget("other", "c=d", 9)],
    ),
    case("node-fit", "0/1 nodes are available: 1 insufficient cpu", {"cpu": "65"}),
]
TESTED_ELSEWHERE = {"reason-duration", "group-readiness", "planner"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.condition)
def test_a_pod_that_fails_a_condition_is_not_moved_and_the_plan_says_why(case: Case) -> None:
    plan = decide_for(make_pod_info("p", "hot", **case.pod), **{"cpu": 2.5, **case.given}).plan
    assert not plan.moves
    skips = [(skip.condition, skip.reason) for skip in plan.skips]
    assert [name for name, _ in skips] in ([case.condition], [])
    assert case.reason in (skips[0][1] if skips else next(state.reason for state in plan.nodes if state.node == "hot"))


def test_every_condition_has_a_case_in_the_order_of_the_list() -> None:
    names = [condition.name for condition in CONDITIONS]
    assert list(dict.fromkeys(case.condition for case in CASES)) == [n for n in names if n not in TESTED_ELSEWHERE]


@pytest.mark.parametrize(
    ("fields", "sections"),
    [
        ({}, {}),
        ({"owner": "", "annotations": {EVICT: "true"}}, {}),
        (with_volume(emptyDir={}), {"protection": {"evictLocalStorage": True}}),
        ({**with_volume(emptyDir={}), "annotations": {EVICT: "true"}}, {}),
        (with_volume(persistentVolumeClaim={"claimName": "c"}), {"protection": {"evictVolumeClaims": True}}),
        ({"owner": "Job/migrate"}, {"protection": {"ownerKinds": ["Job"]}}),
        ({"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}}, {}),
    ],
)
def test_pods_that_settings_or_annotations_allow_are_moved(fields: dict[str, Any], sections: dict[str, Any]) -> None:
    assert list_moved_pods(decide_for(make_single_pod("p", **fields), **sections)) == ["p"]


def test_pods_move_by_priority_then_qos_class_then_eviction_cost_then_usage_then_age() -> None:
    nodes = [make_host("hot", cpu="10"), make_host("idle", cpu="64", memory="256Gi")]
    cost = {"descheduler.koordinator.sh/eviction-cost": "5"}
    pods = [
        make_single_pod("g-young", created_s=NOW_S - 10),
        make_single_pod("f-old", created_s=NOW_S - 1000),
        make_single_pod("e-big", created_s=NOW_S - 2000),
        make_single_pod("d-costly", annotations=cost),
        make_single_pod("c-guaranteed", qos="Guaranteed"),
        make_single_pod("b-best-effort", qos="BestEffort"),
        make_single_pod("a-important", priority=5),
    ]
    used = {p.key: to_usage(0.2, 0.1) for p in pods} | {"default/e-big": to_usage(0.3, 0.1)}
    view = make_snapshot(nodes, pods, {"hot": to_usage(9.9, 1), "idle": to_usage(0, 0)}, used)
    order = ["b-best-effort", "e-big", "g-young", "f-old", "d-costly", "c-guaranteed", "a-important"]
    assert list_moved_pods(decide_once(view, make_config())) == order


def test_the_smallest_pod_whose_move_alone_suffices_moves_first() -> None:
    # 4 cores at 2.5: half a core must go.
    nodes = [make_host("hot"), make_host("idle", cpu="64", memory="256Gi")]
    pods = [make_single_pod(name) for name in ("small", "just-enough", "huge")]
    used = {"small": to_usage(0.4, 0.1), "just-enough": to_usage(0.6, 0.1), "huge": to_usage(1.4, 0.1)}
    view = make_snapshot(nodes, pods, {"hot": to_usage(2.5, 1), "idle": to_usage(0, 0)}, used)
    assert list_moved_pods(decide_once(view, make_config())) == ["just-enough"]


# Node fit


def node_affinity(key: str, operator: str, value: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": [value]}]}
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}}


@pytest.mark.parametrize(
    ("spec", "target", "reason"),
    [
        ({}, {}, ""),
        ({"nodeSelector": {"disk": "ssd"}}, {}, "nodeSelector disk=ssd"),
        (
            {"tolerations": [{"key": "gpu", "value": "a"}]},
            {"taints": [{"key": "gpu", "value": "b", "effect": "NoExecute"}]},
            "taint gpu",
        ),
        (
            {"tolerations": [{"key": "sla", "operator": "Gt", "value": "950"}]},
            {"taints": [{"key": "sla", "value": "950", "effect": "NoSchedule"}]},
            "taint sla",
        ),
        (node_affinity("cores", "Gt", "31"), {"labels": {"cores": "32"}}, ""),
        # Go's ParseInt refuses both.
        (node_affinity("cores", "Gt", "5"), {"labels": {"cores": "1_000"}}, "node affinity"),
        (node_affinity("cores", "Gt", " 5"), {"labels": {"cores": "32"}}, "node affinity"),
        ({"containers": [{"resources": {"requests": {"example.com/gpu": "1"}}}]}, {}, "insufficient example.com/gpu"),
        ({"overhead": {"cpu": "65"}}, {}, "insufficient cpu"),
        ({}, {"pods": "0"}, "too many pods"),
        ({}, {"cpu": "1"}, "cpu usage would exceed the high threshold"),
    ],
)
def test_node_fit_checks_constraints_requests_and_usage(
    spec: dict[str, Any], target: dict[str, Any], reason: str
) -> None:
    idle = make_host("idle", **{"cpu": "64", "memory": "256Gi", **target})
    decision = decide_for(make_single_pod("p", spec=spec), cpu=0.6, idle=idle)
    assert [s.reason for s in decision.plan.skips] == ([f"0/1 nodes are available: 1 {reason}"] if reason else [])
    assert list_moved_pods(decision) == ([] if reason else ["p"])


def test_node_fit_is_checked_again_for_equal_pods_with_other_labels() -> None:
    anti = {"podAntiAffinity": {REQUIRED: [{**BY_HOST, "labelSelector": {"matchLabels": {"app": "a"}}}]}}
    shy = make_pod_info("shy", "idle", spec={"affinity": anti})
    pods = [make_single_pod(name, labels={"app": name}) for name in ("a", "b", "c")]
    assert list_moved_pods(decide_for(*pods, shy, cpu=0.9)) == ["b", "c"]


def test_required_anti_affinity_counts_moves_of_the_same_round() -> None:
    term = {**BY_HOST, "labelSelector": {"matchLabels": {"app": "db"}}}
    anti = {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}
    here = [make_single_pod(f"db-{i}", labels={"app": "db"}, spec=anti) for i in range(2)]
    nodes = [make_host("hot"), *(make_host(f"idle-{i}", cpu="64", memory="256Gi") for i in range(3))]
    there = [make_pod_info("db-9", "idle-0", labels={"app": "db"}, owner="ReplicaSet/x-1")]
    usage = {"hot": to_usage(4, 1)} | {f"idle-{i}": to_usage(i, i) for i in range(3)}
    view = make_snapshot(nodes, [*here, *there], usage, {p.name: to_usage(0.5, 0.1) for p in here})
    targets = [move.target for move in decide_once(view, make_config()).plan.moves]
    assert targets == ["idle-1", "idle-2"]


def test_the_least_loaded_node_that_fits_is_the_target_until_it_would_be_overutilized() -> None:
    nodes = [make_host("hot", cpu="16"), make_host("a", cpu="4"), make_host("b", cpu="4")]
    pods = [make_single_pod(f"p{i}") for i in range(6)]
    usage = {"hot": to_usage(16, 1), "a": to_usage(0.4, 1), "b": to_usage(0.2, 1)}
    plan = decide_once(
        make_snapshot(nodes, pods, usage, {p.name: to_usage(0.8, 0.1) for p in pods}), make_config()
    ).plan
    # At 0.8 cores each, a third pod would make either of them overutilized.
    assert [move.target for move in plan.moves] == ["b", "a", "b", "a"]


@pytest.mark.parametrize(
    ("limit", "elsewhere", "moves"), [("10%", 0, 1), ("10%", 20, 2), ("50%", 0, 4), (3, 0, 3), (0, 0, 0), ("0%", 0, 0)]
)
def test_a_percentage_of_a_workload_is_rounded_down_but_at_least_one_pod(
    limit: int | str, elsewhere: int, moves: int
) -> None:
    pods = [make_pod_info(f"p{i}", "hot") for i in range(8)] + [
        make_pod_info(f"far-{i}", "elsewhere") for i in range(elsewhere)
    ]
    limits = {"perWorkload": limit, "unavailablePerWorkload": 100}
    assert len(list_moved_pods(decide_for(*pods, cpu=0.3, limits=limits))) == moves


def test_earlier_moves_take_capacity_before_usage_shows_them() -> None:
    nodes = [make_host("hot", cpu="8"), make_host("idle"), make_host("left", cpu="8")]
    usage = {"hot": to_usage(7.5, 1), "idle": to_usage(0.2, 1), "left": to_usage(3, 1)}
    view = make_snapshot(nodes, [make_single_pod("p")], usage, {"p": to_usage(1, 0.1)})
    assert list_moved_pods(decide_once(view, make_config())) == ["p"]
    bound: dict[str, Any] = {"replacement_node": "idle", "replacement_uid": "x", "replacement_bound_at_s": NOW_S - 10}
    for cores, replacement in ((1.5, bound), (1.9, {})):
        move = make_pending_move(node="left", usage=to_usage(cores, 0.1), **replacement)
        assert list_moved_pods(decide_once(view, make_config(), history=History(pending_moves=(move,)))) == []


def test_a_moved_pod_that_still_terminates_is_a_recent_move() -> None:
    """Its grace period may be longer than `limits.usageLagS`, and until its containers end the node is as loaded as before."""
    bound: dict[str, Any] = {"replacement_node": "idle", "replacement_bound_at_s": NOW_S - 250}
    history = History(pending_moves=(make_pending_move("default/old", "old", planned_at_s=NOW_S - 250, **bound),))
    old = [make_single_pod("old", uid="old", deleting=True, phase=phase) for phase in ("Running", "Failed")]
    for pods, moves in (([], ["p"]), (old[:1], []), (old[1:], ["p"])):
        assert list_moved_pods(decide_for(make_single_pod("p"), *pods, history=history)) == moves


WEB_PODS = {"labelSelector": {"matchLabels": {"app": "web"}}}
SPREAD = {
    "topologySpreadConstraints": [
        {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **WEB_PODS}
    ]
}
NOT_WITH_WEB = {"affinity": {"podAntiAffinity": {REQUIRED: [BY_HOST | WEB_PODS]}}}


def web(name: str, on: str) -> PodInfo:
    return make_pod_info(name, on, labels={"app": "web"}, owner="ReplicaSet/other")


@pytest.mark.parametrize(
    ("spec", "others", "moves"),
    [
        (SPREAD, [web("b", "idle")], False),
        (SPREAD, [web("b", "idle"), web("a", "hot")], True),
        # Terminating pods count for anti-affinity.
        ({}, [make_pod_info("shy", "idle", spec=NOT_WITH_WEB, deleting=True)], False),
        ({}, [make_pod_info("shy", "idle", spec=NOT_WITH_WEB, namespace="other")], True),
    ],
)
def test_spread_and_anti_affinity_of_other_pods_exclude_nodes(
    spec: dict[str, Any], others: list[PodInfo], *, moves: bool
) -> None:
    moving = make_pod_info("web", "hot", cpu="100m", labels={"app": "web"}, spec=spec)
    nodes = [make_host("hot", labels={"zone": "a"}), make_host("idle", labels={"zone": "b"})]
    usage = {"hot": to_usage(3.5, 1), "idle": to_usage(0.2, 1)}
    view = make_snapshot(nodes, [moving, *others], usage, {"web": to_usage(1, 1)})
    assert list_moved_pods(decide_once(view, make_config())) == (["web"] if moves else [])
