"""LowNodeLoad: which pods move off an overutilized node, in which order, how many, to which nodes, and why.

Rules of the planner, which it shares, are in `test_planners`.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.descheduler_builders import (
    NOW_S,
    History,
    PodInfo,
    decide_on_hot_node,
    decide_once,
    find_node_state,
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

HOT, WARM, IDLE = "cn-beijing.10.0.2.53", "cn-beijing.10.0.2.54", "cn-beijing.10.0.2.58"
"""The nodes of koordinator's example."""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LARGE = {"cpu": "64", "memory": "256Gi"}
WEB_PODS = {"labelSelector": {"matchLabels": {"app": "web"}}}
SPREAD_OVER_ZONES = {
    "topologySpreadConstraints": [
        {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **WEB_PODS}
    ]
}
ONE_POD = make_loaded_snapshot({"hot": 3, "idle": 0.2}, {"p": 1.5})


def make_node_affinity(key: str, operator: str, value: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": [value]}]}
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}}


def make_anti_affinity(app: str) -> dict[str, Any]:
    """The spec of a pod that must not be on a node with a pod of this app."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}


def make_web_pod(name: str, node_name: str) -> PodInfo:
    return make_pod_info(name, node_name, labels={"app": "web"}, owner="ReplicaSet/other")


def test_the_stress_pod_of_koordinators_example_moves_to_the_underutilized_node() -> None:
    """Three nodes of 4 cores and 16 GiB, and two stress pods of 1.75 cores."""
    owner, pod_names = "ReplicaSet/stress-demo-7fdd89cc6b", {HOT: "xr5dl", WARM: "lml7k"}
    pods = [
        make_pod_info(f"stress-demo-7fdd89cc6b-{pod_name}", node_name, owner=owner, cpu="2", memory="4Gi")
        for node_name, pod_name in pod_names.items()
    ]
    node_usage = {
        HOT: to_usage(3.825, 4051 / 1024),
        WARM: to_usage(2.155, 4500 / 1024),
        IDLE: to_usage(0.182, 1367 / 1024),
    }
    nodes, pod_usage = map(make_host, node_usage), {pod.name: to_usage(1.75, 3.2) for pod in pods}

    plan = decide_once(make_snapshot(nodes, pods, node_usage, pod_usage), make_config()).plan

    load_by_node = {state.node: (state.kind, round(state.usage_percent["cpu"])) for state in plan.nodes}
    assert load_by_node == {HOT: ("overutilized", 96), WARM: ("overutilized", 54), IDLE: ("underutilized", 5)}
    (move,) = plan.moves
    assert (move.pod, move.node, move.target) == ("default/stress-demo-7fdd89cc6b-xr5dl", HOT, IDLE)
    assert move.node_before["cpu"] == pytest.approx(100 * 3.825 / 4)
    assert move.node_after["cpu"] == pytest.approx(100 * (3.825 - 1.75) / 4)


def test_each_move_is_deducted_from_free_capacity_until_none_is_left() -> None:
    """The idle node takes up to 50 % of 4 cores, which leaves 1.8 cores for three pods of one core each."""
    view = make_loaded_snapshot({"hot": 7.5, "idle": 0.2}, {"p0": 1, "p1": 1, "p2": 1}, hot={"cpu": "8"})

    decision = decide_once(view, make_config())

    assert list_moved_pods(decision) == ["p0"]
    skips = [(skip.pod, skip.condition) for skip in decision.plan.skips]
    assert skips == [("default/p1", "node-fit"), ("default/p2", "node-fit")]
    assert find_node_state(decision).is_stuck
    assert "no further pod can be moved: 2 node-fit" in find_node_state(decision).reason


def test_without_node_fit_moves_have_no_target_but_are_deducted_from_free_capacity() -> None:
    """The idle node has 1.8 cores for pods of 0.8 cores."""
    view = make_loaded_snapshot({"hot": 7.5, "idle": 0.2}, {"p0": 0.8, "p1": 0.8, "p2": 0.8}, hot={"cpu": "8"})
    moves = decide_once(view, make_config({"nodeFit": False})).plan.moves
    assert [(move.pod, move.target) for move in moves] == [("default/p0", ""), ("default/p1", "")]


@pytest.mark.parametrize(
    ("cpu_of_pods", "reason"),
    [
        ({"tiny": 0.01}, "no further pod can be moved: 1 too-small"),
        ({"moved": 2.0}, "no further pod runs on it"),
        ({}, "no further pod runs on it"),
    ],
)
def test_a_node_that_is_not_relieved_says_why_its_other_pods_stay(cpu_of_pods: dict[str, float], reason: str) -> None:
    view = make_loaded_snapshot({"hot": 7.5, "idle": 0.2}, cpu_of_pods, size=8)
    assert find_node_state(decide_once(view, make_config())).reason == reason


def test_a_reason_names_every_exceeded_resource_with_its_usage_before_the_move() -> None:
    nodes = [make_host("hot"), make_host("idle", cpu="100", memory="100Gi")]
    pod_usage = {"first": to_usage(0.5, 3), "second": to_usage(0.4, 0.1)}
    node_usage = {"hot": to_usage(2.8, 12), "idle": to_usage(0, 0)}
    view = make_snapshot(nodes, map(make_single_pod, pod_usage), node_usage, pod_usage)

    moves = decide_once(view, make_config()).plan.moves

    assert [move.reason for move in moves] == [
        "node is overutilized, node cpu usage(70.00%)>threshold(50.00%), node memory usage(75.00%)>threshold(60.00%)",
        "node is overutilized, node cpu usage(57.50%)>threshold(50.00%)",
    ]


@pytest.mark.parametrize(
    ("policy", "moved"),
    [
        ({}, "a b c"),
        ({"podSelectors": [{"selector": {"matchLabels": {"app": app}}} for app in "bx"]}, "b"),
        ({"podSelectors": [{"selector": {"matchLabels": {"app": app}}} for app in "bc"]}, "b c"),
        ({"nodeSelector": {"matchLabels": {"pool": "a"}}}, "a b c"),
        ({"nodeSelector": {"matchLabels": {"pool": "b"}}}, ""),
    ],
)
def test_selectors_limit_which_pods_move(policy: dict[str, Any], moved: str) -> None:
    pods = [make_single_pod(name, labels={"app": name}) for name in "abc"]
    nodes = [make_host(name, labels={"pool": "a"}) for name in ("hot", "idle")]
    usage = {"hot": to_usage(3.9, 1), "idle": to_usage(0, 1)}
    view = make_snapshot(nodes, pods, usage, {pod.key: to_usage(0.6, 0.5) for pod in pods})
    assert sorted(list_moved_pods(decide_once(view, make_config(policy)))) == moved.split()


def test_a_paused_policy_plans_nothing_and_adds_a_note() -> None:
    assert list_moved_pods(decide_once(ONE_POD, make_config())) == ["p"]
    decision = decide_once(ONE_POD, make_config({"paused": True}))
    assert list_moved_pods(decision) == []
    assert "LowNodeLoad is paused, and with it all strategies" in decision.plan.notes


@pytest.mark.parametrize(
    ("weights", "moved"), [({"cpu": 10, "memory": 1}, ["c", "m"]), ({"cpu": 1, "memory": 10}, ["m", "c"])]
)
def test_resource_weights_decide_which_node_is_relieved_first(weights: dict[str, int], moved: list[str]) -> None:
    nodes = [make_host(name, cpu="10", memory="10Gi") for name in ("cpu-hot", "memory-hot")]
    nodes.append(make_host("idle", cpu="100"))
    node_usage = {"cpu-hot": to_usage(9, 1), "memory-hot": to_usage(1, 9), "idle": to_usage(0, 0)}
    pods = [make_single_pod("c", "cpu-hot"), make_single_pod("m", "memory-hot")]
    view = make_snapshot(nodes, pods, node_usage, {"c": to_usage(5, 0.5), "m": to_usage(0.5, 5)})
    assert list_moved_pods(decide_once(view, make_config({"resourceWeights": weights}))) == moved


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
    pod_usage = {pod.key: to_usage(0.2, 0.1) for pod in pods} | {"default/e-big": to_usage(0.3, 0.1)}

    view = make_snapshot(nodes, pods, {"hot": to_usage(9.9, 1), "idle": to_usage(0, 0)}, pod_usage)

    order = ["b-best-effort", "e-big", "g-young", "f-old", "d-costly", "c-guaranteed", "a-important"]
    assert list_moved_pods(decide_once(view, make_config())) == order


def test_the_smallest_pod_whose_move_alone_suffices_moves_first() -> None:
    """The node uses 2.5 of 4 cores, half a core more than the threshold."""
    view = make_loaded_snapshot({"hot": 2.5, "idle": 0}, {"small": 0.4, "just-enough": 0.6, "huge": 1.4})
    assert list_moved_pods(decide_once(view, make_config())) == ["just-enough"]


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
