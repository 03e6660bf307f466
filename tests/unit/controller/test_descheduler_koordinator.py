"""koordinator's own unit cases of LowNodeLoad beside ours: their inputs and outcomes as facts, ours as what runs.

Source: koordinator-sh/koordinator a7a1b76b, pkg/descheduler/framework/plugins/loadaware (low_node_load_test.go,
utilization_util_test.go), Apache License 2.0. Where ours differs, the row says why, and docs/descheduling.md explains it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pytest

from tests.support.descheduled import Host, PodInfo, moved, node, once, pod, settings, snapshot

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
        [*(free(name, cpu="", qos="BestEffort") for name in ("p1", "p2", "p4", "p5")), free("p3"), *STAY, ON_N2],
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
def test_the_same_number_of_pods_moves_as_in_koordinator_but_for_named_reasons(case: Case) -> None:
    assert bool(case.why) is (case.ours != case.theirs)
    nodes = case.nodes or three()
    usage: dict[str, dict[str, float]] = {one.name: {"cpu": 0.0} for one in nodes}
    pods: dict[str, dict[str, float]] = {}
    for one in case.pods:
        # Their test takes what a pod asks for as what it uses.
        pods[one.key] = {"cpu": float(one.requests.get("cpu", 0))}
        usage[one.node]["cpu"] += pods[one.key]["cpu"]
    policy = {"lowThresholds": {"cpu": case.low}, "highThresholds": {"cpu": case.high}, **case.args}
    rules = settings(policy, limits=case.limits)
    found = moved(once(snapshot(nodes, case.pods, usage, pods), rules))
    assert len(found) == case.ours
    assert set(found) <= (case.only or set(found))
