"""LowNodeLoad moves pods only to nodes that can take them; rules of the planner, which it shares, are in `test_planners`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.descheduler_builders import (
    NOW_S,
    History,
    PodInfo,
    decide_on_hot_node,
    decide_once,
    list_moved_pods,
    make_config,
    make_host,
    make_loaded_snapshot,
    make_pending_move,
    make_pod_info,
    make_single_pod,
    make_snapshot,
    to_usage,
)

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LARGE = {"cpu": "64", "memory": "256Gi"}
WEB_PODS = {"labelSelector": {"matchLabels": {"app": "web"}}}
SPREAD_OVER_ZONES = {
    "topologySpreadConstraints": [
        {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **WEB_PODS}
    ]
}


def make_node_affinity(key: str, operator: str, value: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": [value]}]}
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}}


def make_anti_affinity(app: str) -> dict[str, Any]:
    """The spec of a pod that must not be on a node with a pod of this app."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}


def make_web_pod(name: str, node_name: str) -> PodInfo:
    return make_pod_info(name, node_name, labels={"app": "web"}, owner="ReplicaSet/other")


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
        (make_node_affinity("cores", "Gt", "31"), {"labels": {"cores": "32"}}, ""),
        # Go's ParseInt refuses both.
        (make_node_affinity("cores", "Gt", "5"), {"labels": {"cores": "1_000"}}, "node affinity"),
        (make_node_affinity("cores", "Gt", " 5"), {"labels": {"cores": "32"}}, "node affinity"),
        ({"containers": [{"resources": {"requests": {"example.com/gpu": "1"}}}]}, {}, "insufficient example.com/gpu"),
        ({"overhead": {"cpu": "65"}}, {}, "insufficient cpu"),
        ({}, {"pods": "0"}, "too many pods"),
        ({}, {"cpu": "1"}, "cpu usage would exceed the high threshold"),
    ],
)
def test_node_fit_checks_constraints_requests_and_usage(
    spec: dict[str, Any], target: dict[str, Any], reason: str
) -> None:
    idle = make_host("idle", **{**LARGE, **target})

    decision = decide_on_hot_node(make_single_pod("p", spec=spec), cpu_of_pods=0.6, idle=idle)

    reasons = [f"0/1 nodes are available: 1 {reason}"] if reason else []
    assert [skip.reason for skip in decision.plan.skips] == reasons
    assert list_moved_pods(decision) == ([] if reason else ["p"])


def test_node_fit_is_checked_again_for_equal_pods_with_other_labels() -> None:
    pod_without_a = make_pod_info("x", "idle", spec=make_anti_affinity("a"))
    pods = [make_single_pod(name, labels={"app": name}) for name in ("a", "b", "c")]
    assert list_moved_pods(decide_on_hot_node(*pods, pod_without_a, cpu_of_pods=0.9)) == ["b", "c"]


def test_required_anti_affinity_counts_moves_of_the_same_round() -> None:
    labels = {"app": "db"}
    moving = [make_single_pod(f"db-{i}", labels=labels, spec=make_anti_affinity("db")) for i in range(2)]
    staying = make_pod_info("db-9", "idle-0", labels=labels, owner="ReplicaSet/x-1")
    nodes = [make_host("hot"), *(make_host(f"idle-{i}", **LARGE) for i in range(3))]
    usage = {"hot": to_usage(4, 1)} | {f"idle-{i}": to_usage(i, i) for i in range(3)}
    view = make_snapshot(nodes, [*moving, staying], usage, {pod.name: to_usage(0.5, 0.1) for pod in moving})

    targets = [move.target for move in decide_once(view, make_config()).plan.moves]

    assert targets == ["idle-1", "idle-2"]


def test_the_least_loaded_node_that_fits_is_the_target_until_it_would_be_overutilized() -> None:
    cores_by_pod = {f"p{i}": 0.8 for i in range(6)}
    view = make_loaded_snapshot({"hot": 16, "a": 0.4, "b": 0.2}, cores_by_pod, hot={"cpu": "16"})
    # The threshold is 2 of 4 cores: after two pods, a uses 0.4 + 2 * 0.8 = 2.0 cores, and b 1.8.
    assert [move.target for move in decide_once(view, make_config()).plan.moves] == ["b", "a", "b", "a"]


@pytest.mark.parametrize(
    ("earlier_move", "moved"),
    [
        (None, ["p"]),
        # Its replacement is on node idle: 0.2 used + 1.5 + 1 of the next pod are more than the threshold, 2 of 4 cores.
        ((1.5, {"replacement_node": "idle", "replacement_uid": "x", "replacement_bound_at_s": NOW_S - 10}), []),
        # Its replacement may come to node idle: 1.9 is more than the 2 - 0.2 cores that are free there.
        ((1.9, {}), []),
    ],
    ids=["none", "bound replacement", "awaited replacement"],
)
def test_earlier_moves_take_capacity_before_usage_shows_them(
    earlier_move: tuple[float, dict[str, Any]] | None, moved: list[str]
) -> None:
    view = make_loaded_snapshot({"hot": 7.5, "idle": 0.2, "normal": 3}, {"p": 1}, size=8, idle={"cpu": "4"})
    history = History()
    if earlier_move is not None:
        cores, replacement = earlier_move
        move = make_pending_move(node="normal", usage=to_usage(cores, 0.1), **replacement)
        history = History(pending_moves=(move,))
    assert list_moved_pods(decide_once(view, make_config(), history=history)) == moved


@pytest.mark.parametrize(
    ("spec", "other_pods", "moves"),
    [
        (SPREAD_OVER_ZONES, [make_web_pod("b", "idle")], False),
        (SPREAD_OVER_ZONES, [make_web_pod("b", "idle"), make_web_pod("a", "hot")], True),
        # Terminating pods count for anti-affinity.
        ({}, [make_pod_info("x", "idle", spec=make_anti_affinity("web"), deleting=True)], False),
        ({}, [make_pod_info("x", "idle", spec=make_anti_affinity("web"), namespace="other")], True),
    ],
)
def test_spread_and_anti_affinity_of_other_pods_exclude_nodes(
    spec: dict[str, Any], other_pods: list[PodInfo], *, moves: bool
) -> None:
    moving = make_pod_info("web", "hot", cpu="100m", labels={"app": "web"}, spec=spec)
    nodes = [make_host("hot", labels={"zone": "a"}), make_host("idle", labels={"zone": "b"})]
    usage = {"hot": to_usage(3.5, 1), "idle": to_usage(0.2, 1)}
    view = make_snapshot(nodes, [moving, *other_pods], usage, {"web": to_usage(1, 1)})
    assert list_moved_pods(decide_once(view, make_config())) == (["web"] if moves else [])
