"""Where rollouts end: beside old pods that hold their room, all at once or one workload after the other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import msgspec
import pytest

from controller.cluster.costs import CostTable
from controller.cluster.graph import build_graph
from controller.cluster.hosts import host_of
from controller.cluster.pods import GroupPod, GroupPodSpec
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL, AppGroup
from controller.cluster.services import Service
from controller.scheduler.planner import GroupSnapshot
from controller.scheduler.rollout import OldPod, Rolled, Settled, roll_out
from controller.traffic.placed import GroupTraffic, crossing_of
from kubekit.wire import Node, ObjectMeta

WORKLOADS = [f"w{number:02d}" for number in range(11)]
CALLS = [("w00", called) for called in WORKLOADS[1:7]] + [("w01", called) for called in WORKLOADS[5:]]
HOSTS = {
    f"h{number}": host_of(
        msgspec.convert(
            {
                "metadata": {"name": f"h{number}", "labels": {"topology.kubernetes.io/zone": f"z{number}"}},
                "status": {"allocatable": {"cpu": "2", "memory": "8Gi", "pods": "110"}},
            },
            Node,
        )
    )
    for number in (1, 2, 3)
}
ASKS = {"cpu": 100, "pods": 1}
SPEC = msgspec.convert({"containers": [{"resources": {"requests": {"cpu": "100m"}}}]}, GroupPodSpec)


def group() -> AppGroup:
    def reference(name: str) -> dict[str, str]:
        return {"kind": "Deployment", "name": name, "selector": name}

    workloads = [
        {
            "workload": reference(name),
            "dependencies": [{"workload": reference(called), "minBandwidth": "8k"} for a, called in CALLS if a == name],
        }
        for name in WORKLOADS
    ]
    return msgspec.convert(
        {
            "metadata": {"name": "shop", "namespace": "shop", "annotations": {"netaware.io/spread": "zone"}},
            "spec": {"numMembers": 22, "topologySortingAlgorithm": "KahnSort", "workloads": workloads},
        },
        AppGroup,
    )


def near(name: str) -> Service:
    spec = {"selector": {"app": name}, "clusterIP": "10.0.0.1", "trafficDistribution": "PreferSameZone"}
    return msgspec.convert({"metadata": {"name": name, "namespace": "shop"}, "spec": spec}, Service)


def pod(name: str, workload: str, node: str = "") -> GroupPod:
    labels = {"app": workload, APPGROUP_LABEL: "shop", WORKLOAD_LABEL: workload}
    metadata = ObjectMeta(name=name, namespace="shop", labels=labels)
    return GroupPod(metadata=metadata, spec=msgspec.structs.replace(SPEC, node_name=node))


def start(others_cpu: int) -> GroupSnapshot:
    found = group()
    return GroupSnapshot(
        graph=build_graph(found.spec),
        pods=(),
        replicas={},
        costs=CostTable(),
        hosts=HOSTS,
        used={name: {"cpu": others_cpu} for name in HOSTS},
        group=found,
        services=[near(name) for name in WORKLOADS],
        measured=False,
    )


def rolled(surge: int = 1, unavailable: int = 0) -> list[Rolled]:
    """Two replicas of each, on the three hosts in turn."""
    nodes = [f"h{number % 3 + 1}" for number in range(22)]
    return [
        Rolled(
            workload,
            [pod(f"{workload}-{i}", workload) for i in range(2)],
            [OldPod(nodes.pop(), ASKS) for _ in range(2)],
            surge,
            unavailable,
        )
        for workload in WORKLOADS
    ]


def crossing(settled: Settled) -> float:
    """Share of the calls that leave their zone."""
    placed: Mapping[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for key, node in settled.nodes.items():
        placed[key.partition("/")[2].rpartition("-")[0]]["", HOSTS[node].location.zone] += 1
    traffic = GroupTraffic(dict.fromkeys(CALLS, 1.0), measured=True, near=frozenset(WORKLOADS))
    return crossing_of(traffic, placed) / len(CALLS)


@pytest.mark.parametrize("one_by_one", [True, False])
def test_with_room_for_a_second_copy_a_rollout_ends_as_planned(one_by_one: bool) -> None:
    hosts = {name: msgspec.structs.replace(h, allocatable={**h.allocatable, "cpu": 8000}) for name, h in HOSTS.items()}
    for settled in roll_out(
        msgspec.structs.replace(start(0), hosts=hosts), rolled(), one_by_one=one_by_one, draws=2, longest_s=600.0
    ):
        assert settled.unplaced == 0
        assert len(settled.nodes) == 22
        assert crossing(settled) == 0


def test_without_it_what_is_rolled_at_once_strays_and_one_after_the_other_does_not() -> None:
    (at_once,) = roll_out(start(400), rolled(), one_by_one=False, draws=1, longest_s=600.0)
    assert at_once.unplaced == 0
    assert crossing(at_once) > 0.05
    for settled in roll_out(start(400), rolled(), one_by_one=True, draws=2, longest_s=600.0):
        assert settled.unplaced == 0
        assert crossing(settled) == pytest.approx(0, abs=0.02)


def test_the_same_question_has_the_same_answer() -> None:
    first, second = (roll_out(start(400), rolled()[:4], one_by_one=False, draws=1, longest_s=600.0) for _ in range(2))
    assert first == second


def test_a_full_cluster_rolls_nothing_unless_old_pods_may_go_first() -> None:
    full = start(1300)
    # Eight of the old pods are on this one, seven on each of the others.
    full.used["h1"]["cpu"] = 1200
    (settled,) = roll_out(full, rolled(), one_by_one=True, draws=1, longest_s=600.0)
    assert settled.nodes == {}
    assert settled.unplaced == 22
    (settled,) = roll_out(full, rolled(surge=0, unavailable=1), one_by_one=True, draws=1, longest_s=600.0)
    assert settled.unplaced == 0


def test_a_workload_that_is_not_rolled_stays_and_others_come_to_it() -> None:
    standing = [pod("w00-a", "w00", "h3"), pod("w00-b", "w00", "h3")]
    question = msgspec.structs.replace(start(0), pods=standing, replicas={"w00": 2})
    question.used["h3"]["cpu"] = 200
    (settled,) = roll_out(question, rolled()[1:], one_by_one=True, draws=1, longest_s=600.0)
    assert settled.unplaced == 0
    assert not any("w00" in key for key in settled.nodes)
    zones = {HOSTS[settled.nodes[f"shop/w02-{i}"]].location.zone for i in range(2)}
    assert "z3" in zones


def test_what_takes_too_long_is_planned_at_once() -> None:
    found = roll_out(start(400), rolled(), one_by_one=False, longest_s=0.0)
    assert len(found) == 1
    assert found[0].unplaced == 0
    assert crossing(found[0]) == 0, "as though the old pods were gone"
