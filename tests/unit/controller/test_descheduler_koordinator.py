"""koordinator's own unit cases of LowNodeLoad beside ours: their inputs and outcomes as facts, ours as what runs.

Source: koordinator-sh/koordinator a7a1b76b, pkg/descheduler/framework/plugins/loadaware (low_node_load_test.go,
utilization_util_test.go), Apache License 2.0. Where ours differs, the row says why, and docs/descheduling.md explains it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import pytest

from controller.cluster.hosts import Host
from controller.cluster.pod_info import PodInfo
from controller.descheduler.args import Anomaly
from controller.descheduler.classify import Detector, describe_overload, mark
from controller.descheduler.config import DeschedulerConfig
from controller.descheduler.usage import percents, weighted_percent
from kubekit.errors import ConfigError
from tests.unit.controller.descheduling import GI, moved, node, once, pod, settings, snapshot

SAME, PODS_ARE_NO_LOAD = "", "the number of pods is no load here: requests keep it, thresholds do not"
LOCAL = [{"name": "sample", "hostPath": {"path": "p"}, "emptyDir": {}}]
WEST = {"datacenter": "west"}
WEST_TERM = [{"matchExpressions": [{"key": "datacenter", "operator": "In", "values": ["west"]}]}]
WEST_AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": WEST_TERM}}}


def free(name: str, on: str = "n1", **more: Any) -> PodInfo:
    """A pod of a ReplicaSet that asks for 400 millicores."""
    return pod(name, on, **{"cpu": "400m", "owner": "ReplicaSet/replicaset-1", **more})


def tied(name: str, **more: Any) -> PodInfo:
    return free(name, **{"owner": "DaemonSet/daemonset-1", **more})


def mirror(name: str, **more: Any) -> PodInfo:
    annotations = {"kubernetes.io/config.mirror": "mirror"}
    return free(name, **{"owner": "Pod/pod", "annotations": annotations, "spec": {"volumes": LOCAL}, **more})


def critical(name: str, **more: Any) -> PodInfo:
    return free(name, **{"owner": "", "namespace": "kube-system", "priority": 2_000_000_000, **more})


def three(*, third: bool = True) -> list[Host]:
    found = [node("n1", memory="3000", pods="9"), node("n2", memory="3000", pods="10")]
    return [*found, node("n3", memory="3000", pods="10", unschedulable=True)] if third else found


def east() -> list[Host]:
    return [three()[0], node("n2", memory="3000", pods="10", labels={"datacenter": "east"})]


STAY = [tied("p6"), mirror("p7"), critical("p8")]
FIVE = [free(f"p{i}") for i in range(1, 6)]
ON_N2 = free("p9", "n2")


def high(names: Iterable[str], **more: Any) -> list[PodInfo]:
    return [free(name, priority=10_000, **more) for name in names]


def best_effort(name: str) -> PodInfo:
    return free(name, cpu="", qos="BestEffort")


class Case(NamedTuple):
    """One of theirs.

    Attributes:
        theirs: pods that koordinator evicts.
        ours: pods that we evict; None where the arguments are refused by name.
        why: of a difference.
        low, high: percent of cpu, beside which theirs give the same percent of pods.
    """

    name: str
    pods: list[PodInfo]
    theirs: int
    ours: int | None
    why: str = SAME
    nodes: list[Host] | None = None
    low: int = 30
    high: int = 50
    args: Mapping[str, Any] = {}
    limits: Mapping[str, int] = {}
    only: frozenset[str] = frozenset()


CASES = [
    Case(
        "no evictable pods",
        [*(tied(f"p{i}") for i in range(1, 5)), mirror("p5"), critical("p6"), ON_N2],
        0,
        0,
    ),
    Case("without priorities", [*FIVE, *STAY, ON_N2], 4, 3, PODS_ARE_NO_LOAD),
    Case(
        "without priorities, but excluding namespaces",
        [*(free(f"p{i}", owner="", namespace="namespace1") for i in range(1, 6)), *STAY, ON_N2],
        0,
        0,
        args={"evictableNamespaces": {"exclude": ["namespace1"]}},
    ),
    Case(
        "without priorities, but include only default namespace",
        [*FIVE[:2], *(free(f"p{i}", owner="", namespace=f"namespace{i}") for i in range(3, 6)), *STAY, ON_N2],
        2,
        2,
        args={"evictableNamespaces": {"include": ["default"]}},
    ),
    Case(
        "without priorities stop when memory capacity is depleted",
        [
            *(free(f"p{i}", memory="300") for i in range(1, 6)),
            tied("p6", memory="300"),
            mirror("p7", memory="300"),
            critical("p8", memory="300"),
            free("p9", "n2", memory="2100"),
        ],
        3,
        3,
    ),
    Case(
        "with priorities",
        [*high(("p1", "p2", "p3", "p4")), free("p5"), tied("p6", priority=10_000), *STAY[1:], ON_N2],
        4,
        3,
        PODS_ARE_NO_LOAD,
    ),
    Case(
        "without priorities evicting best-effort pods only",
        [*map(best_effort, ("p1", "p2", "p4", "p5")), free("p3"), *STAY, ON_N2],
        4,
        0,
        PODS_ARE_NO_LOAD + "; their best-effort pods use nothing, and n1 is at 40 % of cpu",
    ),
    Case(
        "without priorities, but only other node is unschedulable",
        [*FIVE, *STAY],
        0,
        0,
        nodes=[three()[0], node("n2", memory="3000", pods="10", unschedulable=True)],
    ),
    Case(
        "without priorities, but only other node doesn't match pod node selector for p4 and p5",
        [*FIVE[:3], *(free(f"p{i}", owner="Pod/pod", spec={"nodeSelector": WEST}) for i in (4, 5)), *STAY],
        3,
        3,
        nodes=east(),
        only=frozenset({"p1", "p2", "p3"}),
    ),
    Case(
        "without priorities, but only other node doesn't match pod node affinity for p4 and p5",
        [
            *FIVE[:3],
            *(free(f"p{i}", owner="Pod/pod", spec={"affinity": WEST_AFFINITY}) for i in (4, 5)),
            *STAY,
            free("p9", "n2", cpu=""),
        ],
        3,
        3,
        nodes=east(),
        only=frozenset({"p1", "p2", "p3"}),
    ),
    Case("deviation thresholds", [*FIVE, *STAY, ON_N2], 2, 2, low=5, high=5, args={"useDeviationThresholds": True}),
    Case("maxPodsToEvictTotal", [*FIVE, *STAY, ON_N2], 1, 1, limits={"perRound": 1}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ours_beside_theirs(case: Case) -> None:
    assert bool(case.why) is (case.ours != case.theirs)
    nodes = case.nodes or three()
    usage: dict[str, dict[str, float]] = {one.name: {"cpu": 0.0} for one in nodes}
    pods: dict[str, dict[str, float]] = {}
    for one in case.pods:
        # Their test takes what a pod asks for as what it uses.
        pods[one.key] = {"cpu": float(one.requests.get("cpu", 0))}
        usage[one.node]["cpu"] += pods[one.key]["cpu"]
    policy = {"lowThresholds": {"cpu": case.low}, "highThresholds": {"cpu": case.high}, **case.args}
    rules = settings(policy, limits={"leastChancePercent": 80, **case.limits})
    found = moved(once(snapshot(nodes, case.pods, usage, pods), rules))
    assert len(found) == case.ours
    assert set(found) <= (case.only or set(found))


REFUSED = [
    ("with extended resource", {"lowThresholds": {"example.com/foo": 30}, "highThresholds": {"example.com/foo": 50}}),
    ("with extended resource in some of nodes", {"lowThresholds": {"pods": 30}, "highThresholds": {"pods": 50}}),
    ("node && prod thresholds, node under thresholds, but prod over thresholds", {"prodHighThresholds": {"cpu": 40}}),
    ("both node and prod usage is higher than thresholds, only node usage will be evicted", {"prodLowThresholds": {}}),
    ("support reschedule prod pod only", {"prodHighThresholds": {"cpu": 50}}),
    (
        "both low resource used by high node, prod pods don`t have enough resource to rebalance",
        {"prodLowThresholds": {}},
    ),
    ("node is always appropriately for node usage, prod pod rebalance successful", {"prodLowThresholds": {"cpu": 10}}),
    ("stop prod pod eviction when the node recovers to normal.", {"prodHighThresholds": {"cpu": 70}}),
]
"""Thresholds of pods that carry koordinator's priority class, and of what is no cpu, memory or bandwidth."""


@pytest.mark.parametrize(("name", "args"), REFUSED, ids=[name for name, _ in REFUSED])
def test_what_has_no_counterpart_here_is_refused_by_name(name: str, args: dict[str, Any]) -> None:
    field = next(iter(args))
    with pytest.raises(ConfigError) as refusal:
        msgspec.convert({"policy": {"nodePools": [{"name": name, **args}]}}, DeschedulerConfig).compiled()
    assert field in refusal.value.field


@pytest.mark.parametrize(
    ("used", "want"),
    [
        ((64, 32), "node is overutilized, node cpu usage(66.67%)>threshold(50.00%)"),
        (
            (64, 400),
            "node is overutilized, node cpu usage(66.67%)>threshold(50.00%), node memory usage(78.12%)>threshold(50.00%)",
        ),
    ],
)
def test_the_reason_of_an_eviction(used: tuple[int, int], want: str) -> None:
    share = percents(
        {"cpu": used[0] * 1000.0, "memory": used[1] * float(GI)}, {"cpu": 96_000, "memory": 512 * float(GI)}
    )
    limits = {"cpu": 50.0, "memory": 50.0}
    assert describe_overload(share, limits, [r for r in share if share[r] > limits[r]]) == want


@pytest.mark.parametrize(
    ("abnormal", "marks", "theirs", "ours"),
    [(1, 1, True, True), (2, 1, False, False), (2, 3, True, True)],
)
def test_rounds_in_a_row_that_make_a_node_hot(*, abnormal: int, marks: int, theirs: bool, ours: bool) -> None:
    detector = Detector()
    for i in range(marks):
        detector = mark(detector, over=True, condition=Anomaly(60, abnormal, 1), now=float(i))
    assert detector.hot is ours is theirs


@pytest.mark.parametrize(("marks", "theirs", "ours"), [(2, True, False), (3, False, False)])
def test_two_normal_rounds_end_it_where_theirs_take_a_third(*, marks: int, theirs: bool, ours: bool) -> None:
    """Deliberate difference 9: two consecutive normalities mean two."""
    condition = Anomaly(600, 2, 2)
    detector = Detector()
    for i in range(2):
        detector = mark(detector, over=True, condition=condition, now=float(i))
    for i in range(marks):
        detector = mark(detector, over=False, condition=condition, now=10.0 + i)
    assert detector.hot is ours
    assert (theirs != ours) is (marks == 2)


def test_percentages_of_allocatable_and_the_order_of_nodes() -> None:
    used = {"cpu": 1220.0, "memory": 3038982964.0}
    share = percents(used, {"cpu": 1930, "memory": 3287692 * 1024})
    assert (int(share["cpu"]), int(share["memory"])) == (63, 90)
    allocatable = {"cpu": 32_000.0, "memory": 32.0 * GI}
    loads = {
        "node1": {"cpu": 1730.0, "memory": 3038982964.0},
        "node2": {"cpu": 1220.0, "memory": 3038982964.0},
        "node3": {"cpu": 1530.0, "memory": 5038982964.0},
    }
    weights = {"cpu": 1, "memory": 1}
    order = sorted(loads, key=lambda n: weighted_percent(percents(loads[n], allocatable), weights), reverse=True)
    assert order == ["node3", "node1", "node2"]


def test_of_pods_on_a_node_whose_cpu_alone_is_exceeded_those_that_use_most_cpu_go_first() -> None:
    """Theirs: pod4, pod2, pod3, pod1. 10 cores have to leave, so that no pod suffices alone until 2 are left to go."""
    cores = {"pod1": 1000.0, "pod2": 3000.0, "pod3": 2000.0, "pod4": 4000.0}
    pods = [pod(name, "node0", owner=f"ReplicaSet/{name}") for name in cores]
    nodes = [node("node0", cpu="32", memory="32Gi"), node("idle", cpu="32", memory="32Gi")]
    usage = {"node0": {"cpu": 30_000.0}, "idle": {"cpu": 0.0}}
    view = snapshot(nodes, pods, usage, {name: {"cpu": amount} for name, amount in cores.items()})
    rules = settings({"lowThresholds": {"cpu": 30}, "highThresholds": {"cpu": 62.5}})
    found = moved(once(view, rules))
    assert found[:2] == ["pod4", "pod2"]
    assert sorted(found) == sorted(cores)


def test_a_pod_that_matches_a_node_and_would_exceed_its_threshold_does_not_fit() -> None:
    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "type", "operator": "In", "values": ["A"]}]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    pods = [pod("test-pod-1", "hot", spec={"affinity": affinity})]
    nodes = [node("hot"), node("test-node-1", labels={"type": "A"})]
    for used, goes in ((1500.0, []), (1000.0, ["test-pod-1"])):
        usage = {"hot": {"cpu": 3000.0}, "test-node-1": {"cpu": 1000.0}}
        view = snapshot(nodes, pods, usage, {"test-pod-1": {"cpu": used}})
        rules = settings({"lowThresholds": {"cpu": 30}, "highThresholds": {"cpu": 50}})
        assert moved(once(view, rules)) == goes
