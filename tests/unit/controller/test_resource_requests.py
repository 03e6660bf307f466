"""Requests of pods, counted as kube-scheduler counts them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.cluster.pod_info import PodReader
from controller.cluster.pods import Container, Pod, PodSpec
from controller.cluster.resource_requests import requests_of
from kubekit.wire import ResourceRequirements
from tests.unit.controller.groups import make_lone_workload, make_waiting_pod, make_zone_node, plan_case


def make_container(cpu: str, **fields: Any) -> Container:
    return msgspec.convert({"resources": {"requests": {"cpu": cpu}}, **fields}, Container)


ONE_CPU = [make_container("1")]
SIDECAR = make_container("200m", restartPolicy="Always")
POD_LEVEL = ResourceRequirements(requests={"cpu": "700m", "memory": "1Ki", "example.com/gpu": "3"})


@pytest.mark.parametrize(
    ("spec", "millicores"),
    [
        pytest.param(PodSpec(containers=[*ONE_CPU, make_container("500m")]), 1500, id="containers add up"),
        pytest.param(PodSpec(containers=ONE_CPU, init_containers=[make_container("3")]), 3000, id="largest init"),
        pytest.param(PodSpec(containers=ONE_CPU, overhead={"cpu": "100m"}), 1100, id="overhead adds"),
        pytest.param(
            PodSpec(containers=ONE_CPU, init_containers=[SIDECAR, make_container("900m")]),
            1000 + 200,
            id="sidecar beside containers",
        ),
        pytest.param(
            PodSpec(containers=ONE_CPU, init_containers=[SIDECAR, make_container("2")]),
            2000 + 200,
            id="sidecar beside a larger init container",
        ),
        pytest.param(
            PodSpec(containers=ONE_CPU, resources=POD_LEVEL, overhead={"cpu": "1"}),
            700 + 1000,
            id="requests of the pod replace those of containers",
        ),
    ],
)
def test_cpu_of_a_pod(spec: PodSpec, millicores: int) -> None:
    requests = requests_of(spec)
    assert requests["cpu"] == millicores
    assert requests["pods"] == 1


def test_only_cpu_and_memory_of_a_whole_pod_count() -> None:
    spec = PodSpec(containers=ONE_CPU, resources=POD_LEVEL)
    assert requests_of(spec) == {"cpu": 700, "memory": 1024, "pods": 1}


@pytest.mark.parametrize(
    ("requested", "allocated", "in_use", "conditions", "cpu"),
    [
        pytest.param("1", None, None, [], 1, id="no resize"),
        pytest.param("1", "1", "2", [], 2, id="the node has not applied a shrink yet"),
        pytest.param("4", "2", "2", [], 4, id="a growth"),
        pytest.param("1", "3", "2", [], 3, id="more allocated than in use"),
        pytest.param("4", "2", "2", [{"status": "True", "reason": "Infeasible"}], 2, id="an infeasible growth"),
        pytest.param("4", "2", "2", [{"status": "True", "reason": "Deferred"}], 4, id="a deferred growth"),
    ],
)
def test_an_in_place_resize_counts_the_larger_of_old_and_new_requests(
    requested: str, allocated: str | None, in_use: str | None, conditions: list[dict[str, str]], cpu: int
) -> None:
    status: dict[str, Any] = {"name": "c"}
    if allocated:
        status["allocatedResources"] = {"cpu": allocated}
    if in_use:
        status["resources"] = {"requests": {"cpu": in_use}}
    resize_conditions = [{"type": "PodResizePending", **condition} for condition in conditions]
    body = {
        "metadata": {"name": "p", "namespace": "d"},
        "spec": {"nodeName": "a", "containers": [{"name": "c", "resources": {"requests": {"cpu": requested}}}]},
        "status": {"containerStatuses": [status], "conditions": resize_conditions},
    }
    pod, reader = msgspec.convert(body, Pod), PodReader()
    assert requests_of(pod.spec, pod.status)["cpu"] == cpu * 1000

    # The reader may keep what it read before the status changed.
    pod_without_status = msgspec.convert({**body, "status": {}}, Pod)
    assert reader.read(pod_without_status).requests["cpu"] == int(requested) * 1000
    assert reader.read(pod).requests["cpu"] == cpu * 1000


@pytest.mark.parametrize(("restart_policy", "is_counted"), [("Always", True), (None, False)])
def test_host_ports_of_sidecars_count_and_of_init_containers_do_not(
    restart_policy: str | None, is_counted: bool
) -> None:
    """`test_planners` has a host port of another pod's sidecar."""
    ports = [{"containerPort": 9100, "hostPort": 9100}]
    init_container = {"name": "i", "restartPolicy": restart_policy, "ports": ports}
    spec: dict[str, Any] = {"containers": [{"name": "c"}], "initContainers": [init_container]}
    pods = [make_waiting_pod(f"w0-{i}", "w0", **spec) for i in range(2)]
    plan = plan_case(make_lone_workload(2), [make_zone_node("b", "z0")], pods=pods)
    assert len(plan.unplaced) == is_counted
