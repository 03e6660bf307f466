"""The manager writes costs from measurements, and nothing else, on a real API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from typing import Any

import pytest
import pytest_asyncio
import yaml

from controller.cluster.crds import APPGROUPS, NETPERF_COSTS, NETWORK_TOPOLOGIES, NetworkTopology
from controller.topology.weights import zone_costs_of
from kubekit.client import JSON_PATCH, MERGE_PATCH, Client
from kubekit.conditions import find_condition
from kubekit.wire import CONFIGMAPS, EVENTS, NODES, PODS, ConfigMap, Node, Object, Resource
from lab.controlplane import ControlPlane
from lab.polling import poll_until
from lab.programs import Program
from netperf.latencies import ZonePair
from netperf.plans import plan_object_name
from tests.integration.conftest import CRDS, MakeNode
from tests.integration.controller.harness import SimulatedAgents, StartReplica, announce_agent, read_plans
from tests.integration.controller.test_appgroup_manager import group, pod
from tests.support.bodies import make_weight_body

ZONES = {"z1": "west", "z2": "west", "z3": "east"}
USERS = make_weight_body(
    {
        ("z1", "z2"): {"networkCost": 0, "bandwidthCapacity": 1000},
        ("z2", "z1"): {"networkCost": 0, "bandwidthCapacity": "1Gi"},
    }
)


class MeasuredTopology:
    """A NetworkTopology of three zones with two nodes each, and simulated agents."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace
        self.agents = SimulatedAgents(client, namespace)
        self.agents.set_latency("z1", "z2", 4.6)
        self.agents.set_latency("z1", "z3", 20)
        self.agents.set_latency("z2", "z3", 22)

    async def create(self, name: str = "nt-default", namespace: str = "", **spec: Any) -> None:
        spec = {"configmapName": "netperf-metrics", "weights": [USERS], **spec}
        body = {**NETWORK_TOPOLOGIES.type_meta, "metadata": {"name": name}, "spec": spec}
        await self.client.create(NETWORK_TOPOLOGIES, body, Object, namespace=namespace or self.namespace)

    async def read_topology(self, name: str = "nt-default", namespace: str = "") -> NetworkTopology:
        return await self.client.get(NETWORK_TOPOLOGIES, name, NetworkTopology, namespace=namespace or self.namespace)

    async def read_raw_topology(self) -> dict[str, Any]:
        return await self.client.get(NETWORK_TOPOLOGIES, "nt-default", dict, namespace=self.namespace)

    async def read_costs(self, name: str = "nt-default", namespace: str = "") -> dict[ZonePair, int]:
        return zone_costs_of((await self.read_topology(name, namespace)).weight(NETPERF_COSTS))

    async def patch_node(self, name: str, body: dict[str, Any]) -> None:
        """Patch the node of this name, without the namespace that it begins with."""
        await self.client.patch(NODES, f"{self.namespace}-{name}", body, Node, patch_type=MERGE_PATCH)

    async def patch_results(self, data: Mapping[str, Any] | None) -> None:
        """Write these keys into the results ConfigMap."""
        await self.client.patch(CONFIGMAPS, "netperf-metrics", {"data": data}, Object, namespace=self.namespace)

    async def read_results(self) -> dict[str, str]:
        """Data of the results ConfigMap; empty if it does not exist."""
        objects = await self.client.list(CONFIGMAPS, ConfigMap, namespace=self.namespace)
        return next((item.data or {} for item in objects if item.metadata.name == "netperf-metrics"), {})

    async def list_events(self) -> list[dict[str, Any]]:
        return await self.client.list(EVENTS, dict, namespace=self.namespace)

    async def has_costs(self, count: int) -> bool:
        return len(await self.read_costs()) == count

    async def condition(self, type_: str) -> tuple[str, str]:
        """Status and reason of a condition; both empty if there is none."""
        condition = find_condition((await self.read_topology()).status.conditions, type_)
        return (condition.status, condition.reason) if condition else ("", "")

    async def measure_until_priced(self, count: int = 6) -> None:
        """Write results until this number of costs is measured; the first may be computed from a part of the results."""

        async def are_priced() -> bool:
            await self.agents.measure()
            _, reason = await self.condition("Measured")
            return await self.has_costs(count) and reason in {"AllPairsMeasured", "MeasurementsOld"}

        await poll_until(are_priced)


@pytest_asyncio.fixture
async def topology(client: Client, namespace: str, crds: list[str], make_node: MakeNode) -> MeasuredTopology:
    for zone, region in ZONES.items():
        for copy in "ab":
            name = f"{namespace}-{zone}{copy}"
            await make_node(name, zone=zone, region=region)
            await announce_agent(client, name)
    return MeasuredTopology(client, namespace)


async def _equals(answer: Awaitable[object], wanted: object) -> bool:
    return await answer == wanted


async def _zones_are(topology: MeasuredTopology, wanted: set[str]) -> bool:
    return {plan.zone for plan in await read_plans(topology.client, topology.namespace)} == wanted


async def _planned_nodes(topology: MeasuredTopology) -> set[str]:
    """Nodes of planned probes."""
    plans = await read_plans(topology.client, topology.namespace)
    return {end.node for plan in plans for probe in plan.probes for end in (probe.origin, probe.destination)}


async def test_measured_costs_are_written_beside_the_users_weights_under_our_field_manager(
    topology: MeasuredTopology, start: StartReplica
) -> None:
    await topology.create()
    before = json.dumps((await topology.read_raw_topology())["spec"]["weights"][0])
    start()
    await topology.measure_until_priced()
    plans = await read_plans(topology.client, topology.namespace)
    pair_indexes = [probe.pair_index for plan in plans for probe in plan.probes]
    assert pair_indexes.count(0) == 3, "one of a few pairs of nodes runs netperf"
    assert len(pair_indexes) > 3
    assert {plan.zone for plan in plans} == set(ZONES)
    assert await topology.read_costs() == {
        ("z1", "z2"): 5, ("z2", "z1"): 5, ("z1", "z3"): 20, ("z3", "z1"): 20, ("z2", "z3"): 22, ("z3", "z2"): 22,
    }  # fmt: skip
    await poll_until(lambda: _equals(topology.condition("Measured"), ("True", "AllPairsMeasured")))
    read_topology = await topology.read_topology()
    assert read_topology.status.node_count >= 6
    assert read_topology.status.weight_calculation_time is not None
    read_raw_topology = await topology.read_raw_topology()
    managed_fields = read_raw_topology["metadata"]["managedFields"]
    ours = [entry for entry in managed_fields if entry["manager"] == "netaware-controller"]
    spec = next(e["fieldsV1"]["f:spec"] for e in ours if "f:spec" in e["fieldsV1"])
    assert list(spec["f:weights"]) == ['k:{"name":"NetperfCosts"}'], "and nothing of the user's"
    assert next(e for e in ours if e.get("subresource") == "status")["operation"] == "Apply"
    assert [w["name"] for w in read_raw_topology["spec"]["weights"]] == ["UserDefined", NETPERF_COSTS]
    assert json.dumps(read_raw_topology["spec"]["weights"][0]) == before, "byte for byte"
    # A client-side `kubectl apply` of the user's file sends the whole list, without ours.
    changed = json.loads(json.dumps(USERS))
    changed["topologyList"][1]["originList"][0]["costList"][0]["networkCost"] = 7
    patch = {"spec": {"weights": [changed, {**changed, "name": "Second"}]}}
    await topology.client.patch(
        NETWORK_TOPOLOGIES, "nt-default", patch, Object, patch_type=MERGE_PATCH, namespace=topology.namespace
    )
    await poll_until(lambda: topology.has_costs(6))
    weights = {w["name"]: w for w in (await topology.read_raw_topology())["spec"]["weights"]}
    assert weights["UserDefined"] == changed
    assert weights["Second"] == {**changed, "name": "Second"}
    before_costs = await topology.read_costs()
    topology.agents.set_latency("z1", "z3", 41)
    for _ in range(2):
        await topology.agents.measure()
        # Each round is to be read by itself: two written before the controller looks are one run to it.
        await asyncio.sleep(4.0)
    await poll_until(lambda: _equals(topology.read_costs(), {**before_costs, ("z1", "z3"): 41, ("z3", "z1"): 41}))


async def test_costs_without_new_results_become_stale_and_are_then_removed_but_never_zero(
    topology: MeasuredTopology, start: StartReplica
) -> None:
    """The cost policy is that of the object."""
    await topology.create(costPolicy={"staleAfterS": 2, "expireAfterS": 8, "unitUs": 100, "percentile": "p50"})
    start()
    await topology.measure_until_priced()
    good = await topology.read_costs()
    assert good["z1", "z3"] == 180
    await poll_until(lambda: _equals(topology.condition("Measured"), ("False", "MeasurementsOld")))
    assert await topology.read_costs() == good
    await poll_until(lambda: topology.has_costs(0))
    await poll_until(lambda: _equals(topology.condition("Measured"), ("False", "PairsAbsent")))
    await topology.measure_until_priced()
    assert await topology.read_costs() == good
    reasons = [event["reason"] for event in await topology.list_events()]
    assert "PairsAbsent" in reasons
    assert reasons.count("MeasurementsOld") == 1, "only transitions have events"


async def test_deleted_malformed_partial_or_too_large_results_are_reported_and_change_no_cost(
    topology: MeasuredTopology, start: StartReplica
) -> None:
    await topology.create()
    replica = start()
    await topology.measure_until_priced()
    good = await topology.read_costs()

    key = next(key for key in await topology.read_results() if key.startswith("netaware.v1."))
    origin = key.removeprefix("netaware.v1.").split("_")[0]

    async def is_named() -> bool:
        await topology.patch_results({key: "{half"})
        return any(f"bad-json of {origin}" in event.get("note", "") for event in await topology.list_events())

    async def is_gone() -> bool:
        return key not in await topology.read_results()

    await poll_until(is_named)
    await poll_until(is_gone)
    await topology.patch_results({"x": "y" * 100_000, "netperf.p90.latency.milliseconds.origin.a": "0"})
    refused = f'netaware_results_refused_keys{{reason="bad-key",topology="{topology.namespace}/nt-default"}}'

    async def is_reported() -> bool:
        has_condition = (await topology.condition("InputValid"))[0] == "False"
        return has_condition and (await replica.metrics()).get(refused) == 1

    await poll_until(is_reported)
    assert await topology.read_costs() == good
    # A mebibyte is what the API server stores; with the other keys beside it no more than this fits.
    filler = {f"theirs-{i}": "x" * 100_000 for i in range(9)}
    await topology.patch_results(filler)
    await poll_until(lambda: _equals(topology.condition("InputValid"), ("False", "ResultsTooLarge")))
    assert await topology.read_costs() == good
    await topology.client.delete(CONFIGMAPS, "netperf-metrics", namespace=topology.namespace)
    # The planner makes what agents are to write into.
    await poll_until(lambda: _equals(topology.condition("InputValid"), ("True", "AllRead")))
    await topology.agents.measure()
    assert await topology.read_costs() == good


async def test_planned_pairs_follow_nodes_and_their_zones(topology: MeasuredTopology, start: StartReplica) -> None:
    await topology.create()
    start()
    await topology.measure_until_priced()
    await topology.patch_results({"mine": "1"})
    await topology.patch_node("z1a", {"metadata": {"annotations": {"netaware.io/agent": None}}})

    async def is_left_out() -> bool:
        nodes = await _planned_nodes(topology)
        return f"{topology.namespace}-z1a" not in nodes and len(nodes) >= 3

    await poll_until(is_left_out)
    for copy in "ab":
        await topology.patch_node(f"z3{copy}", {"metadata": {"labels": {"topology.kubernetes.io/zone": "z9"}}})
    await poll_until(lambda: _zones_are(topology, {"z1", "z2", "z9"}))
    topology.agents.set_latency("z1", "z9", 50)
    topology.agents.set_latency("z2", "z9", 52)

    async def is_measured() -> bool:
        await topology.agents.measure()
        return (await topology.read_costs()).get(("z1", "z9")) == 50

    await poll_until(is_measured)
    assert all("z3" not in pair for pair in await topology.read_costs())
    for copy in "ab":
        await topology.client.delete(NODES, f"{topology.namespace}-z3{copy}")

    async def are_removed() -> bool:
        keys = await topology.read_results()
        return "mine" in keys and not any("-z3" in key for key in keys)

    await poll_until(are_removed)
    await poll_until(lambda: _equals(topology.read_costs(), {("z1", "z2"): 5, ("z2", "z1"): 5}))
    await topology.patch_node("z1b", {"metadata": {"labels": {"topology.kubernetes.io/zone": None}}})

    async def input_is_invalid() -> bool:
        return (await topology.condition("InputValid"))[0] == "False"

    await poll_until(input_is_invalid)


@pytest.mark.slow
async def test_a_new_leader_reports_no_results_of_the_previous_plan_as_unplanned(
    topology: MeasuredTopology, start: StartReplica
) -> None:
    await topology.create()
    before = start()
    await topology.measure_until_priced()
    await before.stop()
    results = await topology.read_results()
    node = f"{topology.namespace}-z3b"
    assert any(node in value for value in results.values())
    await topology.patch_node("z3b", {"spec": {"unschedulable": True}})
    start()

    async def is_unplanned() -> bool:
        return node not in await _planned_nodes(topology)

    await poll_until(is_unplanned)
    for _ in range(20):
        await asyncio.sleep(0.2)
        # Agents that have not read the new plan yet go on with the one before.
        await topology.patch_results(results)
        assert await topology.condition("OutlierNodes") == ("False", "AllAgree")


@pytest.mark.slow
async def test_corrupted_plans_and_recreated_topologies_recover_and_external_results_count_without_agents(
    topology: MeasuredTopology, start: StartReplica, make_node: MakeNode
) -> None:
    await topology.create()
    replica = start(topology={"namespaces": [topology.namespace, "default"]})
    await topology.measure_until_priced()
    await topology.client.delete(NETWORK_TOPOLOGIES, "nt-default", namespace=topology.namespace)
    await topology.create()
    await topology.measure_until_priced()
    assert await replica.leads()
    plans = await read_plans(topology.client, topology.namespace)
    first, second, _ = (plan_object_name(plan.zone) for plan in plans)
    await topology.client.delete(CONFIGMAPS, first, namespace=topology.namespace)
    corruption = [{"op": "replace", "path": "/data/plan.json", "value": "{"}]
    await topology.client.patch(
        CONFIGMAPS, second, corruption, Object, patch_type=JSON_PATCH, namespace=topology.namespace
    )
    await poll_until(lambda: _zones_are(topology, set(ZONES)))
    foreign = f"foreign-{topology.namespace}"
    await topology.create(foreign, "default", configmapName=foreign)
    a, b = f"{topology.namespace}-p", f"{topology.namespace}-q"
    for node, zone in ((a, "z7"), (b, "z8")):
        await make_node(node, zone=zone, region="west")
    data = {
        f"netperf.p90.latency.milliseconds.origin.{a}.destination.{b}": "33",
        f"netperf_p90_latency_microseconds.origin.{b}.destination.{a}": "31500",
    }
    body = {"metadata": {"name": foreign}, "data": data}
    await topology.client.create(CONFIGMAPS, body, Object, namespace="default")

    async def are_priced() -> bool:
        costs = await topology.read_costs(foreign, "default")
        return {("z7", "z8"): 33, ("z8", "z7"): 32}.items() <= costs.items()

    try:
        await poll_until(are_priced)
    finally:
        await topology.client.delete(NETWORK_TOPOLOGIES, foreign, namespace="default")


async def test_bandwidth_of_placed_pods_is_allocated_and_released(
    topology: MeasuredTopology, start: StartReplica, kwok: Program
) -> None:
    await topology.create()
    start(appGroup={"namespaces": [topology.namespace]})
    await topology.client.create(APPGROUPS, group({"a": "b", "b": ""}), Object, namespace=topology.namespace)
    await topology.measure_until_priced()

    async def allocated() -> dict[ZonePair, str | int | None]:
        weight = (await topology.read_topology()).weight(NETPERF_COSTS)
        levels = weight.topology_list if weight else []
        return {
            (origin.origin, entry.destination): entry.bandwidth_allocated
            for level in levels
            for origin in level.origin_list
            for entry in origin.cost_list
            if entry.bandwidth_allocated not in {None, "0"}
        }

    assert await allocated() == {}
    await topology.client.create(PODS, pod("a", f"{topology.namespace}-z1a"), Object, namespace=topology.namespace)
    await topology.client.create(PODS, pod("b", f"{topology.namespace}-z3a"), Object, namespace=topology.namespace)
    allocated_bps = {("z1", "z3"): "10000000", ("west", "east"): "10000000"}
    await poll_until(lambda: _equals(allocated(), allocated_bps))
    await topology.client.delete(PODS, "b", namespace=topology.namespace, grace_period_s=0)
    await poll_until(lambda: _equals(allocated(), {}))


async def test_topologies_of_other_namespaces_get_costs_under_the_shipped_rights(
    topology: MeasuredTopology, start: StartReplica, control_plane: ControlPlane
) -> None:
    """The role allows to read ConfigMaps of netaware's namespace only."""
    user, name = f"restricted-{topology.namespace}", f"nt-{topology.namespace}"
    await grant_shipped_rights(topology.client, topology.namespace, user)
    kubeconfig = control_plane.write_kubeconfig(user, user)
    await topology.create(name, "default", configmapName="mine")
    replica = start(kubeconfig, topology={"namespaces": ["default"]})

    async def are_priced() -> bool:
        await topology.agents.measure()
        has_conditions = bool((await topology.read_topology(name, "default")).status.conditions)
        return has_conditions and len(await topology.read_costs(name, "default")) == 6

    try:
        await poll_until(are_priced)
    finally:
        await topology.client.delete(NETWORK_TOPOLOGIES, name, namespace="default")
    refused = [line for line in replica.log.read_text().splitlines() if "forbidden" in line]
    assert all("configmaps" in line and "default" in line for line in refused), refused


async def grant_shipped_rights(client: Client, namespace: str, user: str) -> None:
    """Grant a user of the test the rights of manifests/base/controller/rbac.yaml in the test's namespace."""
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    for body in yaml.safe_load_all((CRDS.parent / "base" / "controller" / "rbac.yaml").read_text()):
        cluster_wide = body["kind"].startswith("Cluster")
        body["metadata"]["name"] = user
        if "roleRef" in body:
            body["roleRef"]["name"] = user
            body["subjects"] = [subject]
        plural = body["kind"].lower() + "s"
        resource = Resource("rbac.authorization.k8s.io", "v1", plural, body["kind"], is_namespaced=not cluster_wide)
        await client.create(resource, body, Object, namespace=namespace)
