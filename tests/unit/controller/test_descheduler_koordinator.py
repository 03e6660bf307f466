"""koordinator's unit cases of LowNodeLoad: their inputs, with the number of evictions there and here.

Source: koordinator-sh/koordinator a7a1b76b, pkg/descheduler/framework/plugins/loadaware (low_node_load_test.go,
utilization_util_test.go), Apache License 2.0. If the numbers differ, the case says why, and docs/descheduling.md explains it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pytest

from tests.support.descheduler_builders import (
    Host,
    PodInfo,
    decide_once,
    list_moved_pods,
    make_config,
    make_host,
    make_pod_info,
    make_snapshot,
)

SAME, PODS_ARE_NO_LOAD = "", "the number of pods has no thresholds here"
LOCAL = [{"name": "sample", "hostPath": {"path": "p"}, "emptyDir": {}}]
WEST = {"datacenter": "west"}
WEST_TERM = [{"matchExpressions": [{"key": "datacenter", "operator": "In", "values": ["west"]}]}]
WEST_AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": WEST_TERM}}}


def evictable_pod(name: str, on: str = "n1", **more: Any) -> PodInfo:
    """A pod of a ReplicaSet that asks for 400 millicores."""
    return make_pod_info(name, on, **{"cpu": "400m", "owner": "ReplicaSet/replicaset-1", **more})


def daemonset_pod(name: str, **more: Any) -> PodInfo:
    return evictable_pod(name, **{"owner": "DaemonSet/daemonset-1", **more})


def mirror_pod(name: str, **more: Any) -> PodInfo:
    annotations = {"kubernetes.io/config.mirror": "mirror"}
    return evictable_pod(name, **{"owner": "Pod/pod", "annotations": annotations, "spec": {"volumes": LOCAL}, **more})


def critical_pod(name: str, **more: Any) -> PodInfo:
    return evictable_pod(name, **{"owner": "", "namespace": "kube-system", "priority": 2_000_000_000, **more})


N1 = make_host("n1", memory="3000", pods="9")
NODES = [N1, make_host("n2", memory="3000", pods="10"), make_host("n3", memory="3000", pods="10", unschedulable=True)]
N1_AND_EAST = [N1, make_host("n2", memory="3000", pods="10", labels={"datacenter": "east"})]
NOT_EVICTABLE = [daemonset_pod("p6"), mirror_pod("p7"), critical_pod("p8")]
EVICTABLE = [evictable_pod(f"p{i}") for i in range(1, 6)]
ON_N2 = evictable_pod("p9", "n2")


def with_high_priority(names: Iterable[str], **more: Any) -> list[PodInfo]:
    return [evictable_pod(name, priority=10_000, **more) for name in names]


class Case(NamedTuple):
    """A unit case of koordinator.

    Attributes:
        theirs: number of pods that koordinator evicts.
        ours: number of pods that netaware evicts.
        reason: reason of a difference.
        low, high: thresholds, percent of cpu; koordinator's case has the same for pods.
        only: names of the pods that may be evicted; empty for any.
    """

    name: str
    pods: list[PodInfo]
    theirs: int
    ours: int
    reason: str = SAME
    nodes: list[Host] = NODES
    low: int = 30
    high: int = 50
    args: Mapping[str, Any] = {}
    limits: Mapping[str, int] = {}
    only: frozenset[str] = frozenset()


CASES = [
    Case(
        "no evictable pods",
        [*(daemonset_pod(f"p{i}") for i in range(1, 5)), mirror_pod("p5"), critical_pod("p6"), ON_N2],
        0,
        0,
    ),
    Case("without priorities", [*EVICTABLE, *NOT_EVICTABLE, ON_N2], 4, 3, PODS_ARE_NO_LOAD),
    Case(
        "without priorities, but excluding namespaces",
        [*(evictable_pod(f"p{i}", owner="", namespace="namespace1") for i in range(1, 6)), *NOT_EVICTABLE, ON_N2],
        0,
        0,
        args={"evictableNamespaces": {"exclude": ["namespace1"]}},
    ),
    Case(
        "without priorities, but include only default namespace",
        [
            *EVICTABLE[:2],
            *(evictable_pod(f"p{i}", owner="", namespace=f"namespace{i}") for i in range(3, 6)),
            *NOT_EVICTABLE,
            ON_N2,
        ],
        2,
        2,
        args={"evictableNamespaces": {"include": ["default"]}},
    ),
    Case(
        "without priorities stop when memory capacity is depleted",
        [
            *(evictable_pod(f"p{i}", memory="300") for i in range(1, 6)),
            daemonset_pod("p6", memory="300"),
            mirror_pod("p7", memory="300"),
            critical_pod("p8", memory="300"),
            evictable_pod("p9", "n2", memory="2100"),
        ],
        3,
        3,
    ),
    Case(
        "with priorities",
        [
            *with_high_priority(("p1", "p2", "p3", "p4")),
            evictable_pod("p5"),
            daemonset_pod("p6", priority=10_000),
            *NOT_EVICTABLE[1:],
            ON_N2,
        ],
        4,
        3,
        PODS_ARE_NO_LOAD,
    ),
    Case(
        "without priorities evicting best-effort pods only",
        [
            *(evictable_pod(name, cpu="", qos="BestEffort") for name in ("p1", "p2", "p4", "p5")),
            evictable_pod("p3"),
            *NOT_EVICTABLE,
            ON_N2,
        ],
        4,
        0,
        PODS_ARE_NO_LOAD + "; their best-effort pods use nothing, and n1 is at 40 % of cpu",
    ),
    Case(
        "without priorities, but only other node is unschedulable",
        [*EVICTABLE, *NOT_EVICTABLE],
        0,
        0,
        nodes=[N1, make_host("n2", memory="3000", pods="10", unschedulable=True)],
    ),
    Case(
        "without priorities, but only other node doesn't match pod node selector for p4 and p5",
        [
            *EVICTABLE[:3],
            *(evictable_pod(f"p{i}", owner="Pod/pod", spec={"nodeSelector": WEST}) for i in (4, 5)),
            *NOT_EVICTABLE,
        ],
        3,
        3,
        nodes=N1_AND_EAST,
        only=frozenset({"p1", "p2", "p3"}),
    ),
    Case(
        "without priorities, but only other node doesn't match pod node affinity for p4 and p5",
        [
            *EVICTABLE[:3],
            *(evictable_pod(f"p{i}", owner="Pod/pod", spec={"affinity": WEST_AFFINITY}) for i in (4, 5)),
            *NOT_EVICTABLE,
            evictable_pod("p9", "n2", cpu=""),
        ],
        3,
        3,
        nodes=N1_AND_EAST,
        only=frozenset({"p1", "p2", "p3"}),
    ),
    Case(
        "deviation thresholds",
        [*EVICTABLE, *NOT_EVICTABLE, ON_N2],
        2,
        2,
        low=5,
        high=5,
        args={"useDeviationThresholds": True},
    ),
    Case("maxPodsToEvictTotal", [*EVICTABLE, *NOT_EVICTABLE, ON_N2], 1, 1, limits={"perRound": 1}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_as_many_pods_move_as_in_koordinator_unless_the_case_says_why_not(case: Case) -> None:
    assert bool(case.reason) is (case.ours != case.theirs)
    usage: dict[str, dict[str, float]] = {host.name: {"cpu": 0.0} for host in case.nodes}
    pods: dict[str, dict[str, float]] = {}
    for info in case.pods:
        # koordinator's tests use a pod's requests as its usage.
        pods[info.key] = {"cpu": float(info.requests.get("cpu", 0))}
        usage[info.node]["cpu"] += pods[info.key]["cpu"]
    policy = {"lowThresholds": {"cpu": case.low}, "highThresholds": {"cpu": case.high}, **case.args}
    config = make_config(policy, limits=case.limits)
    moved = list_moved_pods(decide_once(make_snapshot(case.nodes, case.pods, usage, pods), config))
    assert len(moved) == case.ours
    assert set(moved) <= (case.only or set(moved))
