"""LowNodeLoad: classes of nodes, free capacity, reasons of moves, each argument, and anomaly detection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from controller.cluster.crds import AppGroup
from controller.cluster.pods import TARGET_ANNOTATION
from controller.descheduler.plan import NodeState
from tests.support.descheduler_builders import (
    NOW_S,
    AnomalyDetector,
    DescheduleDecision,
    DeschedulerSnapshot,
    History,
    ReasonDurations,
    ResolvedConfig,
    Target,
    UsageView,
    World,
    decide,
    decide_once,
    list_moved_pods,
    make_config,
    make_host,
    make_pending_move,
    make_pod_info,
    make_single_pod,
    make_snapshot,
    to_usage,
)

HOT, WARM, IDLE = "cn-beijing.10.0.2.53", "cn-beijing.10.0.2.54", "cn-beijing.10.0.2.58"


def cluster(
    cores: Mapping[str, float], used: Mapping[str, float], *, size: int = 4, **flags: Mapping[str, Any]
) -> DeschedulerSnapshot:
    """Nodes with these cores in use, and pods on node ``hot`` with those; ``flags`` are fields of nodes by name."""
    nodes = [make_host(name, **{"cpu": str(size), **flags.get(name, {})}) for name in cores]
    usage = {name: to_usage(in_use, 1) for name, in_use in cores.items()}
    pod_usage = {name: to_usage(in_use, 0.1) for name, in_use in used.items()}
    return make_snapshot(nodes, [make_single_pod(name) for name in used], usage, pod_usage)


ONE_POD = cluster({"hot": 3, "idle": 0.2}, {"p": 1.5})


def state_of(decision: DescheduleDecision, name: str = "hot") -> NodeState:
    """The state of a node."""
    return next(state for state in decision.plan.nodes if state.node == name)


def load_classes(
    policy: Mapping[str, Any], usage: Mapping[str, Mapping[str, float]], **fields: Mapping[str, Any]
) -> dict[str, str]:
    """Load classes of nodes with this usage and 100 cores, by name; ``fields`` are other fields of nodes by name."""
    nodes = [make_host(name, **{"cpu": "100", **fields.get(name, {})}) for name in usage]
    return {
        state.node: state.kind for state in decide_once(make_snapshot(nodes, [], usage), make_config(policy)).plan.nodes
    }


def cpu(low: float, high: float, **more: Any) -> dict[str, Any]:
    return {"lowThresholds": {"cpu": low}, "highThresholds": {"cpu": high}, **more}


MEAN = {"useDeviationThresholds": True}


@pytest.mark.parametrize(
    ("policy", "percent", "kinds"),
    [
        # koordinator's figure: between 45 and 70 percent.
        (cpu(45, 70), {"a": 4, "b": 45, "c": 45.1, "d": 70, "e": 70.1}, "under under normal normal over"),
        (cpu(10, 10), {"a": 60, "b": 50, "c": 40, "d": 70, "e": 30}, "over over over over over"),
        # Deviations are distances from the mean, and stay within 0 and 100.
        (cpu(10, 10, **MEAN), {"a": 60, "b": 50, "c": 40, "d": 70, "e": 30}, "normal normal under over under"),
        (cpu(20, 20, **MEAN), {"a": 2, "b": 0}, "normal under"),
        (cpu(20, 20, **MEAN), {"a": 100, "b": 90}, "normal normal"),
        # Unschedulable and unready nodes are not targets.
        (cpu(20, 50), {"cordoned": 4, "unready": 4, "cordoned-hot": 98}, "normal normal over"),
    ],
)
def test_classes_of_nodes_by_their_thresholds(policy: dict[str, Any], percent: dict[str, float], kinds: str) -> None:
    flags = {"cordoned": {"unschedulable": True}, "unready": {"ready": False}, "cordoned-hot": {"unschedulable": True}}
    classes = load_classes(policy, {name: to_usage(value, 0) for name, value in percent.items()}, **flags)
    assert [classes[name].removesuffix("utilized") for name in percent] == kinds.split()


def test_a_node_is_overutilized_by_any_resource_and_underutilized_by_all() -> None:
    usage = {"memory-hot": to_usage(10, 11), "cpu-idle-only": to_usage(10, 6), "idle": to_usage(20, 4)}
    expected = {"cpu-idle-only": "normal", "idle": "underutilized", "memory-hot": "overutilized"}
    assert load_classes({}, usage) == expected


def test_bandwidth_has_thresholds_on_nodes_that_have_the_resource() -> None:
    name, with_agent = "network.aware.com/bandwidth", {"bandwidth": "10G"}
    policy = {"lowThresholds": {name: 30}, "highThresholds": {name: 60}}
    usage = {"busy": to_usage(bandwidth=7e9), "idle": to_usage(bandwidth=1e9), "no-agent": {}}
    kinds = load_classes(policy, usage, busy=with_agent, idle=with_agent)
    assert kinds == {"busy": "overutilized", "idle": "underutilized", "no-agent": "unknown"}


def test_each_move_is_deducted_from_free_capacity_until_none_is_left() -> None:
    """The idle node takes up to 50 % of 4 cores, which leaves 1.8 cores for three pods of one core each."""
    view = cluster({"hot": 7.5, "idle": 0.2}, {"p0": 1, "p1": 1, "p2": 1}, hot={"cpu": "8"})
    decision = decide_once(view, make_config())
    assert list_moved_pods(decision) == ["p0"]
    skips = [(skip.pod, skip.condition) for skip in decision.plan.skips]
    assert skips == [("default/p1", "node-fit"), ("default/p2", "node-fit")]
    assert state_of(decision).is_stuck
    assert "no further pod can be moved: 2 node-fit" in state_of(decision).reason


@pytest.mark.parametrize(
    ("cpu_of_pods", "reason"),
    [
        ({"tiny": 0.01}, "no further pod can be moved: 1 too-small"),
        ({"moved": 2.0}, "no further pod runs on it"),
        ({}, "no further pod runs on it"),
    ],
)
def test_a_node_that_is_not_relieved_says_why_its_other_pods_stay(cpu_of_pods: dict[str, float], reason: str) -> None:
    view = cluster({"hot": 7.5, "idle": 0.2}, cpu_of_pods, size=8)
    assert state_of(decide_once(view, make_config())).reason == reason


# The seed's stress example


def test_the_stress_pod_of_the_example_moves_to_the_underutilized_node() -> None:
    """Three nodes of 4 cores and 16 GiB, and two stress pods."""
    owner, names = "ReplicaSet/stress-demo-7fdd89cc6b", {"xr5dl": HOT, "lml7k": WARM}
    pods = [
        make_pod_info(f"stress-demo-7fdd89cc6b-{name}", on, owner=owner, cpu="2", memory="4Gi")
        for name, on in names.items()
    ]
    usage = {HOT: to_usage(3.825, 4051 / 1024), WARM: to_usage(2.155, 4500 / 1024), IDLE: to_usage(0.182, 1367 / 1024)}
    view = make_snapshot([make_host(name) for name in usage], pods, usage, {p.name: to_usage(1.75, 3.2) for p in pods})
    plan = decide_once(view, make_config({"lowThresholds": {"cpu": 20, "memory": 30}})).plan
    by_node = {state.node: (state.kind, round(state.usage_percent["cpu"])) for state in plan.nodes}
    assert by_node == {HOT: ("overutilized", 96), WARM: ("overutilized", 54), IDLE: ("underutilized", 5)}
    (move,) = plan.moves
    assert (move.pod, move.node, move.target) == ("default/stress-demo-7fdd89cc6b-xr5dl", HOT, IDLE)
    assert move.node_before["cpu"] == pytest.approx(100 * 3.825 / 4)
    assert move.node_after["cpu"] == pytest.approx(100 * 2.075 / 4)


@pytest.mark.parametrize(
    ("usage", "pods", "reasons"),
    [
        # koordinator's listing.
        ((2.2452, 4), {"p": (1.75, 3.2)}, ["cpu usage(56.13%)>threshold(50.00%)"]),
        (
            (3, 12),
            {"p": (1.5, 6)},
            ["cpu usage(75.00%)>threshold(50.00%), node memory usage(75.00%)>threshold(60.00%)"],
        ),
        # The second move's reason has the usage after the first.
        (
            (2.8, 1),
            {"a": (0.5, 0), "b": (0.4, 0)},
            ["cpu usage(70.00%)>threshold(50.00%)", "cpu usage(57.50%)>threshold(50.00%)"],
        ),
    ],
)
def test_a_reason_names_every_exceeded_resource_with_its_usage_before_the_move(
    usage: tuple[float, float], pods: dict[str, tuple[float, float]], reasons: list[str]
) -> None:
    nodes = [make_host("hot"), make_host("idle", cpu="100", memory="100Gi")]
    used = {name: to_usage(*of_pod) for name, of_pod in pods.items()}
    view = make_snapshot(
        nodes, [make_single_pod(name) for name in pods], {"hot": to_usage(*usage), "idle": to_usage(0, 0)}, used
    )
    moves = decide_once(view, make_config()).plan.moves
    assert [move.reason for move in moves] == [f"node is overutilized, node {reason}" for reason in reasons]


# Arguments


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
    view = make_snapshot(nodes, pods, usage, {p.key: to_usage(0.6, 0.5) for p in pods})
    assert sorted(list_moved_pods(decide_once(view, make_config(policy)))) == moved.split()


def test_a_paused_policy_plans_nothing_and_adds_a_note() -> None:
    assert list_moved_pods(decide_once(ONE_POD, make_config())) == ["p"]
    decision = decide_once(ONE_POD, make_config({"paused": True}))
    assert list_moved_pods(decision) == []
    assert "LowNodeLoad is paused, and with it all strategies" in decision.plan.notes


def test_more_nodes_than_number_of_nodes_must_be_underutilized() -> None:
    view = cluster({"hot": 3, "idle-1": 0.2, "idle-2": 0.2}, {"p": 1})
    assert list_moved_pods(decide_once(view, make_config({"numberOfNodes": 1}))) == ["p"]
    decision = decide_once(view, make_config({"numberOfNodes": 2}))
    assert list_moved_pods(decision) == []
    assert (
        state_of(decision).reason == "pool default: 2 nodes are underutilized, and numberOfNodes asks for more than 2"
    )


def test_without_node_fit_capacity_is_still_deducted() -> None:
    view = cluster({"hot": 7.5, "idle": 0.2}, {"p0": 0.8, "p1": 0.8, "p2": 0.8}, hot={"cpu": "8"})
    moves = decide_once(view, make_config({"nodeFit": False})).plan.moves
    # No target is chosen.
    assert [(move.pod, move.target) for move in moves] == [("default/p0", ""), ("default/p1", "")]


def test_resource_weights_decide_which_node_is_relieved_first() -> None:
    nodes = [
        *(make_host(name, cpu="10", memory="10Gi") for name in ("cpu-hot", "memory-hot")),
        make_host("idle", cpu="100"),
    ]
    usage = {"cpu-hot": to_usage(9, 1), "memory-hot": to_usage(1, 9), "idle": to_usage(0, 0)}
    pods = [make_single_pod("c", "cpu-hot"), make_single_pod("m", "memory-hot")]
    view = make_snapshot(nodes, pods, usage, {"c": to_usage(5, 0.5), "m": to_usage(0.5, 5)})
    assert list_moved_pods(decide_once(view, make_config({"resourceWeights": {"cpu": 10, "memory": 1}}))) == ["c", "m"]
    assert list_moved_pods(decide_once(view, make_config({"resourceWeights": {"cpu": 1, "memory": 10}}))) == ["m", "c"]


def test_each_node_belongs_to_one_pool_with_thresholds_and_targets_of_its_own() -> None:
    batch = {"name": "batch", "nodeSelector": {"matchLabels": {"pool": "batch"}}, **cpu(80, 95)}
    policy = cpu(20, 50, nodePools=[batch, {"name": "rest", "nodeSelector": {}}])
    kinds = load_classes(policy, dict.fromkeys("br", to_usage(70, 0)), b={"labels": {"pool": "batch"}})
    assert kinds == {"b": "underutilized", "r": "overutilized"}
    nodes = [make_host("b", labels={"pool": "batch"}), make_host("r")]
    view = make_snapshot(
        nodes, [make_pod_info("p", "r")], {"b": to_usage(0.1, 0), "r": to_usage(3, 0)}, {"p": to_usage(1.5, 0)}
    )
    assert list_moved_pods(decide_once(view, make_config(policy))) == [], "pods move only to nodes of their pool"


def test_pods_move_neither_off_nor_to_nodes_whose_usage_is_unknown() -> None:
    known = {"hot": to_usage(3, 1), "idle": to_usage(0.2, 1)}
    for unknown_node in ("hot", "idle"):
        usage = {name: used for name, used in known.items() if name != unknown_node}
        view = make_snapshot(ONE_POD.nodes.values(), [make_single_pod("p")], usage, {"p": to_usage(1.5, 1)})
        decision = decide_once(view, make_config())
        assert list_moved_pods(decision) == []
        state = state_of(decision, unknown_node)
        assert (state.kind, state.reason) == ("unknown", "no current usage of cpu, memory")


# Anomaly detection


def condition(timeout: str = "1m", abnormal: int = 5, normal: int = 3) -> dict[str, Any]:
    return {"timeout": timeout, "consecutiveAbnormalities": abnormal, "consecutiveNormalities": normal}


@pytest.mark.parametrize(
    ("usage", "anomaly", "expected"),
    [
        ("^^^^^^", condition(), "----AA"),
        ("^", condition("1m", 1, 1), "A"),
        ("^^^^.^^^^^", condition(), "---------A"),
        ("^^^^^..^...", condition(), "----AAAAAA-"),
        ("^^..", condition("10m", 2, 2), "-AA-"),
        # Plans avoid a node until it is normal again, although its anomaly has timed out.
        ("^^^^^^^^^^^^...", condition("20s", abnormal=3), "--AAAvvAAAvvvv-"),
        # Unknown usage resets the counts of consecutive rounds.
        ("^^ ^^^", condition(abnormal=3), "-----A"),
    ],
)
def test_consecutive_rounds_begin_and_end_an_anomaly_and_the_timeout_ends_it(
    usage: str, anomaly: dict[str, Any], expected: str
) -> None:
    """``^`` is a round above the threshold, ``.`` one below, ten seconds apart. After it, ``A`` is anomalous, ``v`` only avoided."""
    config = make_config({"anomalyCondition": anomaly}, intervalS=10)
    usages = [{} if sign == " " else {"n": to_usage(3 if sign == "^" else 1, 1)} for sign in usage]
    detectors = detectors_of("n", config, [make_snapshot([make_host("n")], [], known) for known in usages], 10)
    signs = [
        "A" if detector.is_anomalous else "v" if detector.is_avoided else "-" for detector in detectors if detector
    ]
    assert "".join(signs) == expected


def detectors_of(
    name: str, config: ResolvedConfig, views: Iterable[DeschedulerSnapshot], interval_s: float
) -> list[AnomalyDetector | None]:
    """The node's detector after a round on each of these snapshots."""
    durations, detectors = ReasonDurations(), []
    for i, view in enumerate(views):
        durations = decide(view, History(), durations, config, NOW_S + interval_s * i).decision.durations
        detectors.append(durations.detectors.get(name))
    return detectors


def test_pods_of_an_overutilized_node_move_once_it_is_anomalous() -> None:
    config, durations = make_config({"anomalyCondition": condition("1m", 3, 1)}), ReasonDurations()
    for i, reason in enumerate(("overutilized for 1 of 3", "overutilized for 2 of 3", "")):
        decision = decide(ONE_POD, History(), durations, config, NOW_S + 10 * i).decision
        durations, state = decision.durations, state_of(decision)
        assert (state.is_stuck, state.reason) == (False, f"{reason} consecutive rounds" if reason else "")
        assert list_moved_pods(decision) == ([] if reason else ["p"])
    dry_run = decide(ONE_POD, History(), ReasonDurations(), config, NOW_S, assume_lasting=True).decision
    assert list_moved_pods(dry_run) == ["p"]


def test_a_detector_expires_after_the_cache_timeout_but_not_between_two_rounds() -> None:
    no_usage = make_snapshot(ONE_POD.nodes.values(), [], {"idle": to_usage(0.2, 1)})
    for timeout, is_kept in (("30s", False), ("20m", True)):
        config = make_config({"detectorCacheTimeout": timeout})
        assert (detectors_of("hot", config, [ONE_POD, no_usage], 600)[-1] is not None) == is_kept
    config = make_config({"anomalyCondition": {"consecutiveAbnormalities": 5}}, intervalS=300)
    last = detectors_of("hot", config, [ONE_POD] * 5, 301)[-1]
    assert last is not None
    assert last.is_anomalous, "five rounds of five minutes count"


def test_limits_count_earlier_moves_whose_replacements_are_not_bound_yet() -> None:
    view = cluster({"hot": 39, "idle": 1}, {f"p{i}": 2 for i in range(4)}, size=40)
    bound: dict[str, Any] = {"replacement_node": "idle", "replacement_bound_at_s": NOW_S - 250}
    for replacement, moves in (({}, 1), (bound, 3)):
        pending = tuple(
            make_pending_move(
                f"default/old{i}", f"old{i}", f"default/Deployment/o{i}", planned_at_s=NOW_S - 300, **replacement
            )
            for i in range(2)
        )
        for limit in ("perNode", "perNamespace", "perRound"):
            decision = decide_once(view, make_config(limits={limit: 3}), history=History(pending_moves=pending))
            assert len(list_moved_pods(decision)) == moves


def world_of_planned_pods(**nodes_of: str) -> World:
    """Overutilized nodes with pods that plans of their groups placed, an idle node that takes one pod, and a large node."""
    world = World()
    for name, cores in (("hot1", "4"), ("hot2", "4"), ("idle", "4"), ("large", "40")):
        world.nodes[name] = make_host(name, cpu=cores)
    for name, on in nodes_of.items():
        group = {"metadata": {"name": name, "namespace": "default"}, "spec": {"numMembers": 1, "workloads": []}}
        world.network.on_group_change(f"default/{name}", None, msgspec.convert(group, AppGroup))
        labels = {"appgroup.diktyo.x-k8s.io": name, "appgroup.diktyo.x-k8s.io.workload": "w"}
        plan = {TARGET_ANNOTATION: f'{{"node": "{on}"}}'}
        priority = -10 if name == "first" else 0
        world.pods[f"default/{name}"] = make_single_pod(name, on, labels=labels, annotations=plan, priority=priority)
    return world


def usage_in(world: World) -> UsageView:
    nodes = {"hot1": to_usage(2.5, 1), "hot2": to_usage(2.5, 1), "idle": to_usage(0.5, 1), "large": to_usage(7, 1)}
    return UsageView(nodes, dict.fromkeys(world.pods, to_usage(1.2, 0.1)))


async def test_two_moves_of_one_round_do_not_use_the_same_capacity() -> None:
    """The plans of two groups have a pod each on the idle node; both pods would make it overutilized."""
    world = world_of_planned_pods(a="hot1", b="hot2")
    unconfirmed = decide(
        world.snapshot(usage_in(world)), History(), ReasonDurations(), make_config(), NOW_S, assume_lasting=True
    )
    assert list_moved_pods(unconfirmed.decision) == ["a", "b"]

    async def simulate_replacement(_group: str, _key: str, _seed: int) -> Target:
        return Target(node="idle")

    plan = (await unconfirmed.confirm(simulate_replacement)).plan
    assert [(m.pod, m.target) for m in plan.moves] == [("default/a", "idle")]
    (skip,) = plan.skips
    assert (skip.pod, skip.condition) == ("default/b", "planner")
    assert "cpu usage would exceed the high threshold" in skip.reason


@pytest.mark.parametrize("max_skips", [2000, 0])
async def test_a_pod_whose_move_the_planner_would_undo_backs_off_so_that_others_move(
    max_skips: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That pod is chosen first in each round."""
    monkeypatch.setattr("controller.descheduler.plan_builder.MAX_SKIPS", max_skips)
    world, simulated = world_of_planned_pods(first="hot1"), list[str]()
    world.pods["default/second"] = make_single_pod("second", "hot1")

    async def simulate_replacement(_group: str, key: str, _seed: int) -> Target:
        simulated.append(key)
        return Target(node="hot1")

    history, moves = History(), []
    for i in range(8):
        view = world.snapshot(usage_in(world))
        unconfirmed = decide(view, history, ReasonDurations(), make_config(), NOW_S + 60 * i, assume_lasting=True)
        decision = await unconfirmed.confirm(simulate_replacement)
        history = decision.history
        moves.append(list_moved_pods(decision))
    assert moves == [[], *[["second"]] * 4, [], *[["second"]] * 2]
    assert simulated == ["default/first"] * 2, "the planner is asked again after five minutes, then after ten"
