"""The manager writes costs from measurements, and nothing else, on a real API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
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
from lab.programs import Program
from netperf.latencies import ZonePair
from tests.integration.conftest import CRDS, MakeNode, eventually
from tests.integration.controller.harness import SimulatedAgents, StartReplica, announce_agent, plans
from tests.integration.controller.test_appgroup_manager import group, pod
from tests.support.bodies import weight_body

ZONES = {"z1": "west", "z2": "west", "z3": "east"}
USERS = weight_body(
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
        self.agents.set("z1", "z2", 4.6)
        self.agents.set("z1", "z3", 20)
        self.agents.set("z2", "z3", 22)

    async def create(self, name: str = "nt-default", namespace: str = "", **spec: Any) -> None:
        spec = {"configmapName": "netperf-metrics", "weights": [USERS], **spec}
        body = {**NETWORK_TOPOLOGIES.type_meta, "metadata": {"name": name}, "spec": spec}
        await self.client.create(NETWORK_TOPOLOGIES, body, Object, namespace=namespace or self.namespace)

    async def topology(self, name: str = "nt-default") -> NetworkTopology:
        return await self.client.get(NETWORK_TOPOLOGIES, name, NetworkTopology, namespace=self.namespace)

    async def raw(self, name: str = "nt-default") -> dict[str, Any]:
        return await self.client.get(NETWORK_TOPOLOGIES, name, dict, namespace=self.namespace)

    async def costs(self, name: str = "nt-default") -> dict[ZonePair, int]:
        return zone_costs_of((await self.topology(name)).weight(NETPERF_COSTS))

    async def has_costs(self, count: int) -> bool:
        return len(await self.costs()) == count

    async def condition(self, type_: str) -> str:
        found = find_condition((await self.topology()).status.conditions, type_)
        return found.status if found else ""

    async def reason(self) -> str:
        """Of the condition Measured."""
        found = find_condition((await self.topology()).status.conditions, "Measured")
        return found.reason if found else ""

    async def measured(self, count: int = 6) -> None:
        """Rounds of probing until so many costs are written, none of them a guess: the first may be priced between two results."""

        async def done() -> bool:
            await self.agents.measure()
            return await self.has_costs(count) and await self.reason() in {"AllPairsMeasured", "MeasurementsOld"}

        await eventually(done)


@pytest_asyncio.fixture
async def world(client: Client, namespace: str, crds: list[str], make_node: MakeNode) -> MeasuredTopology:
    for zone, region in ZONES.items():
        for copy in "ab":
            name = f"{namespace}-{zone}{copy}"
            await make_node(name, zone=zone, region=region)
            await announce_agent(client, name)
    return MeasuredTopology(client, namespace)


async def _is(answer: Awaitable[object], wanted: object) -> bool:
    return await answer == wanted


async def _zones_are(world: MeasuredTopology, wanted: set[str]) -> bool:
    return {plan.zone for plan in await plans(world.client, world.namespace)} == wanted


async def _nodes(world: MeasuredTopology) -> set[str]:
    """Nodes of planned probes."""
    found = await plans(world.client, world.namespace)
    return {end.node for plan in found for probe in plan.probes for end in (probe.origin, probe.destination)}


async def test_measured_costs_are_written_beside_the_users_weights_under_our_field_manager(
    world: MeasuredTopology, start: StartReplica
) -> None:
    await world.create()
    before = json.dumps((await world.raw())["spec"]["weights"][0])
    start()
    await world.measured()
    found = await plans(world.client, world.namespace)
    assert sum(probe.pair_index == 0 for plan in found for probe in plan.probes) == 3, (
        "one of a few pairs of nodes runs netperf"
    )
    assert sum(len(plan.probes) for plan in found) > 3
    assert {plan.zone for plan in found} == set(ZONES)
    assert await world.costs() == {
        ("z1", "z2"): 5, ("z2", "z1"): 5, ("z1", "z3"): 20, ("z3", "z1"): 20, ("z2", "z3"): 22, ("z3", "z2"): 22,
    }  # fmt: skip
    await eventually(lambda: _is(world.condition("Measured"), "True"))
    topology = await world.topology()
    assert topology.status.node_count >= 6
    assert topology.status.weight_calculation_time is not None
    raw = await world.raw()
    ours = [entry for entry in raw["metadata"]["managedFields"] if entry["manager"] == "netaware-controller"]
    spec = next(e["fieldsV1"]["f:spec"] for e in ours if "f:spec" in e["fieldsV1"])
    assert list(spec["f:weights"]) == ['k:{"name":"NetperfCosts"}'], "and nothing of the user's"
    assert next(e for e in ours if e.get("subresource") == "status")["operation"] == "Apply"
    assert [w["name"] for w in raw["spec"]["weights"]] == ["UserDefined", NETPERF_COSTS]
    assert json.dumps(raw["spec"]["weights"][0]) == before, "byte for byte"
    # A client-side `kubectl apply` of the user's file sends the whole list, without ours.
    changed = json.loads(json.dumps(USERS))
    changed["topologyList"][1]["originList"][0]["costList"][0]["networkCost"] = 7
    patch = {"spec": {"weights": [changed, {**changed, "name": "Second"}]}}
    await world.client.patch(
        NETWORK_TOPOLOGIES, "nt-default", patch, Object, patch_type=MERGE_PATCH, namespace=world.namespace
    )
    await eventually(lambda: world.has_costs(6))
    weights = {w["name"]: w for w in (await world.raw())["spec"]["weights"]}
    assert weights["UserDefined"] == changed
    assert weights["Second"] == {**changed, "name": "Second"}
    before_costs = await world.costs()
    world.agents.set("z1", "z3", 41)
    for _ in range(2):
        await world.agents.measure()
        # Each round is to be read by itself: two written before the controller looks are one run to it.
        await asyncio.sleep(4.0)
    await eventually(lambda: _is(world.costs(), {**before_costs, ("z1", "z3"): 41, ("z3", "z1"): 41}))


async def test_costs_without_new_results_become_stale_and_are_then_removed_but_never_zero(
    world: MeasuredTopology, start: StartReplica
) -> None:
    """The cost policy is that of the object."""
    await world.create(costPolicy={"staleAfterS": 2, "expireAfterS": 8, "unitUs": 100, "percentile": "p50"})
    start()
    await world.measured()
    good = await world.costs()
    assert good["z1", "z3"] == 180
    await eventually(lambda: _is(world.reason(), "MeasurementsOld"))
    assert await world.costs() == good
    assert await world.condition("Measured") == "False"
    await eventually(lambda: world.has_costs(0))
    await eventually(lambda: _is(world.reason(), "PairsAbsent"))
    await world.measured()
    assert await world.costs() == good
    notes = [e["reason"] for e in await world.client.list(EVENTS, dict, namespace=world.namespace)]
    assert "PairsAbsent" in notes
    assert notes.count("MeasurementsOld") == 1, "events tell transitions only"


async def test_deleted_malformed_partial_or_too_large_results_are_reported_and_change_no_cost(
    world: MeasuredTopology, start: StartReplica
) -> None:
    await world.create()
    replica = start()
    await world.measured()
    good = await world.costs()

    async def write(data: dict[str, Any]) -> None:
        await world.client.patch(CONFIGMAPS, "netperf-metrics", {"data": data}, Object, namespace=world.namespace)

    async def stored() -> dict[str, str]:
        objects = await world.client.list(CONFIGMAPS, ConfigMap, namespace=world.namespace)
        return next((found.data or {} for found in objects if found.metadata.name == "netperf-metrics"), {})

    key = next(key for key in await stored() if key.startswith("netaware.v1."))
    origin = key.removeprefix("netaware.v1.").split("_")[0]

    async def is_named() -> bool:
        await write({key: "{half"})
        notes = await world.client.list(EVENTS, dict, namespace=world.namespace)
        return any(f"bad-json of {origin}" in note.get("note", "") for note in notes)

    async def is_gone() -> bool:
        return key not in await stored()

    await eventually(is_named)
    await eventually(is_gone)
    await write({"x": "y" * 100_000, "netperf.p90.latency.milliseconds.origin.a": "0"})
    refused = f'netaware_results_refused_keys{{reason="bad-key",topology="{world.namespace}/nt-default"}}'

    async def is_counted() -> bool:
        return (await replica.metrics()).get(refused) == 1

    await eventually(is_counted)
    assert await world.condition("InputValid") == "False"
    assert await world.costs() == good
    # A mebibyte is what the API server stores; with the other keys beside it no more than this fits.
    filler = {f"theirs-{i}": "x" * 100_000 for i in range(9)}
    await write(filler)

    async def input_is_too_large() -> bool:
        found = find_condition((await world.topology()).status.conditions, "InputValid")
        return found is not None and (found.status, found.reason) == ("False", "ResultsTooLarge")

    await eventually(input_is_too_large)
    assert await world.costs() == good
    await world.client.delete(CONFIGMAPS, "netperf-metrics", namespace=world.namespace)
    # The planner makes what agents are to write into.
    await eventually(lambda: _is(world.condition("InputValid"), "True"))
    await world.agents.measure()
    assert await world.costs() == good


async def test_planned_pairs_follow_nodes_and_their_zones(world: MeasuredTopology, start: StartReplica) -> None:
    await world.create()
    start()
    await world.measured()
    await world.client.patch(CONFIGMAPS, "netperf-metrics", {"data": {"mine": "1"}}, Object, namespace=world.namespace)
    gone = {"metadata": {"annotations": {"netaware.io/agent": None}}}
    await world.client.patch(NODES, f"{world.namespace}-z1a", gone, Node, patch_type=MERGE_PATCH)

    async def moved_away() -> bool:
        nodes = await _nodes(world)
        return f"{world.namespace}-z1a" not in nodes and len(nodes) >= 3

    await eventually(moved_away)
    for copy in "ab":
        label = {"metadata": {"labels": {"topology.kubernetes.io/zone": "z9"}}}
        await world.client.patch(NODES, f"{world.namespace}-z3{copy}", label, Node, patch_type=MERGE_PATCH)
    await eventually(lambda: _zones_are(world, {"z1", "z2", "z9"}))
    world.agents.set("z1", "z9", 50)
    world.agents.set("z2", "z9", 52)

    async def moved() -> bool:
        await world.agents.measure()
        return (await world.costs()).get(("z1", "z9")) == 50

    await eventually(moved)
    assert all("z3" not in pair for pair in await world.costs())
    for copy in "ab":
        await world.client.delete(NODES, f"{world.namespace}-z3{copy}")

    async def swept() -> bool:
        found = await world.client.get(CONFIGMAPS, "netperf-metrics", ConfigMap, namespace=world.namespace)
        return "mine" in (found.data or {}) and not any("-z3" in key for key in found.data or {})

    await eventually(swept)
    await eventually(lambda: _is(world.costs(), {("z1", "z2"): 5, ("z2", "z1"): 5}))
    bare = {"metadata": {"labels": {"topology.kubernetes.io/zone": None}}}
    await world.client.patch(NODES, f"{world.namespace}-z1b", bare, Node, patch_type=MERGE_PATCH)
    await eventually(lambda: _is(world.condition("InputValid"), "False"))


@pytest.mark.slow
async def test_a_new_leader_reports_no_results_of_the_previous_plan_as_unplanned(
    world: MeasuredTopology, start: StartReplica
) -> None:
    await world.create()
    before = start()
    await world.measured()
    await before.stop()
    written = await world.client.get(CONFIGMAPS, "netperf-metrics", ConfigMap, namespace=world.namespace)
    node = f"{world.namespace}-z3b"
    assert any(node in value for value in (written.data or {}).values())
    await world.client.patch(NODES, node, {"spec": {"unschedulable": True}}, Node, patch_type=MERGE_PATCH)
    start()

    async def planned_without() -> bool:
        return node not in await _nodes(world)

    await eventually(planned_without)
    for _ in range(20):
        await asyncio.sleep(0.2)
        # Agents that have not read the new plan yet go on with the one before.
        patch = {"data": written.data}
        await world.client.patch(CONFIGMAPS, "netperf-metrics", patch, Object, namespace=world.namespace)
        assert await world.condition("OutlierNodes") == "False"


@pytest.mark.slow
async def test_corrupted_plans_and_recreated_topologies_recover_and_external_results_count_without_agents(
    world: MeasuredTopology, start: StartReplica, make_node: MakeNode
) -> None:
    await world.create()
    replica = start(topology={"namespaces": [world.namespace, "default"]})
    await world.measured()
    await world.client.delete(NETWORK_TOPOLOGIES, "nt-default", namespace=world.namespace)
    await world.create()
    await world.measured()
    assert await replica.leads()
    objects = await world.client.list(
        CONFIGMAPS, ConfigMap, namespace=world.namespace, label_selector="netaware.io/plan=true"
    )
    first, second, _ = (found.metadata.name for found in objects)
    await world.client.delete(CONFIGMAPS, first, namespace=world.namespace)
    spoil = [{"op": "replace", "path": "/data/plan.json", "value": "{"}]
    await world.client.patch(CONFIGMAPS, second, spoil, Object, patch_type=JSON_PATCH, namespace=world.namespace)
    await eventually(lambda: _zones_are(world, set(ZONES)))
    foreign = f"foreign-{world.namespace}"
    await world.create(foreign, "default", configmapName=foreign)
    a, b = f"{world.namespace}-p", f"{world.namespace}-q"
    for node, zone in ((a, "z7"), (b, "z8")):
        await make_node(node, zone=zone, region="west")
    data = {
        f"netperf.p90.latency.milliseconds.origin.{a}.destination.{b}": "33",
        f"netperf_p90_latency_microseconds.origin.{b}.destination.{a}": "31500",
    }
    body = {"metadata": {"name": foreign}, "data": data}
    await world.client.create(CONFIGMAPS, body, Object, namespace="default")

    async def priced() -> bool:
        found = await world.client.get(NETWORK_TOPOLOGIES, foreign, NetworkTopology, namespace="default")
        costs = zone_costs_of(found.weight(NETPERF_COSTS))
        return {("z7", "z8"): 33, ("z8", "z7"): 32}.items() <= costs.items()

    try:
        await eventually(priced)
    finally:
        await world.client.delete(NETWORK_TOPOLOGIES, foreign, namespace="default")


async def test_bandwidth_of_placed_pods_is_allocated_and_released(
    world: MeasuredTopology, start: StartReplica, kwok: Program
) -> None:
    await world.create()
    start(appGroup={"namespaces": [world.namespace]})
    await world.client.create(APPGROUPS, group({"a": "b", "b": ""}), Object, namespace=world.namespace)
    await world.measured()

    async def allocated() -> dict[ZonePair, str | int | None]:
        weight = (await world.topology()).weight(NETPERF_COSTS)
        levels = weight.topology_list if weight else []
        return {
            (origin.origin, entry.destination): entry.bandwidth_allocated
            for level in levels
            for origin in level.origin_list
            for entry in origin.cost_list
            if entry.bandwidth_allocated not in {None, "0"}
        }

    assert await allocated() == {}
    await world.client.create(PODS, pod("a", f"{world.namespace}-z1a"), Object, namespace=world.namespace)
    await world.client.create(PODS, pod("b", f"{world.namespace}-z3a"), Object, namespace=world.namespace)
    taken = {("z1", "z3"): "10000000", ("west", "east"): "10000000"}
    await eventually(lambda: _is(allocated(), taken))
    await world.client.delete(PODS, "b", namespace=world.namespace, grace_period_s=0)
    await eventually(lambda: _is(allocated(), {}))


async def test_topologies_of_other_namespaces_get_costs_under_the_shipped_rights(
    world: MeasuredTopology, start: StartReplica, control_plane: ControlPlane
) -> None:
    """The role allows to read ConfigMaps of netaware's namespace only."""
    user, name = f"restricted-{world.namespace}", f"nt-{world.namespace}"
    await grant_shipped_rights(world.client, world.namespace, user)
    kubeconfig = control_plane.write_kubeconfig(user, user)
    spec = {"configmapName": "mine"}
    body = {**NETWORK_TOPOLOGIES.type_meta, "metadata": {"name": name}, "spec": spec}
    await world.client.create(NETWORK_TOPOLOGIES, body, Object, namespace="default")
    replica = start(kubeconfig, topology={"namespaces": ["default"]})

    async def priced() -> bool:
        await world.agents.measure()
        found = await world.client.get(NETWORK_TOPOLOGIES, name, NetworkTopology, namespace="default")
        return len(zone_costs_of(found.weight(NETPERF_COSTS))) == 6 and bool(found.status.conditions)

    try:
        await eventually(priced)
    finally:
        await world.client.delete(NETWORK_TOPOLOGIES, name, namespace="default")
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
