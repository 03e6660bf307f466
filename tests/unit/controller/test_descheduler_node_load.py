"""Load of nodes: their classes by thresholds and pools, the rounds until one is anomalous, and the taint of hot nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from controller.descheduler.node_load import LoadClass
from controller.descheduler.plan import NodeState
from controller.descheduler.taints import build_taint_patches
from netperf.contract import HOT_TAINT
from tests.support.descheduler_builders import (
    NOW_S,
    AnomalyDetector,
    DeschedulerSnapshot,
    ReasonDurations,
    ResolvedConfig,
    decide_once,
    find_node_state,
    list_moved_pods,
    make_config,
    make_host,
    make_loaded_snapshot,
    make_node,
    make_pod_info,
    make_single_pod,
    make_snapshot,
    nodes_to_taint,
    to_usage,
)

DEVIATION = {"useDeviationThresholds": True}
ONE_POD = make_loaded_snapshot({"hot": 3, "idle": 0.2}, {"p": 1.5})
HOT = {"key": HOT_TAINT, "effect": "PreferNoSchedule"}
HOSTS = {host.name: host for host in (make_host("plain"), make_host("tainted", taints=[HOT]))}


def classify_nodes(
    policy: Mapping[str, Any], usage: Mapping[str, Mapping[str, float]], **node_fields: Mapping[str, Any]
) -> dict[str, str]:
    """Load classes by name of nodes with 100 cores, so that cores in use are percent; ``node_fields`` are by name."""
    nodes = [make_host(name, **{"cpu": "100", **node_fields.get(name, {})}) for name in usage]
    plan = decide_once(make_snapshot(nodes, [], usage), make_config(policy)).plan
    return {state.node: state.kind for state in plan.nodes}


def make_cpu_policy(low: float, high: float, **arguments: Any) -> dict[str, Any]:
    return {"lowThresholds": {"cpu": low}, "highThresholds": {"cpu": high}, **arguments}


def make_anomaly(timeout: str = "1m", abnormal: int = 5, normal: int = 3) -> dict[str, Any]:
    """An anomalyCondition."""
    return {"timeout": timeout, "consecutiveAbnormalities": abnormal, "consecutiveNormalities": normal}


def run_detector(
    name: str, config: ResolvedConfig, views: Iterable[DeschedulerSnapshot], interval_s: float
) -> list[AnomalyDetector | None]:
    """The node's detector after a round on each of these snapshots."""
    durations, detectors = ReasonDurations(), []
    for i, view in enumerate(views):
        durations = decide_once(view, config, durations=durations, now=NOW_S + interval_s * i).durations
        detectors.append(durations.detectors.get(name))
    return detectors


@pytest.mark.parametrize(
    ("policy", "cpu_percent", "classes"),
    [
        # koordinator's figure: between 45 and 70 percent.
        (make_cpu_policy(45, 70), {"a": 4, "b": 45, "c": 45.1, "d": 70, "e": 70.1}, "under under normal normal over"),
        (make_cpu_policy(10, 10), {"a": 60, "b": 50, "c": 40, "d": 70, "e": 30}, "over over over over over"),
        # Deviations are distances from the mean, and stay within 0 and 100.
        (
            make_cpu_policy(10, 10, **DEVIATION),
            {"a": 60, "b": 50, "c": 40, "d": 70, "e": 30},
            "normal normal under over under",
        ),
        (make_cpu_policy(20, 20, **DEVIATION), {"a": 2, "b": 0}, "normal under"),
        (make_cpu_policy(20, 20, **DEVIATION), {"a": 100, "b": 90}, "normal normal"),
        # Unschedulable and unready nodes are not targets.
        (make_cpu_policy(20, 50), {"cordoned": 4, "unready": 4, "cordoned-hot": 98}, "normal normal over"),
    ],
)
def test_classes_of_nodes_by_their_thresholds(
    policy: dict[str, Any], cpu_percent: dict[str, float], classes: str
) -> None:
    usage = {name: to_usage(percent, 0) for name, percent in cpu_percent.items()}
    cordoned = {"unschedulable": True}
    fields = {"cordoned": cordoned, "unready": {"ready": False}, "cordoned-hot": cordoned}
    class_by_node = classify_nodes(policy, usage, **fields)
    assert [class_by_node[name].removesuffix("utilized") for name in cpu_percent] == classes.split()


def test_a_node_is_overutilized_by_any_resource_and_underutilized_by_all() -> None:
    usage = {"memory-hot": to_usage(10, 11), "cpu-idle-only": to_usage(10, 6), "idle": to_usage(20, 4)}
    expected = {"cpu-idle-only": "normal", "idle": "underutilized", "memory-hot": "overutilized"}
    assert classify_nodes({}, usage) == expected


def test_bandwidth_has_thresholds_on_nodes_that_have_the_resource() -> None:
    bandwidth, with_agent = "network.aware.com/bandwidth", {"bandwidth": "10G"}
    policy = {"lowThresholds": {bandwidth: 30}, "highThresholds": {bandwidth: 60}}
    usage = {"busy": to_usage(bandwidth=7e9), "idle": to_usage(bandwidth=1e9), "no-agent": {}}
    class_by_node = classify_nodes(policy, usage, busy=with_agent, idle=with_agent)
    assert class_by_node == {"busy": "overutilized", "idle": "underutilized", "no-agent": "unknown"}


def test_each_node_belongs_to_one_pool_with_thresholds_and_targets_of_its_own() -> None:
    batch_pool = {"name": "batch", "nodeSelector": {"matchLabels": {"pool": "batch"}}, **make_cpu_policy(80, 95)}
    policy = make_cpu_policy(20, 50, nodePools=[batch_pool, {"name": "rest", "nodeSelector": {}}])
    batch_labels = {"labels": {"pool": "batch"}}
    class_by_node = classify_nodes(policy, {"b": to_usage(70, 0), "r": to_usage(70, 0)}, b=batch_labels)
    assert class_by_node == {"b": "underutilized", "r": "overutilized"}

    nodes = [make_host("b", **batch_labels), make_host("r")]
    usage = {"b": to_usage(0.1, 0), "r": to_usage(3, 0)}
    view = make_snapshot(nodes, [make_pod_info("p", "r")], usage, {"p": to_usage(1.5, 0)})
    assert list_moved_pods(decide_once(view, make_config(policy))) == [], "pods move only to nodes of their pool"


@pytest.mark.parametrize("unknown_node", ["hot", "idle"])
def test_pods_move_neither_off_nor_to_nodes_whose_usage_is_unknown(unknown_node: str) -> None:
    usage = {"hot": to_usage(3, 1), "idle": to_usage(0.2, 1)}
    del usage[unknown_node]
    view = make_snapshot(ONE_POD.nodes.values(), [make_single_pod("p")], usage, {"p": to_usage(1.5, 1)})

    decision = decide_once(view, make_config())

    assert list_moved_pods(decision) == []
    state = find_node_state(decision, unknown_node)
    assert (state.kind, state.reason) == ("unknown", "no current usage of cpu, memory")


@pytest.mark.parametrize(
    ("usage", "anomaly", "expected"),
    [
        ("^^^^^^", make_anomaly(), "----AA"),
        ("^", make_anomaly("1m", 1, 1), "A"),
        ("^^^^.^^^^^", make_anomaly(), "---------A"),
        ("^^^^^..^...", make_anomaly(), "----AAAAAA-"),
        ("^^..", make_anomaly("10m", 2, 2), "-AA-"),
        # Plans avoid a node until it is normal again, although its anomaly has timed out.
        ("^^^^^^^^^^^^...", make_anomaly("20s", abnormal=3), "--AAAvvAAAvvvv-"),
        # Unknown usage resets the counts of consecutive rounds.
        ("^^ ^^^", make_anomaly(abnormal=3), "-----A"),
    ],
)
def test_consecutive_rounds_begin_and_end_an_anomaly_and_the_timeout_ends_it(
    usage: str, anomaly: dict[str, Any], expected: str
) -> None:
    """``^`` is a round above the threshold, ``.`` one below, ten seconds apart. After it, ``A`` is anomalous, ``v`` only avoided."""
    config = make_config({"anomalyCondition": anomaly}, intervalS=10)
    usage_by_sign = {"^": {"n": to_usage(3, 1)}, ".": {"n": to_usage(1, 1)}, " ": {}}
    views = [make_snapshot([make_host("n")], [], usage_by_sign[sign]) for sign in usage]
    states = ""
    for detector in filter(None, run_detector("n", config, views, 10)):
        states += "A" if detector.is_anomalous else "v" if detector.is_avoided else "-"
    assert states == expected


def test_pods_of_an_overutilized_node_move_once_it_is_anomalous() -> None:
    config, durations = make_config({"anomalyCondition": make_anomaly("1m", 3, 1)}), ReasonDurations()
    for i, reason in enumerate(("overutilized for 1 of 3", "overutilized for 2 of 3", "")):
        decision = decide_once(ONE_POD, config, durations=durations, now=NOW_S + 10 * i)
        durations, state = decision.durations, find_node_state(decision)
        assert not state.is_stuck
        assert state.reason == (f"{reason} consecutive rounds" if reason else "")
        assert list_moved_pods(decision) == ([] if reason else ["p"])
    assert list_moved_pods(decide_once(ONE_POD, config, ignore_durations=True)) == ["p"], "a dry run does not wait"


def test_a_detector_expires_after_the_cache_timeout_but_not_between_two_rounds() -> None:
    # Two rounds ten minutes apart; in the second, the node's usage is unknown.
    views = [ONE_POD, make_snapshot(ONE_POD.nodes.values(), [], {"idle": to_usage(0.2, 1)})]
    assert run_detector("hot", make_config({"detectorCacheTimeout": "30s"}), views, 600)[-1] is None
    assert run_detector("hot", make_config({"detectorCacheTimeout": "20m"}), views, 600)[-1] is not None

    # Rounds of five minutes, which is the cache timeout, are five abnormalities in a row.
    config = make_config({"anomalyCondition": {"consecutiveAbnormalities": 5}}, intervalS=300)
    detector = run_detector("hot", config, [ONE_POD] * 5, 301)[-1]
    assert detector is not None
    assert detector.is_anomalous


@pytest.mark.parametrize(
    ("cpu_percent", "load_class", "is_anomalous", "nodes_with_taint"),
    [
        (36, "normal", False, {"plain", "tainted"}),
        (30, "normal", False, {"tainted"}),
        (20, "normal", False, set()),
        (20, "normal", True, {"plain", "tainted"}),
        (0, "unknown", False, {"tainted"}),
    ],
)
def test_nodes_are_tainted_above_the_midpoint_of_their_thresholds_until_they_are_underutilized(
    cpu_percent: float, load_class: LoadClass, nodes_with_taint: set[str], *, is_anomalous: bool
) -> None:
    """The midpoint of 20 and 50 % is 35 %."""
    usage, low, high = {"cpu": cpu_percent}, {"cpu": 20.0}, {"cpu": 50.0}
    states = [NodeState(name, "default", load_class, usage, low, high) for name in HOSTS]
    detectors = dict.fromkeys(HOSTS, AnomalyDetector(is_anomalous=is_anomalous))
    assert set(nodes_to_taint(states, detectors, HOSTS)) == nodes_with_taint


def test_the_taint_is_added_and_removed_beside_other_taints() -> None:
    other_taint, users_hot_taint = {**HOT, "key": "x"}, {**HOT, "effect": "NoSchedule"}
    taints_by_node = {"a": [], "b": [other_taint], "c": [other_taint, HOT], "d": [HOT], "e": [users_hot_taint]}
    nodes = {name: make_node(name, taints=taints) for name, taints in taints_by_node.items()}

    patches = build_taint_patches(nodes, frozenset({"a", "b", "d"}))

    assert patches == {
        "a": [
            {"op": "test", "path": "/metadata/resourceVersion", "value": ""},
            {"op": "add", "path": "/spec/taints", "value": [HOT]},
        ],
        "b": [{"op": "add", "path": "/spec/taints/-", "value": HOT}],
        "c": [
            {"op": "test", "path": "/spec/taints/1/key", "value": HOT_TAINT},
            {"op": "test", "path": "/spec/taints/1/effect", "value": "PreferNoSchedule"},
            {"op": "remove", "path": "/spec/taints/1"},
        ],
    }
