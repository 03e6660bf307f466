"""Commands use the running controller's configuration, AppGroups, costs and nodes; `propose` compares a plan with the present."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import AsyncMock

import pytest

from controller.cli.plan_inputs import build_state
from controller.cli.propose import PlacementComparison, compare_placements
from controller.cli.session import Session
from controller.cluster.costs import CostTable, Location
from controller.cluster.crds import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.diagnosis.facts import build_facts
from controller.scheduler.config import SchedulerConfig
from controller.traffic.graph import ObservedDependency, TrafficGraph, WorkloadId
from controller.traffic.proposals import Proposal, propose
from controller.traffic.workloads import Workloads
from kubekit.errors import ApiError, ConfigError
from tests.unit.controller.components import (
    CONFIG_HEAD,
    HOME,
    NODES,
    make_group_body,
    make_node_body,
    make_pod_body,
    make_session,
    make_topology_body,
)
from tests.unit.controller.test_cli_output import parse_command, print_answer

APPGROUPS = "appgroup.diktyo.x-k8s.io/v1alpha1"
Json = dict[str, Any]
CUSTOM_CONFIG = (
    CONFIG_HEAD
    + """
topology: {costPolicy: {unitUs: 250}}
scheduler:
  schedulerNames: [mine]
  gates: {maxWaitS: 300}
  networkOverhead: {weightsName: Mine, networkTopologyName: ours}
"""
)
COSTS = make_topology_body({"Mine": 7, "UserDefined": 2}, name="ours", namespace=HOME)
OTHER = make_topology_body({"UserDefined": 3})
NODES_WITH_4_CPUS = [{**body, "status": {"allocatable": {"cpu": "4", "pods": "110"}}} for body in NODES]


async def run_command(session: Session, *argv: str) -> Any:
    command, options = parse_command(*argv)
    return await command.run(session, options)


def write_group_file(folder: Any, *objects: Any) -> str:
    """Write an AppGroup and other objects to a file; returns its path."""
    file = folder / "group.json"
    file.write_text(json.dumps([{**body, "apiVersion": body.get("apiVersion") or APPGROUPS} for body in objects]))
    return str(file)


async def test_a_snapshot_has_the_settings_of_the_running_controller() -> None:
    session = make_session(CUSTOM_CONFIG, *NODES)
    snapshot = await session.read_snapshot()
    assert session.read_errors == {}
    facts = build_facts(await session.read_snapshot(everything=True))
    scheduler_args = snapshot.scheduler.network_overhead_args
    assert (scheduler_args.weights_name, scheduler_args.network_topology_name) == ("Mine", "ours")
    assert snapshot.policy.unit_us == 250
    assert (facts.max_gate_wait_s, facts.scheduler_names) == (300, ("mine",))


@pytest.mark.parametrize("config", [None, CONFIG_HEAD + "unheard: of\n"])
async def test_an_unreadable_configuration_is_noted_and_defaults_are_used(config: str | None) -> None:
    session = make_session(config, *NODES)
    snapshot = await session.read_snapshot()
    assert snapshot.scheduler == SchedulerConfig()
    assert "defaults are used" in session.read_errors["configuration"]


async def test_a_configuration_that_may_not_be_read_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    session = make_session(CUSTOM_CONFIG, *NODES)
    monkeypatch.setattr(session.client, "get", AsyncMock(side_effect=ApiError(403, "Forbidden", "not yours")))
    assert (await session.read_configuration()).scheduler == SchedulerConfig()
    assert session.read_errors == {"configuration": "not allowed to read it; defaults are used"}


async def test_all_commands_use_the_networktopology_and_weights_of_the_scheduler(tmp_path: Any) -> None:
    objects = (*NODES, COSTS, OTHER, make_group_body(max_cost=5), make_pod_body("a", "n1"), make_pod_body("b", "n2"))
    file = write_group_file(tmp_path, make_group_body(max_cost=5))
    session = make_session(CUSTOM_CONFIG, *objects)
    network = (await run_command(session, "costs")).network
    assert (network.is_unused, session.notes) == (False, [])
    (group_view,) = await run_command(session, "graph")
    assert [(edge.cost, edge.verdict) for edge in group_view.dependencies] == [(7, "violated")]
    simulation = await run_command(session, "simulate", "-f", file)
    explanation = (await run_command(session, "explain", "pod", "a-n1")).explanation
    for answer in (network, simulation, explanation):
        assert (answer.topology, answer.weight_name) == (f"{HOME}/ours", "Mine")


def make_pod_spec(cpu: str) -> Json:
    return {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}


def make_manifest(kind: str, name: str, spec: Json, *, namespace: str = "shop", **metadata: Any) -> Json:
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace, **metadata}, "spec": spec}


def make_controller(
    kind: str, name: str, labels: Json, replicas: int, *, cpu: str = "100m", namespace: str = "shop"
) -> Json:
    template = {"metadata": {"labels": {**labels, "app": name}}, "spec": make_pod_spec(cpu)}
    spec = {"replicas": replicas, "template": template}
    return {"apiVersion": "apps/v1", **make_manifest(kind, name, spec, namespace=namespace)}


def make_deployment(name: str, *, replicas: int, cpu: str = "100m") -> Json:
    """A Deployment of a workload of the group."""
    labels = make_pod_body(name, "")["metadata"]["labels"]
    return make_controller("Deployment", name, labels, replicas, cpu=cpu, namespace="default")


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([{"kind": []}], "holds 0 AppGroups"),
        ([{"kind": "Deployment", "metadata": [1]}], r"Deployment \?: "),
        ([make_group_body("default"), make_deployment("a", replicas=2_000_000_000)], "at most 10000 are planned"),
    ],
)
async def test_malformed_or_too_large_groups_are_usage_errors(objects: list[Json], message: str, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        await run_command(make_session(CONFIG_HEAD, *NODES), "simulate", "-f", write_group_file(tmp_path, *objects))


async def test_null_replicas_are_one_and_quantities_may_be_numbers(tmp_path: Any) -> None:
    deployment = make_deployment("a", replicas=0)
    deployment["spec"]["replicas"] = None
    deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = 1
    file = write_group_file(tmp_path, make_group_body(), deployment)
    assert (await run_command(make_session(CONFIG_HEAD, *NODES_WITH_4_CPUS), "simulate", "-f", file)).replicas == 3


async def test_simulate_ignores_resources_of_the_groups_own_pods_in_any_namespace(tmp_path: Any) -> None:
    app_group = make_group_body("default")
    file = write_group_file(tmp_path, app_group, *(make_deployment(name, replicas=1, cpu="3") for name in "ab"))
    pods = [make_pod_body(name, on, namespace="shop") for name, on in (("a", "n1"), ("b", "n2"))]
    for body in pods:
        body["spec"] |= make_pod_spec("3")
    session = make_session(CONFIG_HEAD, *NODES_WITH_4_CPUS, app_group, *pods, namespace="default")
    simulation = await run_command(session, "simulate", "-f", file)
    assert simulation.network_aware.unplaced == simulation.default_scheduler.unplaced == 0


async def test_simulate_uses_the_spread_annotation_and_the_services_traffic_distribution(tmp_path: Any) -> None:
    app_group = make_group_body("default")
    app_group["metadata"]["annotations"] = {"netaware.io/spread": "zone"}
    file = write_group_file(tmp_path, app_group, *(make_deployment(name, replicas=2) for name in "ab"))
    spec = {"selector": {"app": "b"}, "clusterIP": "10.0.0.1", "trafficDistribution": "PreferClose"}
    service = make_manifest("Service", "b", spec, namespace="default")
    session = make_session(CONFIG_HEAD, *NODES_WITH_4_CPUS, service, make_topology_body({"UserDefined": 7}))
    plan = (await run_command(session, "simulate", "-f", file)).network_aware
    assert sorted(plan.zones_by_workload["a"]) == sorted(plan.zones_by_workload["b"]) == ["z1", "z2"]
    assert plan.violations == 0, "each caller has a replica in its own zone, which answers it"


async def test_simulate_shows_nodes_without_a_zone_by_name(tmp_path: Any) -> None:
    file = write_group_file(tmp_path, make_group_body())
    bare_node = {**make_node_body("bare", ""), "status": {"allocatable": {"cpu": "4", "pods": "110"}}}
    simulation = await run_command(make_session(CONFIG_HEAD, bare_node), "simulate", "-f", file)
    text = print_answer(simulation, "simulate", "-f", file)
    assert ("bare" in text, "does not fit" in text) == (True, False), text


OTHER_TOPOLOGIES = (
    make_topology_body({"UserDefined": 7}, name="other", namespace="a"),
    make_topology_body(name="another", namespace="b"),
)
PARITY = CONFIG_HEAD + "scheduler: {parity: upstream}\n"


@pytest.mark.parametrize(
    ("config", "topologies"),
    [
        pytest.param(CONFIG_HEAD, (make_topology_body({"Mine": 7}),), id="another weight"),
        pytest.param(CONFIG_HEAD, OTHER_TOPOLOGIES, id="other names"),
        pytest.param(PARITY, (make_topology_body({"NetperfCosts": 7}, namespace=HOME),), id="parity"),
    ],
)
async def test_plans_use_only_the_schedulers_costs_and_views_mark_unused_ones(
    config: str, topologies: tuple[dict[str, Any], ...], tmp_path: Any
) -> None:
    file = write_group_file(tmp_path, make_group_body())
    session = make_session(config, *NODES, *topologies)
    costs = build_state(await session.read_snapshot()).costs("x")
    simulation = await run_command(session, "simulate", "-f", file)
    session.notes.clear()
    network = (await run_command(session, "costs")).network
    assert costs.weight_name == ""
    assert (simulation.topology or "", simulation.weight_name or "") == (costs.topology_key, costs.weight_name)
    assert network.weight_name is not None
    assert network.is_unused
    assert any("the scheduler does not use" in note for note in session.notes)


WORKLOADS = [f"w{number}" for number in range(8)]
LOCATIONS = {f"n{number}": Location("west", f"z{number}") for number in range(3)}


def make_workload_objects(name: str, number: int, *, is_labelled: bool) -> list[Json]:
    """A Deployment with its Service and two pods, each in another zone."""
    labels = {"app": name, **({APPGROUP_LABEL: "shop", WORKLOAD_LABEL: name} if is_labelled else {})}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{name}-5d9f", "uid": name, "controller": True}
    metadata: Json = {"labels": {**labels, "pod-template-hash": "5d9f"}, "ownerReferences": [owner]}
    pods = []
    for i in (1, 2):
        spec = {**make_pod_spec("100m"), "nodeName": f"n{(number + i) % 3}"}
        pods.append({**make_manifest("Pod", f"{name}-5d9f-{i}", spec, **metadata), "status": {}})
    service_spec = {"selector": {"app": name}, "clusterIP": "10.0.0.1", "trafficDistribution": "PreferSameZone"}
    return [make_controller("Deployment", name, labels, 2), make_manifest("Service", name, service_spec), *pods]


async def compare_with_plan(
    cpu: str, *more_objects: Json, is_labelled: bool = False
) -> tuple[Proposal, PlacementComparison]:
    """The proposed group of w0, which calls all others, on three nodes in three zones, and its comparison with a plan."""
    status = {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}}
    nodes = [{**make_node_body(name, zone), "status": status} for name, (_, zone) in LOCATIONS.items()]
    objects = [
        body
        for number, name in enumerate(WORKLOADS)
        for body in make_workload_objects(name, number, is_labelled=is_labelled)
    ]
    caller, *callees = (WorkloadId("shop", name, "Deployment") for name in WORKLOADS)
    calls = (ObservedDependency(caller, callee, bytes_per_s=1000.0, peak_bytes_per_s=1000.0) for callee in callees)
    workload = {"workload": {"kind": "Deployment", "name": "w0", "selector": "w0"}}
    annotations = {"netaware.io/spread": "zone"}
    app_group = make_manifest("AppGroup", "shop", {"numMembers": 1, "workloads": [workload]}, annotations=annotations)
    session = make_session(CONFIG_HEAD, *nodes, *more_objects, *objects, app_group)
    workloads = Workloads.from_objects(await session.list_unfinished_pods(), LOCATIONS)
    snapshot, graph = await session.read_snapshot(groups=True), TrafficGraph(tuple(calls), ())
    (proposal,) = propose(graph, workloads, snapshot.groups, "shop", CostTable())
    return proposal, await compare_placements(session, proposal, snapshot)


async def test_propose_compares_the_placement_with_one_plan_of_the_whole_group() -> None:
    proposal, comparison = await compare_with_plan("16")
    proposal_with_labels, comparison_with_labels = await compare_with_plan("16", is_labelled=True)
    assert (len(proposal.patches), len(proposal_with_labels.patches)) == (len(WORKLOADS), 0)
    assert comparison_with_labels == comparison
    current, planned = comparison.current, comparison.planned
    assert planned.latency_us < current.latency_us
    assert planned.zones_by_workload.keys() == current.zones_by_workload.keys() == set(planned.nodes_by_workload)
    assert {len(set(zones)) for zones in planned.zones_by_workload.values()} == {2}
    assert (current.unplaced, planned.unplaced) == (0, 0)
    stateful_set = make_controller("StatefulSet", "w1", {"app": "w1"}, 7)
    _, comparison_with_stateful_set = await compare_with_plan("16", stateful_set)
    assert comparison_with_stateful_set == comparison, "a StatefulSet with a Deployment's name is another workload"


async def test_propose_counts_pods_that_a_plan_cannot_place() -> None:
    _, comparison = await compare_with_plan("300m")
    assert comparison.planned.unplaced == 2 * len(WORKLOADS) - 9
