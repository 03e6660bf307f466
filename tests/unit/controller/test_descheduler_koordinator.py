"""koordinator's unit cases of LowNodeLoad: their inputs, with the number of evictions there and here.

Source: koordinator-sh/koordinator a7a1b76b, pkg/descheduler/framework/plugins/loadaware (low_node_load_test.go,
utilization_util_test.go), Apache License 2.0. If the numbers differ, the case says why, and docs/descheduling.md explains it.
"""

from __future__ import annotations

from collections.abc import Mapping
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


class Case(NamedTuple):
    """A unit case of koordinator.

    Attributes:
        evicted_by_koordinator, moved: number of pods.
        reason: reason of a difference.
        nodes: by default `NODES`.
        low_percent, high_percent: thresholds of cpu; koordinator's case has the same for pods.
        allowed: names of the pods that may be evicted; empty for any.
    """

    name: str
    pods: list[PodInfo]
    evicted_by_koordinator: int
    moved: int
    reason: str = SAME
    nodes: list[Host] | None = None
    low_percent: int = 30
    high_percent: int = 50
    args: Mapping[str, Any] = {}
    limits: Mapping[str, int] = {}
    allowed: frozenset[str] = frozenset()


def make_evictable_pod(name: str, node_name: str = "n1", **fields: Any) -> PodInfo:
    """A pod of a ReplicaSet that asks for 400 millicores."""
    return make_pod_info(name, node_name, **{"cpu": "400m", "owner": "ReplicaSet/replicaset-1", **fields})


def make_daemonset_pod(name: str, **fields: Any) -> PodInfo:
    return make_evictable_pod(name, **{"owner": "DaemonSet/daemonset-1", **fields})


def make_mirror_pod(name: str, **fields: Any) -> PodInfo:
    annotations = {"kubernetes.io/config.mirror": "mirror"}
    return make_evictable_pod(
        name, **{"owner": "Pod/pod", "annotations": annotations, "spec": {"volumes": LOCAL}, **fields}
    )


def make_critical_pod(name: str, **fields: Any) -> PodInfo:
    return make_evictable_pod(name, **{"owner": "", "namespace": "kube-system", "priority": 2_000_000_000, **fields})


N1 = make_host("n1", memory="3000", pods="9")
NODES = [N1, make_host("n2", memory="3000", pods="10"), make_host("n3", memory="3000", pods="10", unschedulable=True)]
N1_AND_EAST = [N1, make_host("n2", memory="3000", pods="10", labels={"datacenter": "east"})]
NOT_EVICTABLE = [make_daemonset_pod("p6"), make_mirror_pod("p7"), make_critical_pod("p8")]
EVICTABLE = [make_evictable_pod(f"p{i}") for i in range(1, 6)]
ON_N2 = make_evictable_pod("p9", "n2")
CASES = [
    Case(
        "no evictable pods",
        [*(make_daemonset_pod(f"p{i}") for i in range(1, 5)), make_mirror_pod("p5"), make_critical_pod("p6"), ON_N2],
        0,
        0,
    ),
    Case("without priorities", [*EVICTABLE, *NOT_EVICTABLE, ON_N2], 4, 3, PODS_ARE_NO_LOAD),
    Case(
        "without priorities, but excluding namespaces",
        [*(make_evictable_pod(f"p{i}", owner="", namespace="namespace1") for i in range(1, 6)), *NOT_EVICTABLE, ON_N2],
        0,
        0,
        args={"evictableNamespaces": {"exclude": ["namespace1"]}},
    ),
    Case(
        "without priorities, but include only default namespace",
        [
            *EVICTABLE[:2],
            *(make_evictable_pod(f"p{i}", owner="", namespace=f"namespace{i}") for i in range(3, 6)),
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
            *(make_evictable_pod(f"p{i}", memory="300") for i in range(1, 6)),
            make_daemonset_pod("p6", memory="300"),
            make_mirror_pod("p7", memory="300"),
            make_critical_pod("p8", memory="300"),
            make_evictable_pod("p9", "n2", memory="2100"),
        ],
        3,
        3,
    ),
    Case(
        "with priorities",
        [
            *(make_evictable_pod(name, priority=10_000) for name in ("p1", "p2", "p3", "p4")),
            make_evictable_pod("p5"),
            make_daemonset_pod("p6", priority=10_000),
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
            *(make_evictable_pod(name, cpu="", qos="BestEffort") for name in ("p1", "p2", "p4", "p5")),
            make_evictable_pod("p3"),
            *NOT_EVICTABLE,
            ON_N2,
        ],
        4,
        0,
        PODS_ARE_NO_LOAD + "; koordinator's best-effort pods use nothing, and n1 is at 40 % of cpu",
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
            *(make_evictable_pod(f"p{i}", owner="Pod/pod", spec={"nodeSelector": WEST}) for i in (4, 5)),
            *NOT_EVICTABLE,
        ],
        3,
        3,
        nodes=N1_AND_EAST,
        allowed=frozenset({"p1", "p2", "p3"}),
    ),
    Case(
        "without priorities, but only other node doesn't match pod node affinity for p4 and p5",
        [
            *EVICTABLE[:3],
            *(make_evictable_pod(f"p{i}", owner="Pod/pod", spec={"affinity": WEST_AFFINITY}) for i in (4, 5)),
            *NOT_EVICTABLE,
            make_evictable_pod("p9", "n2", cpu=""),
        ],
        3,
        3,
        nodes=N1_AND_EAST,
        allowed=frozenset({"p1", "p2", "p3"}),
    ),
    Case(
        "deviation thresholds",
        [*EVICTABLE, *NOT_EVICTABLE, ON_N2],
        2,
        2,
        low_percent=5,
        high_percent=5,
        args={"useDeviationThresholds": True},
    ),
    Case("maxPodsToEvictTotal", [*EVICTABLE, *NOT_EVICTABLE, ON_N2], 1, 1, limits={"perRound": 1}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_as_many_pods_move_as_in_koordinator_unless_the_case_says_why_not(case: Case) -> None:
    assert bool(case.reason) is (case.moved != case.evicted_by_koordinator)
    nodes = case.nodes or NODES
    node_usage: dict[str, dict[str, float]] = {host.name: {"cpu": 0.0} for host in nodes}
    pod_usage: dict[str, dict[str, float]] = {}
    for pod in case.pods:
        # koordinator's tests use a pod's requests as its usage.
        pod_usage[pod.key] = {"cpu": float(pod.requests.get("cpu", 0))}
        node_usage[pod.node]["cpu"] += pod_usage[pod.key]["cpu"]
    policy = {"lowThresholds": {"cpu": case.low_percent}, "highThresholds": {"cpu": case.high_percent}, **case.args}
    config = make_config(policy, limits=case.limits)

    moved_pods = list_moved_pods(decide_once(make_snapshot(nodes, case.pods, node_usage, pod_usage), config))

    assert len(moved_pods) == case.moved
    assert set(moved_pods) <= (case.allowed or set(moved_pods))
