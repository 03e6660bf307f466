"""The leader, `simulate`, `simulate --offline` and the descheduler agree on the nodes where a pod may run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.cluster.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass
from controller.scheduler.placement.foreign_pods import find_foreign_pods
from tests.unit.controller.planners import HOST, NOISY, ZONE, Planners

WORKLOAD = {"appgroup.diktyo.x-k8s.io.workload": "P1"}


def term(labels: dict[str, str], key: str = ZONE, **more: Any) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": labels}, "topologyKey": key, **more}


def required(kind: str, *terms: Any) -> dict[str, Any]:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


NO_CONSTRAINTS: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("spec", "foreign", "zones"),
    [
        (required("podAntiAffinity", term(NOISY)), [("n00", NO_CONSTRAINTS), ("n02", NO_CONSTRAINTS)], {"z1"}),
        (required("podAffinity", term(NOISY)), [("n02", NO_CONSTRAINTS)], {"z2"}),
        (
            NO_CONSTRAINTS,
            [
                ("n00", required("podAntiAffinity", term(WORKLOAD))),
                ("n02", required("podAntiAffinity", term(WORKLOAD))),
                ("n01", NO_CONSTRAINTS),
                ("n04", NO_CONSTRAINTS),
            ],
            {"z1"},
        ),
        (required("podAffinity", term(NOISY)), [], set()),
        (required("podAntiAffinity", term(NOISY)), [(f"n0{i}", NO_CONSTRAINTS) for i in range(3)], set()),
    ],
)
async def test_required_affinity_with_foreign_pods_in_either_direction(
    spec: Any, foreign: Any, zones: set[str]
) -> None:
    cluster = Planners()
    for node, foreign_spec in foreign:
        cluster.add_foreign_pod(node, foreign_spec)
    assert await cluster.zones(spec) == zones


def container(cpu: str = "1", port: int = 0, **more: Any) -> dict[str, Any]:
    ports = [{"containerPort": port, "hostPort": port}] if port else []
    return {"name": f"c{cpu}", "resources": {"requests": {"cpu": cpu}}, "ports": ports, **more}


LOCAL = {"key": HOST, "operator": "In", "values": ["n04"]}
TWO_CPU = {"containers": [container("2")]}
ALL_BUT_N04 = [f"n0{i}" for i in (0, 1, 2, 3, 5)]


async def test_only_nodes_with_tolerated_taints_are_allowed() -> None:
    cluster = Planners()
    for name in ALL_BUT_N04:
        cluster.put_node(name, taints=[{"key": "own", "effect": "NoSchedule"}])
    cluster.put_node("n02", taints=[{"key": "tolerated", "effect": "NoExecute"}])
    cluster.put_node("n04", unschedulable=True)
    assert await cluster.zones({"tolerations": [{"key": "tolerated", "operator": "Exists"}]}) == {"z2"}


async def test_requests_of_a_sidecar_add_to_those_of_containers() -> None:
    cluster = Planners()
    for name in ALL_BUT_N04:
        cluster.add_foreign_pod(name, TWO_CPU)
    sidecar = container("1500m", restartPolicy="Always")
    assert await cluster.zones({"containers": [container()], "initContainers": [sidecar]}) == {"z1"}


@pytest.mark.parametrize("of_sidecar", [False, True])
async def test_a_host_port_is_used_once_per_node(*, of_sidecar: bool) -> None:
    cluster = Planners()
    with_port = container("100m", 80, restartPolicy="Always") if of_sidecar else container("100m", 80)
    for name in ALL_BUT_N04:
        cluster.add_foreign_pod(name, {"initContainers" if of_sidecar else "containers": [with_port]})
    assert await cluster.zones({"containers": [container(port=80)]}) == {"z1"}


async def test_a_bound_local_volume_allows_only_its_node() -> None:
    cluster = Planners()
    terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": [LOCAL]}]}}
    volume = {"metadata": {"name": "pv"}, "spec": {"nodeAffinity": terms, "storageClassName": "local"}}
    claim = {"metadata": {"name": "data", "namespace": "d"}, "spec": {"volumeName": "pv", "storageClassName": "local"}}
    cluster.add_volumes(
        msgspec.convert({"metadata": {"name": "local"}}, StorageClass),
        [msgspec.convert(claim, PersistentVolumeClaim)],
        [msgspec.convert(volume, PersistentVolume)],
    )
    mounted = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    assert await cluster.zones({"volumes": [mounted]}) == {"z1"}


async def test_pods_of_lower_priority_are_preempted_if_no_node_has_free_capacity() -> None:
    cluster = Planners()
    for name in (*ALL_BUT_N04, "n04"):
        cluster.add_foreign_pod(name, {"containers": [container("4")], "priority": -1 if name == "n04" else 0})
    assert await cluster.zones({"containers": [container()]}, preempting=True) == {"z1"}


async def test_foreign_pods_count_by_their_namespace() -> None:
    cluster = Planners()
    cluster.add_foreign_pod("n00", NO_CONSTRAINTS, "elsewhere")
    cluster.add_foreign_pod("n01", NO_CONSTRAINTS)
    assert "z1" not in await cluster.zones(
        required("podAntiAffinity", term(NOISY), term(NOISY, namespaces=["elsewhere"]))
    )


def test_a_foreign_pod_may_have_anti_affinity_to_one_pod_of_a_workload() -> None:
    cluster, index_label = Planners(), "apps.kubernetes.io/pod-index"
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {index_label: "0"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    cluster.add_foreign_pod("n00", {"affinity": affinity})
    for index in ("0", "1"):
        pod = cluster.add_pod("d/g", f"p{index}", "P1", 1)
        cluster.update_pod(pod.metadata.key, metadata={"labels": {**(pod.metadata.labels or {}), index_label: index}})
    (foreign,) = find_foreign_pods(cluster.node_cache, cluster.list_pods("d/g"))
    assert foreign.pods_by_node == {"n00": 1}
