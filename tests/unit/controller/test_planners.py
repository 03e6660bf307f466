"""The leader, `simulate`, `simulate --offline` and the descheduler agree on the nodes where a pod may run."""

from __future__ import annotations

from typing import Any

import pytest

from controller.scheduler.placement.foreign_pods import find_foreign_pods
from tests.unit.controller.planners import HOST, NOISY, ZONE, Planners

P1_PODS = {"appgroup.diktyo.x-k8s.io.workload": "P1"}
NO_CONSTRAINTS: dict[str, Any] = {}
ALL_NODES_BUT_N04 = [f"n0{i}" for i in (0, 1, 2, 3, 5)]
INDEX_LABEL = "apps.kubernetes.io/pod-index"


def make_term(labels: dict[str, str], key: str = ZONE, **more: Any) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": labels}, "topologyKey": key, **more}


def make_required_affinity(kind: str, *terms: Any) -> dict[str, Any]:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def make_container(cpu: str = "1", port: int = 0, **more: Any) -> dict[str, Any]:
    ports = [{"containerPort": port, "hostPort": port}] if port else []
    return {"name": f"c{cpu}", "resources": {"requests": {"cpu": cpu}}, "ports": ports, **more}


AWAY_FROM_NOISY = make_required_affinity("podAntiAffinity", make_term(NOISY))
NEAR_NOISY = make_required_affinity("podAffinity", make_term(NOISY))
AWAY_FROM_P1 = make_required_affinity("podAntiAffinity", make_term(P1_PODS))


@pytest.mark.parametrize(
    ("spec", "foreign_specs", "zones"),
    [
        pytest.param(AWAY_FROM_NOISY, {"n00": NO_CONSTRAINTS, "n02": NO_CONSTRAINTS}, {"z1"}, id="away from two zones"),
        pytest.param(AWAY_FROM_NOISY, dict.fromkeys(("n00", "n01", "n02"), NO_CONSTRAINTS), set(), id="away from all zones"),
        pytest.param(NEAR_NOISY, {"n02": NO_CONSTRAINTS}, {"z2"}, id="near a pod"),
        pytest.param(NEAR_NOISY, {}, set(), id="near no pod"),
        pytest.param(NO_CONSTRAINTS, {"n00": AWAY_FROM_P1, "n02": AWAY_FROM_P1, "n01": NO_CONSTRAINTS}, {"z1"}, id="foreign pods away from it"),
    ],
)  # fmt: skip
async def test_required_affinity_with_foreign_pods_in_either_direction(
    spec: dict[str, Any], foreign_specs: dict[str, dict[str, Any]], zones: set[str]
) -> None:
    cluster = Planners()
    for node, foreign_spec in foreign_specs.items():
        cluster.add_foreign_pod(node, foreign_spec)
    assert await cluster.find_zones(spec) == zones


async def test_only_nodes_with_tolerated_taints_are_allowed() -> None:
    cluster = Planners()
    for name in ALL_NODES_BUT_N04:
        cluster.put_node(name, taints=[{"key": "own", "effect": "NoSchedule"}])
    cluster.put_node("n02", taints=[{"key": "tolerated", "effect": "NoExecute"}])
    cluster.put_node("n04", unschedulable=True)
    assert await cluster.find_zones({"tolerations": [{"key": "tolerated", "operator": "Exists"}]}) == {"z2"}


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [make_container("100m", 80)]},
        {"initContainers": [make_container("100m", 80, restartPolicy="Always")]},
    ],
    ids=["container", "sidecar"],
)
async def test_a_host_port_is_used_once_per_node(spec: dict[str, Any]) -> None:
    cluster = Planners()
    for name in ALL_NODES_BUT_N04:
        cluster.add_foreign_pod(name, spec)
    assert await cluster.find_zones({"containers": [make_container(port=80)]}) == {"z1"}


async def test_pods_of_lower_priority_are_preempted_if_no_node_has_free_capacity() -> None:
    cluster = Planners()
    for name in (*ALL_NODES_BUT_N04, "n04"):
        cluster.add_foreign_pod(name, {"containers": [make_container("4")], "priority": -1 if name == "n04" else 0})
    assert await cluster.find_zones({"containers": [make_container()]}, is_preempting=True) == {"z1"}


async def test_foreign_pods_count_by_their_namespace() -> None:
    cluster = Planners()
    cluster.add_foreign_pod("n00", NO_CONSTRAINTS, "elsewhere")
    cluster.add_foreign_pod("n01", NO_CONSTRAINTS)
    terms = make_term(NOISY), make_term(NOISY, namespaces=["elsewhere"])
    assert await cluster.find_zones(make_required_affinity("podAntiAffinity", *terms)) == {"z2"}


def test_a_foreign_pod_may_have_anti_affinity_to_one_pod_of_a_workload() -> None:
    cluster = Planners()
    cluster.add_foreign_pod("n00", make_required_affinity("podAntiAffinity", make_term({INDEX_LABEL: "0"}, HOST)))
    for index in ("0", "1"):
        pod = cluster.add_pod("d/g", f"p{index}", "P1", 1)
        cluster.update_pod(pod.metadata.key, metadata={"labels": {**(pod.metadata.labels or {}), INDEX_LABEL: index}})
    (foreign,) = find_foreign_pods(cluster.node_cache, cluster.list_pods("d/g"))
    assert foreign.pods_by_node == {"n00": 1}
