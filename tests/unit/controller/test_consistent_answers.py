"""The scheduler, an AppGroup's status, the bandwidth account, commands and the page give the same answers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.appgroups import reconciler
from controller.cli.cluster_file import ClusterFile
from controller.cli.diagnose import diagnose_listed_pod
from controller.cli.offline import plan_offline
from controller.cli.plan_inputs import build_inputs
from controller.cluster.costs import Location
from controller.cluster.crds import WORKLOAD_LABEL, AppGroup, NetworkTopology
from controller.cluster.pod_info import PodReader
from controller.cluster.pods import GATE, Pod
from controller.cluster.services import Service
from controller.cluster.statuses import delay_after_failed_write
from controller.cluster.volumes import Volumes
from controller.diagnosis.control_plane import ControlPlaneStatus
from controller.diagnosis.diagnose import diagnose
from controller.diagnosis.facts import Facts, build_facts
from controller.scheduler.config import Parity, SchedulerConfig
from controller.scheduler.explain import explain
from controller.scheduler.placement.planner import plan_group
from kubekit.errors import ApiError
from kubekit.wire import Node, parse_time
from netperf.latencies import LATENCY_ANNOTATION, Latencies, encode_latencies
from tests.unit.controller.components import (
    DEFAULT,
    NODES,
    PODS,
    Components,
    StatusRecorder,
    fill_store,
    make_cost_topology,
    make_group_body,
    make_node_body,
    make_pod_body,
)

GROUP_OF_ANOTHER_NAMESPACE = make_group_body("evil", workload_namespace="x")
PARITY = SchedulerConfig(parity="upstream")
MEASURED_COSTS, USER_COSTS = make_cost_topology({"NetperfCosts": 5}), make_cost_topology({"UserDefined": 5})
TWO_COSTS_OF_A_PAIR = make_cost_topology({"NetperfCosts": 5})
TWO_COSTS_OF_A_PAIR["spec"]["weights"][0]["topologyList"][1]["originList"][0]["costList"].append(
    {"destination": "z2", "networkCost": 900}
)
BARE_NODES = [make_node_body("n1", ""), make_node_body("n2", "")]


def make_consenting_namespace(name: str, *, admits: str) -> dict[str, Any]:
    return {"kind": "Namespace", "metadata": {"name": name, "labels": {"netaware.io/appgroups-from": admits}}}


OWN_AND_ADMITTED_GROUP = (
    make_group_body("x"),
    make_group_body("y", workload_namespace="x"),
    make_consenting_namespace("x", admits="y"),
)


def make_default_pods(*placements: tuple[str, str]) -> list[dict[str, Any]]:
    """Pods of the namespace default, given as workload and node."""
    return [make_pod_body(workload, node, namespace="default") for workload, node in placements]


def make_gated_pod(workload: str, **where: str) -> dict[str, Any]:
    spec = {"schedulingGates": [{"name": GATE}], "schedulerName": "network-aware-scheduler"}
    return {**make_pod_body(workload, "", **where), "spec": spec}


def make_topology_with_latency(latency_us: int, **user_costs: int) -> dict[str, Any]:
    body = make_cost_topology({"NetperfCosts": 5, **user_costs})
    body["metadata"]["annotations"] = {LATENCY_ANNOTATION: encode_latencies(Latencies({("z1", "z2"): latency_us}))}
    return body


def find_condition(status: dict[str, Any], type_: str) -> dict[str, Any]:
    return next(condition for condition in status["conditions"] if condition["type"] == type_)


async def read_facts_with_leader(components: Components) -> Facts:
    snapshot = await components.page_snapshot()
    return build_facts(msgspec.structs.replace(snapshot, control_plane=ControlPlaneStatus(is_lease_conclusive=False)))


async def assert_all_find_dependency(components: Components, key: str, *, is_met: bool) -> None:
    """Assert that all components find the group's dependency of a on b met, or not, for the pod of a on its node."""
    namespace, name = key.split("/")
    state, snapshot = components.scheduler_state(), await components.page_snapshot()
    (shown_group,), _ = await components.command("graph", "-n", namespace)
    (page_dependency,) = (await components.group_view(key)).dependencies
    condition = find_condition(await components.status(key), "CostsMet")
    pods = components.decode("Pod", Pod)
    inputs = build_inputs(snapshot, map(PodReader().read, pods), Volumes())
    node = pods[0].spec.node_name
    met_by_component = {
        "rules": state.score(namespace, name, "a").node_score(node, state.location_index[node]).violated == 0,
        "CostsMet": (condition["status"], condition["reason"]) == ("True", "AllWithin"),
        "page": page_dependency.verdict == "met",
        "graph": shown_group.dependencies[0].verdict == "met",
        "explain": not any(line.violated for line in explain(state, pods[0]).candidates if line.has_pod),
        "plan": plan_group(inputs.build_snapshot(key, pods)).violations == 0,
    }
    if components.config == DEFAULT:  # files have no configuration
        kinds = (("Node", Node), ("Pod", Pod), ("Service", Service))
        file = ClusterFile(*(components.decode(*kind) for kind in kinds))
        file.groups.extend(components.decode("AppGroup", AppGroup))
        file.topologies.extend(components.decode("NetworkTopology", NetworkTopology))
        met_by_component["offline"] = plan_offline(file)[0].violations == 0
    assert met_by_component == dict.fromkeys(met_by_component, is_met)


@pytest.mark.parametrize(
    ("topologies", "cost"),
    [
        ((make_cost_topology({"UserDefined": None, "NetperfCosts": 5}),), 5),
        ((MEASURED_COSTS, make_cost_topology({"NetperfCosts": 9}, namespace="x")), 9),
        ((TWO_COSTS_OF_A_PAIR,), 5),
    ],
    ids=["an empty weight is skipped", "the topology of the group's namespace", "the first of two entries"],
)
async def test_scheduler_status_and_views_use_the_same_cost(topologies: tuple[dict[str, Any], ...], cost: int) -> None:
    components = Components(*NODES, *PODS, make_group_body(max_cost=5), *topologies)
    state = components.scheduler_state()
    assert state.score("x", "g", "a").node_score("n1", state.location_index["n1"]).cost == cost
    assert [edge.cost for edge in (await components.group_view("x/g")).dependencies] == [cost]
    await assert_all_find_dependency(components, "x/g", is_met=cost <= 5)


@pytest.mark.parametrize(
    ("parity", "has_bare_replica", "is_met"),
    [("none", False, True), ("none", True, False), ("upstream", False, False)],
    ids=["by zone", "one replica without a zone turns zone hints off", "parity"],
)
async def test_a_dependency_is_judged_by_the_replica_that_answers_and_in_parity_by_all(
    parity: Parity, *, has_bare_replica: bool, is_met: bool
) -> None:
    spec = {"selector": {WORKLOAD_LABEL: "b"}, "clusterIP": "10.0.0.1", "trafficDistribution": "PreferSameZone"}
    service = {"kind": "Service", "metadata": {"name": "b", "namespace": "default"}, "spec": spec}
    pods = make_default_pods(("a", "n1"), ("b", "n1"), ("b", "n2"))
    pods += make_default_pods(("b", "bare")) if has_bare_replica else []
    objects = [*NODES, make_node_body("bare", ""), *pods, service, make_group_body("default", max_cost=3), USER_COSTS]
    components = Components(*objects, config=SchedulerConfig(parity=parity))
    await assert_all_find_dependency(components, "default/g", is_met=is_met)


@pytest.mark.parametrize(
    ("config", "zone_of_third_node", "is_met"),
    [(DEFAULT, "", True), (DEFAULT, "z1", False), (PARITY, "", False)],
    ids=["no node has a zone", "one node has a zone", "parity"],
)
async def test_nodes_without_a_zone_are_one_zone_where_no_node_has_one_except_in_parity(
    config: SchedulerConfig, zone_of_third_node: str, *, is_met: bool
) -> None:
    pods = make_default_pods(("a", "n1"), ("b", "n2"), ("b", "n1"))
    nodes = [*BARE_NODES, make_node_body("n3", zone_of_third_node)]
    components = Components(*nodes, *pods, make_group_body("default", max_cost=3), USER_COSTS, config=config)
    await assert_all_find_dependency(components, "default/g", is_met=is_met)


def test_after_a_node_got_a_zone_nodes_without_one_have_no_common_zone() -> None:
    pods = make_default_pods(("a", "n1"), ("b", "n2"), ("b", "n1"))
    state = Components(*BARE_NODES, *pods, make_group_body("default", max_cost=3), USER_COSTS).scheduler_state()
    # A pod on n1 satisfies, and so does the one on n2, at cost 1; later it violates, at cost 100.
    assert state.score("default", "g", "a").node_score("n1", state.location_index["n1"])[:3] == (2, 0, 1)
    state.on_node_change("n3", None, msgspec.convert(make_node_body("n3", "z2"), Node))
    assert state.score("default", "g", "a").node_score("n1", state.location_index["n1"])[:3] == (1, 1, 100)


async def test_pods_on_one_node_without_a_zone_are_near_each_other() -> None:
    pods = [make_pod_body("a", "bare"), make_pod_body("b", "bare")]
    components = Components(make_node_body("bare", ""), *pods, make_group_body(max_cost=0), MEASURED_COSTS)
    assert [edge.cost for edge in (await components.group_view("x/g")).dependencies] == [0]
    await assert_all_find_dependency(components, "x/g", is_met=True)


@pytest.mark.parametrize(
    ("objects", "config", "key", "count"),
    [
        pytest.param((GROUP_OF_ANOTHER_NAMESPACE,), DEFAULT, "evil/g", 0, id="no consent"),
        pytest.param((GROUP_OF_ANOTHER_NAMESPACE, make_consenting_namespace("x", admits="friends")), DEFAULT, "evil/g", 0, id="consent to another"),
        pytest.param((GROUP_OF_ANOTHER_NAMESPACE, make_consenting_namespace("x", admits="friends.evil")), DEFAULT, "evil/g", 2, id="consent"),
        pytest.param(OWN_AND_ADMITTED_GROUP, DEFAULT, "x/g", 2, id="the group of the pods' namespace first"),
        pytest.param(OWN_AND_ADMITTED_GROUP, DEFAULT, "y/g", 0, id="not also a group of another namespace"),
        pytest.param((make_group_body("default"),), DEFAULT, "default/g", 2, id="the namespace default needs no consent"),
        pytest.param((make_group_body("default"), *OWN_AND_ADMITTED_GROUP[1:]), DEFAULT, "default/g", 2, id="default before a group with consent"),
        pytest.param((make_group_body("x"),), PARITY, "x/g", 0, id="parity: only groups of default"),
        pytest.param((make_group_body("default"), make_group_body("x")), PARITY, "default/g", 2, id="parity: default first"),
    ],
)  # fmt: skip
async def test_all_components_count_the_same_pods_of_a_group(
    objects: tuple[dict[str, Any], ...], config: SchedulerConfig, key: str, count: int
) -> None:
    """Pods join the group of their namespace, else of one with their namespace's consent; upstream uses only ``default``."""
    counts = await Components(*NODES, *PODS, *objects, config=config).members(key)
    assert counts == dict.fromkeys(counts, count)


async def test_a_user_with_rights_in_one_namespace_sees_its_appgroups_and_a_note() -> None:
    components = Components(*NODES, make_group_body("x"), make_group_body("y"))
    graphs, session = await components.command("graph", "-n", "x", may_list_all=False)
    assert [(view.namespace, view.name) for view in graphs] == [("x", "g")]
    assert {"appgroups of other namespaces", "namespaces"} <= session.read_errors.keys()


@pytest.mark.parametrize(
    ("objects", "problem"),
    [
        pytest.param(
            [make_group_body("other", other="web")], "there is no AppGroup g", id="a group of another namespace"
        ),
        pytest.param(
            [
                make_group_body("default"),
                make_group_body("other", workload_namespace="x", other="web"),
                make_consenting_namespace("x", admits="other"),
            ],
            "no workload",
            id="of two groups the first by the rule",
        ),
    ],
)
async def test_the_diagnosis_of_a_waiting_pod_names_the_group_that_the_scheduler_uses(
    objects: list[dict[str, Any]], problem: str
) -> None:
    components = Components(*NODES, make_gated_pod("web"), *objects)
    pod = (await components.page_snapshot()).pods[0]
    assert problem in diagnose_listed_pod(pod, await read_facts_with_leader(components), ()).summary


async def test_a_namespace_without_consent_is_one_finding_and_its_pods_are_none() -> None:
    refused_group = make_group_body("other", workload_namespace="x", other="web")
    components = Components(*NODES, make_gated_pod("web"), refused_group)
    refused_group["status"] = {"conditions": (await components.status("other/g"))["conditions"]}
    codes = {finding.code for finding in diagnose(await read_facts_with_leader(components))}
    assert codes & {"namespace-not-admitted", "unknown-workload"} == {"namespace-not-admitted"}


async def test_every_fault_of_a_spec_is_in_the_condition_the_metric_the_views_and_the_findings() -> None:
    group = make_group_body()
    group["spec"]["topologySortingAlgorithm"] = "Bogo"
    group["spec"]["workloads"] = [
        {"workload": {"selector": name}, "dependencies": [{"workload": {"selector": callee}} for callee in callees]}
        for name, callees in {"a": ("b", "gone"), "b": ("a",)}.items()
    ]
    components, registry = Components(group), CollectorRegistry()
    message = find_condition(await components.status("x/g", registry), "SpecValid")["message"]
    assert "; ".join((await components.group_view("x/g")).faults) == message

    samples = [s for family in registry.collect() for s in family.samples if s.name == "netaware_appgroup_spec_faults"]
    assert [sample.labels["reason"] for sample in samples] == ["UnknownDependency", "Cycle", "UnknownAlgorithm"]
    codes = {finding.code for finding in diagnose(await read_facts_with_leader(components))}
    assert codes >= {"spec-UnknownDependency", "dependency-cycle", "spec-UnknownAlgorithm"}


async def test_findings_of_a_group_affect_its_pods_of_other_namespaces() -> None:
    pods = [make_gated_pod(workload) for workload in ("a", "b")]
    for pod in pods:
        pod["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    components = Components(*NODES, make_group_body("default"), *pods)
    facts = await read_facts_with_leader(components)
    findings = diagnose(msgspec.structs.replace(facts, now_s=parse_time("2026-01-01T01:00:00Z")))
    (finding,) = [finding for finding in findings if finding.code == "gated-too-long"]
    assert finding.affects == tuple(fact.metadata.key for fact in facts.pods)
    assert finding.fix[0] == "kubectl -n default describe appgroup g"


async def test_a_pod_change_enqueues_its_own_group_and_no_other_of_the_same_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconciler, "DEBOUNCE_S", 0.0)
    groups = [make_group_body(namespace) for namespace in "xyz"]
    pods = [make_pod_body("a", "n1"), make_pod_body("b", "n1", namespace="y")]
    controller, cache = Components(*NODES, *groups, *pods).appgroup_controller(StatusRecorder())
    await asyncio.sleep(0.01)
    while len(controller._queue):
        controller._queue.done(await controller._queue.get())

    finished_pod = make_pod_body("b", "n1", namespace="y", phase="Succeeded")
    fill_store(cache.pods, [PodReader().read(msgspec.convert(finished_pod, Pod))])
    await asyncio.sleep(0.01)
    assert [await controller._queue.get() for _ in range(len(controller._queue))] == ["y/g"]


async def test_a_status_that_is_not_found_is_an_error_unless_its_group_is_gone() -> None:
    cache = Components(make_group_body()).appgroup_controller(StatusRecorder())[1]
    not_found = ApiError(404, "NotFound", "deleted, or its definition has no status subresource")
    assert delay_after_failed_write(not_found, "y/g", cache.app_groups) is None
    with pytest.raises(ApiError):
        delay_after_failed_write(not_found, "x/g", cache.app_groups)


def test_latencies_count_with_measured_costs_only_across_regions_and_change_without_costs() -> None:
    origin, near = Location("west", "z1"), Location("west", "z2")
    state = Components(make_topology_with_latency(1210)).scheduler_state()
    destinations = (near, Location("east", "z2"), Location("west", ""), Location("west", "z9"))
    table = state.costs("x").table
    assert [table.latency_us(origin, destination) for destination in destinations] == [1210, 1210, None, None]

    before, after = (msgspec.convert(make_topology_with_latency(us), NetworkTopology) for us in (1210, 1800))
    state.on_topology_change("default/nt-default", before, after)
    assert state.costs("x").table.latency_us(origin, near) == 1800
    state_with_user_costs = Components(make_topology_with_latency(1210, UserDefined=5)).scheduler_state()
    assert state_with_user_costs.costs("x").table.latency_us(origin, near) is None
