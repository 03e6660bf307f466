"""`kubectl netaware simulate -f` plans the pods of an AppGroup and its Deployments, which need not exist yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kubekit.errors import ConfigError
from tests.unit.controller.commands import print_answer, run_command, write_group_file
from tests.unit.controller.components import (
    CONFIG_HEAD,
    NODES,
    PODS,
    make_body,
    make_group_body,
    make_node_body,
    make_pod_body,
    make_pod_spec,
    make_session,
    make_topology_body,
    make_workload_body,
)

STATUS_WITH_4_CPUS = {"status": {"allocatable": {"cpu": "4", "pods": "110"}}}
NODES_WITH_4_CPUS = [{**body, **STATUS_WITH_4_CPUS} for body in NODES]


def make_deployment(name: str, *, replicas: int, cpu: str = "100m") -> dict[str, Any]:
    """A Deployment of a workload of the group."""
    labels = make_pod_body(name, "")["metadata"]["labels"]
    return make_workload_body("Deployment", name, labels, replicas, cpu=cpu, namespace="default")


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([{"kind": []}], "holds 0 AppGroups"),
        ([{"kind": "Deployment", "metadata": [1]}], r"Deployment \?: "),
        ([make_group_body("default"), make_deployment("a", replicas=2_000_000_000)], "at most 10000 are planned"),
    ],
)
async def test_malformed_or_too_large_groups_are_usage_errors(
    objects: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    path = write_group_file(tmp_path, *objects)
    with pytest.raises(ConfigError, match=message):
        await run_command(make_session(CONFIG_HEAD, *NODES), "simulate", "-f", path)


async def test_null_replicas_are_one_and_quantities_may_be_numbers(tmp_path: Path) -> None:
    deployment = make_deployment("a", replicas=0)
    deployment["spec"]["replicas"] = None
    deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = 1
    path = write_group_file(tmp_path, make_group_body(), deployment)
    simulation = await run_command(make_session(CONFIG_HEAD, *NODES_WITH_4_CPUS), "simulate", "-f", path)
    assert simulation.replicas == 3, "one of a, and one each of b and c, which have no Deployment"


async def test_simulate_ignores_resources_of_the_groups_own_pods_in_any_namespace(tmp_path: Path) -> None:
    """Each node has 4 CPUs, of which a present pod and a planned one request 3 each."""
    app_group = make_group_body("default")
    path = write_group_file(tmp_path, app_group, *(make_deployment(name, replicas=1, cpu="3") for name in "ab"))
    pods = [{**body, "spec": {**body["spec"], **make_pod_spec("3")}} for body in PODS]
    session = make_session(CONFIG_HEAD, *NODES_WITH_4_CPUS, app_group, *pods, namespace="default")

    simulation = await run_command(session, "simulate", "-f", path)

    assert simulation.network_aware.unplaced == simulation.default_scheduler.unplaced == 0


async def test_simulate_uses_the_spread_annotation_and_the_services_traffic_distribution(tmp_path: Path) -> None:
    app_group = make_group_body("default")
    app_group["metadata"]["annotations"] = {"netaware.io/spread": "zone"}
    path = write_group_file(tmp_path, app_group, *(make_deployment(name, replicas=2) for name in "ab"))
    service_spec = {"selector": {"app": "b"}, "clusterIP": "10.0.0.1", "trafficDistribution": "PreferClose"}
    service = make_body("Service", "b", service_spec, namespace="default")
    session = make_session(CONFIG_HEAD, *NODES_WITH_4_CPUS, service, make_topology_body({"UserDefined": 7}))

    plan = (await run_command(session, "simulate", "-f", path)).network_aware

    assert sorted(plan.zones_by_workload["a"]) == sorted(plan.zones_by_workload["b"]) == ["z1", "z2"]
    assert plan.violations == 0, "each caller has a replica in its own zone, which answers it"


async def test_simulate_shows_nodes_without_a_zone_by_name(tmp_path: Path) -> None:
    path = write_group_file(tmp_path, make_group_body())
    node_without_zone = {**make_node_body("bare", ""), **STATUS_WITH_4_CPUS}
    simulation = await run_command(make_session(CONFIG_HEAD, node_without_zone), "simulate", "-f", path)
    answer = print_answer(simulation, "simulate", "-f", path)
    assert "bare" in answer
    assert "does not fit" not in answer
