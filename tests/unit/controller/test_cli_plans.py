"""`simulate -f` plans the pods of an AppGroup and its Deployments; `propose` compares such a plan with where the pods are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.cli.propose import PlacementComparison, compare_placements
from controller.cluster.costs import CostTable, Location
from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.traffic.graph import ObservedDependency, TrafficGraph, WorkloadId
from controller.traffic.proposals import Proposal, propose
from controller.traffic.workloads import Workloads
from kubekit.errors import ConfigError
from tests.unit.controller.commands import render_answer, run_command, write_group_file
from tests.unit.controller.components import (
    CONFIG_HEAD,
    NODES,
    PODS,
    make_body,
    make_cost_topology,
    make_group_body,
    make_node_body,
    make_pod_body,
    make_pod_spec,
    make_session,
    make_workload_body,
)

STATUS_WITH_4_CPUS = {"status": {"allocatable": {"cpu": "4", "pods": "110"}}}
NODES_WITH_4_CPUS = [{**body, **STATUS_WITH_4_CPUS} for body in NODES]
WORKLOADS = [f"w{number}" for number in range(8)]
REPLICAS = 2
POD_CPU = "100m"
LOCATIONS = {f"n{number}": Location("west", f"z{number}") for number in range(3)}


def make_deployment(name: str, *, replicas: int, cpu: str = "100m") -> dict[str, Any]:
    """A Deployment of a workload of the group."""
    labels = make_pod_body(name, "")["metadata"]["labels"]
    return make_workload_body("Deployment", name, labels, replicas, cpu=cpu, namespace="default")


def make_workload_objects(name: str, number: int, *, is_labelled: bool) -> list[dict[str, Any]]:
    """A Deployment with its Service and two pods, each in another zone."""
    labels = {"app": name, **({APPGROUP_LABEL: "shop", WORKLOAD_LABEL: name} if is_labelled else {})}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{name}-5d9f", "uid": name, "controller": True}
    metadata: dict[str, Any] = {"labels": {**labels, "pod-template-hash": "5d9f"}, "ownerReferences": [owner]}
    service_spec = {"selector": {"app": name}, "clusterIP": "10.0.0.1", "trafficDistribution": "PreferSameZone"}
    objects = [
        make_workload_body("Deployment", name, labels, REPLICAS, cpu=POD_CPU),
        make_body("Service", name, service_spec),
    ]
    for i in range(1, REPLICAS + 1):
        spec = {**make_pod_spec(POD_CPU), "nodeName": f"n{(number + i) % len(LOCATIONS)}"}
        objects.append({**make_body("Pod", f"{name}-5d9f-{i}", spec, **metadata), "status": {}})
    return objects


def make_cluster(node_cpu: str, *, is_labelled: bool) -> list[dict[str, Any]]:
    """Three nodes in three zones, all workloads, and an AppGroup of w0 alone."""
    status = {"allocatable": {"cpu": node_cpu, "memory": "8Gi", "pods": "110"}}
    objects = [{**make_node_body(name, location.zone), "status": status} for name, location in LOCATIONS.items()]
    for number, name in enumerate(WORKLOADS):
        objects += make_workload_objects(name, number, is_labelled=is_labelled)
    workload = {"workload": {"kind": "Deployment", "name": "w0", "selector": "w0"}}
    group_spec = {"numMembers": 1, "workloads": [workload]}
    return [*objects, make_body("AppGroup", "shop", group_spec, annotations={"netaware.io/spread": "zone"})]


async def compare_with_plan(
    node_cpu: str, *more_objects: dict[str, Any], is_labelled: bool = False
) -> tuple[Proposal, PlacementComparison]:
    """The proposed group of w0, which calls all others, and the comparison of its placement with a plan."""
    session = make_session(CONFIG_HEAD, *more_objects, *make_cluster(node_cpu, is_labelled=is_labelled))
    caller, *callees = (WorkloadId("shop", name, "Deployment") for name in WORKLOADS)
    calls = (ObservedDependency(caller, callee, bytes_per_s=1000.0, peak_bytes_per_s=1000.0) for callee in callees)
    workloads = Workloads.from_objects(await session.list_unfinished_pods(), LOCATIONS)
    snapshot = await session.read_snapshot(groups=True)
    (proposal,) = propose(TrafficGraph(tuple(calls), ()), workloads, snapshot.groups, "shop", CostTable())
    return proposal, await compare_placements(session, proposal, snapshot)


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
    session = make_session(CONFIG_HEAD, *NODES_WITH_4_CPUS, service, make_cost_topology({"UserDefined": 7}))

    plan = (await run_command(session, "simulate", "-f", path)).network_aware

    assert sorted(plan.zones_by_workload["a"]) == sorted(plan.zones_by_workload["b"]) == ["z1", "z2"]
    assert plan.violations == 0, "each caller has a replica in its own zone, which answers it"


async def test_simulate_shows_nodes_without_a_zone_by_name(tmp_path: Path) -> None:
    path = write_group_file(tmp_path, make_group_body())
    node_without_zone = {**make_node_body("bare", ""), **STATUS_WITH_4_CPUS}
    simulation = await run_command(make_session(CONFIG_HEAD, node_without_zone), "simulate", "-f", path)
    answer = render_answer(simulation, "simulate", "-f", path)
    assert "bare" in answer
    assert "does not fit" not in answer


async def test_propose_compares_the_placement_with_one_plan_of_the_whole_group() -> None:
    _, comparison = await compare_with_plan("16")
    current, planned = comparison.current, comparison.planned
    assert planned.latency_us < current.latency_us
    assert planned.zones_by_workload.keys() == current.zones_by_workload.keys() == set(planned.nodes_by_workload)
    assert {len(set(zones)) for zones in planned.zones_by_workload.values()} == {2}, "every workload is in two zones"
    assert current.unplaced == planned.unplaced == 0


async def test_labels_of_the_group_change_the_patches_of_a_proposal_but_not_its_comparison() -> None:
    proposal, comparison = await compare_with_plan("16")
    proposal_with_labels, comparison_with_labels = await compare_with_plan("16", is_labelled=True)
    assert len(proposal.patches) == len(WORKLOADS)
    assert len(proposal_with_labels.patches) == 0
    assert comparison_with_labels == comparison


async def test_a_statefulset_with_the_name_of_a_deployment_is_another_workload() -> None:
    _, comparison = await compare_with_plan("16")
    stateful_set = make_workload_body("StatefulSet", "w1", {"app": "w1"}, replicas=7)
    _, comparison_with_stateful_set = await compare_with_plan("16", stateful_set)
    assert comparison_with_stateful_set == comparison


async def test_propose_counts_pods_that_a_plan_cannot_place() -> None:
    _, comparison = await compare_with_plan("300m")
    capacity = 3 * len(LOCATIONS)  # 300m / 100m pods on each node
    assert comparison.planned.unplaced == REPLICAS * len(WORKLOADS) - capacity
