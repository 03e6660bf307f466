"""What a group's plan reads from the cluster, and after which changes the group is planned again."""

from __future__ import annotations

from collections.abc import Callable, Set

import msgspec
import pytest

from controller.cluster.crds import APPGROUP_LABEL
from controller.cluster.pods import GATE
from controller.cluster.volumes import PersistentVolume, PersistentVolumeClaim
from controller.scheduler.config import AllocatableArgs
from tests.unit.controller.planning_cluster import PlanningCluster, make_cluster_with_one_pod

OTHER_PODS = {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {APPGROUP_LABEL: "other"}}}
AWAY_FROM_OTHERS = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [OTHER_PODS]}}
CLAIM = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
OTHER_GATE = {"name": "kueue.x-k8s.io/admission"}
ALL_NODES = {"n00", "n01", "n02"}


def bind_volume(cluster: PlanningCluster, _: str) -> None:
    """Bind the claim of d/a to a volume of zone z2, where n02 is."""
    expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z2"]}
    reach = {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}
    volume = msgspec.convert({"metadata": {"name": "pv"}, "spec": reach}, PersistentVolume)
    cluster.volumes.on_volume_change("pv", None, volume)
    body = {"metadata": {"name": "data", "namespace": "d"}, "spec": {"volumeName": "pv"}}
    cluster.volumes.on_claim_change("d/data", None, msgspec.convert(body, PersistentVolumeClaim))


def avoid_node(cluster: PlanningCluster, node: str) -> None:
    cluster.node_cache.set_avoided_nodes(frozenset({node}))


def bind_other_pod(cluster: PlanningCluster, node: str) -> None:
    """Bind a pod that d/a must not share a zone with."""
    cluster.add_pod("d/other", "noisy", "P1", 1)
    cluster.bind_and_count("d/noisy", node)
    cluster.now_s += 60


def open_other_gate(cluster: PlanningCluster, _: str) -> None:
    cluster.update_pod("d/b", spec={"schedulingGates": [{"name": GATE}]})


def make_full_cluster(*priorities: int) -> PlanningCluster:
    """Each node is full of four pods of its priority; a group with two pods of priority 10 waits."""
    cluster = PlanningCluster(len(priorities), 4)
    for i, priority in enumerate(priorities):
        for k in range(4):
            name = f"other-{i}-{k}"
            cluster.add_pod("d/others", name, "", 1)
            cluster.update_pod(f"d/{name}", spec={"priority": priority})
            cluster.bind_and_count(f"d/{name}", f"n0{i}")
    cluster.add_group("d/g", 2)
    for name, workload in (("p1", "P1"), ("p2", "P2")):
        cluster.add_pod("d/g", name, workload, 1)
        cluster.update_pod(f"d/{name}", spec={"priority": 10})
    return cluster


@pytest.mark.parametrize(
    ("change", "nodes_of_a"),
    [
        pytest.param(bind_volume, lambda _: {"n02"}, id="a volume is bound"),
        pytest.param(avoid_node, lambda node: ALL_NODES - {node}, id="its node is hot"),
        pytest.param(bind_other_pod, lambda node: ALL_NODES - {node}, id="a foreign pod excludes its node"),
        pytest.param(open_other_gate, lambda node: {node}, id="the other gate of another pod opens"),
    ],
)
async def test_a_group_is_planned_again_when_inputs_of_its_plan_change(
    change: Callable[[PlanningCluster, str], None], nodes_of_a: Callable[[str], Set[str]]
) -> None:
    cluster = make_cluster_with_one_pod()
    cluster.add_pod("d/g1", "b", "P1", 1)
    cluster.update_pod("d/a", spec={"volumes": [CLAIM], "affinity": AWAY_FROM_OTHERS})
    cluster.update_pod("d/b", spec={"schedulingGates": [{"name": GATE}, OTHER_GATE], "affinity": AWAY_FROM_OTHERS})
    old_nodes = await cluster.plan_nodes("d/g1")
    assert not cluster.request_plan("d/g1").is_pending
    assert old_nodes.keys() == {"d/a"}

    change(cluster, old_nodes["d/a"])
    assert cluster.request_plan("d/g1").is_pending
    new_nodes = await cluster.plan_nodes("d/g1")
    assert new_nodes["d/a"] in nodes_of_a(old_nodes["d/a"])
    assert ("d/b" in new_nodes) == (change is open_other_gate)


async def test_a_plan_with_unplaced_pods_is_made_again_only_after_resources_were_freed() -> None:
    cluster = make_cluster_with_one_pod(hosts=1, cpu=3)
    cluster.add_group("d/g2", 1)
    cluster.add_pod("d/g2", "other", "P1", 3)
    cluster.bind_and_count("d/other", "n00")
    assert await cluster.plan_nodes("d/g1") == {}
    cluster.now_s += 600
    assert not cluster.request_plan("d/g1").is_pending
    cluster.delete_pod("d/other")
    assert cluster.request_plan("d/g1").is_pending


async def test_constraints_of_waiting_pods_count_beside_bound_pods_of_another_template() -> None:
    """d/new must not share n00's zone with d/noisy, and fits beside d/old, which has no constraint."""
    cluster = make_cluster_with_one_pod(hosts=2, cpu=3)
    cluster.bind_and_count("d/a", "n01")
    cluster.add_pod("d/other", "noisy", "P1", 1)
    cluster.bind_and_count("d/noisy", "n00")
    cluster.add_pod("d/g1", "new", "P1", 1)
    cluster.update_pod("d/new", spec={"affinity": AWAY_FROM_OTHERS})
    assert (await cluster.plan_nodes("d/g1"))["d/new"] == "n01"


@pytest.mark.parametrize(("weight", "nodes"), [(0, {"small", "large"}), (1, {"small"})])
async def test_small_pods_leave_the_large_node_free_with_an_allocatable_weight(weight: int, nodes: set[str]) -> None:
    cluster = PlanningCluster(0, 10)
    cluster.state.allocatable_args = AllocatableArgs(weight=weight)
    for cluster.cpu, name in ((10, "small"), (200, "large")):
        cluster.add_node(name, "z0")
    cluster.add_group("d/g", 6)
    for i in range(6):
        cluster.add_pod("d/g", f"p{i}", "P1" if i % 2 else "P2", 1)
    assert set((await cluster.plan_nodes("d/g")).values()) == nodes


async def test_a_group_is_planned_onto_pods_of_lower_priority_as_a_last_resort() -> None:
    cluster = make_full_cluster(0, 100, 100)
    assert await cluster.plan_nodes("d/g") == {"d/p1": "n00", "d/p2": "n00"}
    plan_state = cluster.request_plan("d/g")
    assert plan_state.awaiting_rollout == frozenset(), "no pod is evicted for a gated one"
    assert not plan_state.is_pending


async def test_a_group_with_a_pod_that_never_preempts_is_not_planned_onto_other_pods() -> None:
    cluster = make_full_cluster(0, 100, 100)
    cluster.update_pod("d/p1", spec={"preemptionPolicy": "Never"})
    await cluster.plans.make_plan("d/g")
    assert cluster.last_plan("d/g").unplaced == ("d/p1", "d/p2")
