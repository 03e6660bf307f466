"""The manager writes order and status of AppGroups but never their spec, and definitions refuse invalid objects."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import yaml

from controller.cli.session import Session
from controller.cluster.crds import APPGROUPS, NETWORK_TOPOLOGIES, AppGroup, NetworkTopology
from controller.convert.spellings import convert_documents
from controller.diagnosis.events import EventReporter
from controller.topology.weights import zone_costs_of
from kubekit.client import MERGE_PATCH, Client
from kubekit.conditions import find_condition
from kubekit.errors import ApiError
from kubekit.events import EventRecorder
from kubekit.wire import CUSTOM_RESOURCE_DEFINITIONS, EVENTS, PODS, SERVICES, Object, Pod, Resource
from lab.polling import poll_until
from lab.programs import Program
from tests.integration.conftest import MakeNode, crd_bodies, remove_crds
from tests.integration.controller.harness import Replica, SimulatedAgents, StartReplica, announce_agent
from tests.support.bodies import make_appgroup_body, make_weight_body
from tests.unit.controller.test_appgroup_order import BOUTIQUE, BOUTIQUE_CALLS, EXPECTED_ORDERS
from tests.unit.controller.test_convert_field_spellings import PROPOSAL_GROUP, PROPOSAL_TOPOLOGY, SLIDES_GROUP


def group(needs: dict[str, str], *, members: int = 1, algorithm: str = "KahnSort", cost: int = 15) -> dict[str, Any]:
    """An AppGroup; ``needs`` has the dependencies of each workload, separated by spaces."""
    limits = {"maxNetworkCost": cost, "minBandwidth": "10M"}
    calls = {name: dict.fromkeys(below.split(), limits) for name, below in needs.items()}
    return make_appgroup_body("g", calls, members=members, algorithm=algorithm)


BOUTIQUE_GROUP = {name: BOUTIQUE_CALLS.get(name, "") for name in BOUTIQUE}


@pytest.fixture
def replica(crds: list[str], start: StartReplica) -> Replica:
    return start()


async def read(client: Client, namespace: str, name: str = "g") -> AppGroup:
    return await client.get(APPGROUPS, name, AppGroup, namespace=namespace)


def has(
    client: Client, namespace: str, type_: str, status: str, text: str = "", name: str = "g"
) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        condition = find_condition((await read(client, namespace, name)).status.conditions, type_)
        return condition is not None and condition.status == status and text in condition.message

    return check


async def create(client: Client, namespace: str, body: dict[str, Any], name: str = "g") -> None:
    await client.create(APPGROUPS, {**body, "metadata": {"name": name}}, Object, namespace=namespace)


async def test_every_algorithm_gives_the_documented_order_and_only_the_status_is_written(
    replica: Replica, client: Client, namespace: str
) -> None:
    await create(client, namespace, group(BOUTIQUE_GROUP, members=11))
    before: dict[str, Any] = await client.get(APPGROUPS, "g", dict, namespace=namespace)
    for algorithm, row in EXPECTED_ORDERS.items():
        patch = {"spec": {"topologySortingAlgorithm": algorithm}}
        await client.patch(APPGROUPS, "g", patch, Object, patch_type=MERGE_PATCH, namespace=namespace)
        await poll_until(has(client, namespace, "SpecValid", "True", f"by {algorithm}"))
        status = (await read(client, namespace)).status
        assert status.topology_order is not None
        by_index = sorted(status.topology_order, key=lambda entry: entry.index)
        assert " ".join(entry.workload.selector for entry in by_index) == row
        stored = [entry.workload.selector for entry in status.topology_order]
        assert stored == sorted(stored)
        assert status.topology_calculation_time is not None
    after: dict[str, Any] = await client.get(APPGROUPS, "g", dict, namespace=namespace)
    assert after["spec"] == {**before["spec"], "topologySortingAlgorithm": list(EXPECTED_ORDERS)[-1]}
    writes = (await replica.metrics())["netaware_appgroup_writes_total"]
    touch = {"metadata": {"annotations": {"touched": "yes"}}}
    await client.patch(APPGROUPS, "g", touch, Object, patch_type=MERGE_PATCH, namespace=namespace)
    await asyncio.sleep(1.0)  # longer than the group's debounce
    assert (await replica.metrics())["netaware_appgroup_writes_total"] == writes


async def test_cyclic_and_large_groups_are_ordered(replica: Replica, client: Client, namespace: str) -> None:
    await create(client, namespace, group({"a": "b", "b": "c", "c": "a", "d": "a"}), "cycle")
    names = [f"w{i:03}" for i in range(500)]
    large = group({name: " ".join(names[i + 1 : i + 4]) for i, name in enumerate(names)})
    await create(client, namespace, large, "large")
    for name, status, text in (
        ("cycle", "False", "a -> b -> c -> a"),
        ("large", "True", "500 workloads"),
    ):
        await poll_until(has(client, namespace, "SpecValid", status, text, name))
    order = (await read(client, namespace, "cycle")).status.topology_order
    assert order is not None
    assert sorted(entry.index for entry in order) == [1, 2, 3, 4]


async def test_the_status_has_the_number_of_pods_and_whether_costs_are_met(
    replica: Replica, client: Client, namespace: str, kwok: Program, make_node: MakeNode
) -> None:
    near, far = f"{namespace}-near", f"{namespace}-far"
    await make_node(near, zone="z1", region="west")
    await make_node(far, zone="z2", region="west")
    spec = {"configmapName": "c", "weights": [make_weight_body({("z1", "z2"): 30})]}
    topology = {**NETWORK_TOPOLOGIES.type_meta, "metadata": {"name": "nt-default"}, "spec": spec}
    await client.create(NETWORK_TOPOLOGIES, topology, Object, namespace=namespace)
    await create(client, namespace, group({"a": "b", "b": ""}, members=2))
    await poll_until(has(client, namespace, "Complete", "False", "0 of 2"))
    await client.create(PODS, pod("a", near), Pod, namespace=namespace)
    await client.create(PODS, pod("b", far), Pod, namespace=namespace)
    await poll_until(has(client, namespace, "Complete", "True", "2 of 2 pods run"))
    await poll_until(has(client, namespace, "CostsMet", "False", "a to b costs 30, at most 15 (z1 to z2)"))
    status = (await read(client, namespace)).status
    assert status.running_workloads == 2
    assert status.schedule_start_time is not None
    await client.delete(PODS, "b", namespace=namespace, grace_period_s=0)
    await client.create(
        PODS, {**pod("b", near), "metadata": {**pod("b", near)["metadata"], "name": "b2"}}, Pod, namespace=namespace
    )
    await poll_until(has(client, namespace, "CostsMet", "True", "1 of 1"))


async def test_a_condition_names_a_service_that_needs_traffic_distribution(
    replica: Replica, client: Client, namespace: str, kwok: Program, make_node: MakeNode
) -> None:
    zones = {zone: f"{namespace}-{zone}" for zone in ("z1", "z2")}
    for zone, node in zones.items():
        await make_node(node, zone=zone, region="west")
    await create(client, namespace, group({"a": "b", "b": ""}, members=4, cost=10_000))
    selector = {"appgroup.diktyo.x-k8s.io.workload": "b"}
    service = {"metadata": {"name": "b"}, "spec": {"selector": selector, "ports": [{"port": 80}]}}
    await client.create(SERVICES, service, Object, namespace=namespace)
    for workload in ("a", "b"):
        for zone, node in zones.items():
            body = pod(workload, node)
            body["metadata"]["name"] = f"{workload}-{zone}"
            await client.create(PODS, body, Pod, namespace=namespace)
    text = f"Service {namespace}/b has no trafficDistribution: with PreferSameZone a call would take"
    await poll_until(has(client, namespace, "RoutedNear", "False", text))
    await poll_until(has(client, namespace, "Balanced", "True"))
    near = {"spec": {"trafficDistribution": "PreferSameZone"}}
    await client.patch(SERVICES, "b", near, Object, patch_type=MERGE_PATCH, namespace=namespace)
    await poll_until(has(client, namespace, "RoutedNear", "True"))


async def test_a_running_pod_of_no_workload_gets_one_event(client: Client, namespace: str, crds: list[str]) -> None:
    await create(client, namespace, group({"web": ""}))
    made = await client.create(PODS, pod("wbe", "nowhere"), Object, namespace=namespace)
    session, recorder = Session(client, None, None, namespace), EventRecorder(client, component="test", instance="test")
    reporter = EventReporter(lambda: session.read_snapshot(everything=True), recorder)

    async def events() -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = await client.list(EVENTS, dict, namespace=namespace)
        return [event for event in listed if event["reason"] == "UnknownWorkload"]

    async def is_reported() -> bool:
        await reporter.report()
        return bool(await events())

    sending = asyncio.ensure_future(recorder.run())
    try:
        await poll_until(is_reported)
        for _ in range(3):
            await reporter.report()
        (event,) = await events()
    finally:
        sending.cancel()
    assert (event["regarding"]["uid"], event["type"]) == (made.metadata.uid, "Warning")
    assert "series" not in event
    assert "no workload with selector wbe" in event["note"]


@pytest.mark.slow
async def test_definitions_may_be_created_later_and_probe_plans_do_not_wait_for_them(
    client: Client, namespace: str, make_node: MakeNode, start: StartReplica
) -> None:
    await remove_crds(client)
    for zone in ("z1", "z2"):
        await make_node(f"{namespace}-{zone}", zone=zone)
        await announce_agent(client, f"{namespace}-{zone}")
    agents, replica = SimulatedAgents(client, namespace), start()

    async def created(resource: Resource, body: dict[str, Any]) -> bool:
        try:
            await client.create(resource, body, Object, namespace=namespace)
        except ApiError as error:
            if not error.is_not_found:  # The definition is not served yet.
                raise
            return False
        return True

    async def is_measured() -> bool:
        return await agents.measure() >= 1

    async def is_priced() -> bool:
        await agents.measure()
        read_topology = await client.get(NETWORK_TOPOLOGIES, "nt-default", NetworkTopology, namespace=namespace)
        return len(zone_costs_of(read_topology.weight("NetperfCosts"))) == 2

    async def is_ordered() -> bool:
        return bool((await read(client, namespace)).status.topology_order)

    topology = {**NETWORK_TOPOLOGIES.type_meta, "metadata": {"name": "nt-default"}}
    topology["spec"] = {"configmapName": "netperf-metrics"}
    try:
        await poll_until(is_measured)
        assert await replica.leads()
        for body in crd_bodies().values():
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, body, Object)
        await poll_until(lambda: created(NETWORK_TOPOLOGIES, topology))
        await poll_until(lambda: created(APPGROUPS, group({"a": "b", "b": "a"})))
        await poll_until(is_priced)
        await poll_until(is_ordered)
    finally:
        await remove_crds(client)


def pod(workload: str, node: str) -> dict[str, Any]:
    labels = {"appgroup.diktyo.x-k8s.io": "g", "appgroup.diktyo.x-k8s.io.workload": workload}
    return {
        "metadata": {"name": workload, "labels": labels},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "image": "none"}],
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
        },
    }


# --- what the definitions take and refuse --------------------------------------------------------------------------


def changed(path: str, value: object) -> dict[str, Any]:
    body = copy.deepcopy(group({"a": "b", "b": ""}))
    parent: Any = body["spec"]
    *parents, last = path.split(".")
    for part in parents:
        parent = parent[int(part)] if part.isdigit() else parent[part]
    parent[last] = value
    return body


NEGATIVE = {"topologyKey": "k", "originList": [{"origin": "x", "costList": [{"destination": "y", "networkCost": -1}]}]}
MANY = {f"w{i}" for i in range(72)}
INVALID_GROUPS = (
    ("topologySortingAlgorithm", "Quick", "Unsupported value"),
    ("numMembers", 0, "should be greater than or equal to 1"),
    ("workloads.0.dependencies.0.maxNetworkCost", 10_001, "less than or equal to 10000"),
    ("workloads.0.dependencies.0.maxNetworkCost", -1, "greater than or equal to 0"),
    ("workloads.0.dependencies.0.minBandwidth", "much", "minBandwidth"),
    ("workloads.0.dependencies.0.workload.selector", "a", "cannot depend on itself"),
    ("workloads.0.dependencies.0.workload", {"kind": "Deployment", "name": "a"}, "cannot depend on itself"),
    ("workloads.1.workload.selector", "a", "selector of its own"),
    ("workloads.0.workload", {"kind": "Deployment", "name": "a"}, "Required value"),
    ("workloads.0.workload.selector", "not a label", "selector"),
    ("workloads", group({name: " ".join(MANY) for name in MANY})["spec"]["workloads"], "5000 dependencies at most"),
)
INVALID_TOPOLOGIES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"configmapName": "netperfMetrics"}, "configmapName"),
    ({}, "configmapName"),
    ({"configmapName": "c", "weights": [{"name": "a", "topologyList": []}] * 2}, "Duplicate value"),
    ({"configmapName": "c", "weights": [{"name": "a", "topologyList": [NEGATIVE]}]}, "networkCost"),
    ({"configmapName": "c", "costPolicy": {"percentile": "p42"}}, "Unsupported value"),
    ({"configmapName": "c", "costPolicy": {"staleAfterS": 10, "expireAfterS": 5}}, "must not be less than staleAfterS"),
)


async def test_definitions_refuse_invalid_objects(client: Client, namespace: str, crds: list[str]) -> None:
    for path, value, message in INVALID_GROUPS:
        with pytest.raises(ApiError, match=message) as caught:
            await create(client, namespace, changed(path, value))
        assert caught.value.status == 422
    for spec, message in INVALID_TOPOLOGIES:
        body = {**NETWORK_TOPOLOGIES.type_meta, "metadata": {"name": "n"}, "spec": spec}
        with pytest.raises(ApiError, match=message):
            await client.create(NETWORK_TOPOLOGIES, body, Object, namespace=namespace)
    for i, rate in enumerate(("100Mi", "1e3", 5, "0.5G")):  # texts or numbers
        await create(client, namespace, changed("workloads.0.dependencies.0.minBandwidth", rate), f"g{i}")


@pytest.mark.parametrize("text", [PROPOSAL_GROUP, SLIDES_GROUP, PROPOSAL_TOPOLOGY])
async def test_converted_spellings_of_the_field_are_accepted_without_an_unknown_field(
    client: Client, namespace: str, crds: list[str], text: str
) -> None:
    with pytest.raises(ApiError):
        await _create_strictly(client, namespace, yaml.safe_load(text))
    objects, _ = convert_documents([yaml.safe_load(text)])
    await _create_strictly(client, namespace, objects[0])


async def _create_strictly(client: Client, namespace: str, body: dict[str, Any]) -> None:
    """Create an object as kubectl does, so that unknown fields are errors."""
    resource = APPGROUPS if body["kind"] == "AppGroup" else NETWORK_TOPOLOGIES
    body["metadata"].pop("namespace", None)
    await client.request("POST", resource.path(namespace), params={"fieldValidation": "Strict"}, body=body)
