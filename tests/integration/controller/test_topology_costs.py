"""The manager writes costs from measurements, and nothing else, into NetworkTopologies."""

from __future__ import annotations

import json

import yaml

from controller.cluster.crds import NETPERF_COSTS, NETWORK_TOPOLOGIES
from kubekit.client import MERGE_PATCH, Client
from kubekit.wire import CONFIGMAPS, Object, Resource
from lab.controlplane import ControlPlane
from lab.polling import poll_until
from lab.programs import Program
from tests.integration.conftest import CRDS
from tests.integration.controller.appgroups import make_group
from tests.integration.controller.harness import Replica, StartManager, wait_until_equal
from tests.integration.controller.measured_topology import ALL_COSTS, USER_WEIGHT, MeasuredTopology


async def grant_shipped_rights(client: Client, namespace: str, user: str) -> None:
    """Grant a user of the test the rights of manifests/base/controller/rbac.yaml in the test's namespace."""
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    for body in yaml.safe_load_all((CRDS.parent / "base" / "controller" / "rbac.yaml").read_text()):
        is_cluster_wide = body["kind"].startswith("Cluster")
        body["metadata"]["name"] = user
        if "roleRef" in body:
            body["roleRef"]["name"] = user
            body["subjects"] = [subject]
        plural = body["kind"].lower() + "s"
        resource = Resource("rbac.authorization.k8s.io", "v1", plural, body["kind"], is_namespaced=not is_cluster_wide)
        await client.create(resource, body, Object, namespace=namespace)


async def test_costs_are_written_beside_the_users_weights_also_after_a_client_side_apply(
    topology: MeasuredTopology, start_manager: StartManager
) -> None:
    await topology.create()
    created = await topology.read_raw()
    start_manager()
    await topology.measure_until_priced()

    body = await topology.read_raw()
    assert [weight["name"] for weight in body["spec"]["weights"]] == ["UserDefined", NETPERF_COSTS]
    assert json.dumps(body["spec"]["weights"][0]) == json.dumps(created["spec"]["weights"][0]), "byte for byte"
    our_entries = [e for e in body["metadata"]["managedFields"] if e["manager"] == "netaware-controller"]
    (spec_fields,) = (e["fieldsV1"]["f:spec"] for e in our_entries if "f:spec" in e["fieldsV1"])
    assert list(spec_fields["f:weights"]) == ['k:{"name":"NetperfCosts"}'], "and nothing of the user's"
    (status_entry,) = (entry for entry in our_entries if entry.get("subresource") == "status")
    assert status_entry["operation"] == "Apply"

    changed_weight = json.loads(json.dumps(USER_WEIGHT))
    changed_weight["topologyList"][1]["originList"][0]["costList"][0]["networkCost"] = 7
    second_weight = {**changed_weight, "name": "Second"}

    # A client-side `kubectl apply` of the user's file sends the whole list, without ours.
    patch = {"spec": {"weights": [changed_weight, second_weight]}}
    await topology.client.patch(
        NETWORK_TOPOLOGIES, "nt-default", patch, Object, patch_type=MERGE_PATCH, namespace=topology.namespace
    )
    await topology.wait_for_costs(ALL_COSTS)

    weight_by_name = {weight["name"]: weight for weight in (await topology.read_raw())["spec"]["weights"]}
    assert weight_by_name["UserDefined"] == changed_weight
    assert weight_by_name["Second"] == second_weight


async def test_costs_without_new_results_become_stale_and_are_then_removed_but_never_zero(
    topology: MeasuredTopology, start_manager: StartManager
) -> None:
    await topology.create(costPolicy={"staleAfterS": 2, "expireAfterS": 8, "unitUs": 100, "percentile": "p50"})
    start_manager()
    await topology.measure_until_priced()
    costs = await topology.read_costs()
    assert costs["z1", "z3"] == 180, "p50 of 18 ms in units of 100 us"

    await topology.wait_for_condition("Measured", "False", "MeasurementsOld")
    assert await topology.read_costs() == costs
    await topology.wait_for_costs({})
    await topology.wait_for_condition("Measured", "False", "PairsAbsent")
    await topology.measure_until_priced()

    assert await topology.read_costs() == costs
    reasons = [event["reason"] for event in await topology.list_events()]
    assert "PairsAbsent" in reasons
    assert reasons.count("MeasurementsOld") == 1, "only transitions have events"


async def test_a_malformed_result_is_reported_with_its_node_and_removed(
    topology: MeasuredTopology, manager: Replica
) -> None:
    key = next(key for key in await topology.read_results() if key.startswith("netaware.v1."))
    origin = key.removeprefix("netaware.v1.").split("_")[0]

    async def is_reported() -> bool:
        await topology.patch_results({key: "{half"})
        return any(f"bad-json of {origin}" in event.get("note", "") for event in await topology.list_events())

    async def is_removed() -> bool:
        return key not in await topology.read_results()

    await poll_until(is_reported)
    await poll_until(is_removed)
    assert await topology.read_costs() == ALL_COSTS


async def test_refused_keys_too_large_and_deleted_results_set_the_condition_and_change_no_cost(
    topology: MeasuredTopology, manager: Replica
) -> None:
    await topology.patch_results({"x": "y" * 100_000, "netperf.p90.latency.milliseconds.origin.a": "0"})
    refused_keys = f'netaware_results_refused_keys{{reason="bad-key",topology="{topology.namespace}/nt-default"}}'

    async def is_reported() -> bool:
        status, _ = await topology.read_condition("InputValid")
        return status == "False" and (await manager.read_metrics()).get(refused_keys) == 1

    await poll_until(is_reported)
    assert await topology.read_costs() == ALL_COSTS

    # The API server stores a mebibyte; with the other keys beside it no more than this fits.
    await topology.patch_results({f"foreign-{i}": "x" * 100_000 for i in range(9)})
    await topology.wait_for_condition("InputValid", "False", "ResultsTooLarge")
    assert await topology.read_costs() == ALL_COSTS

    await topology.client.delete(CONFIGMAPS, "netperf-metrics", namespace=topology.namespace)
    # The manager creates the ConfigMap into which agents write.
    await topology.wait_for_condition("InputValid", "True", "AllRead")
    await topology.agents.measure()
    assert await topology.read_costs() == ALL_COSTS


async def test_bandwidth_of_placed_pods_is_allocated_and_released(
    topology: MeasuredTopology, manager: Replica, kwok: Program
) -> None:
    group = make_group({"a": "b", "b": ""})
    await topology.create_group_from_body(group)
    assert await topology.read_allocations() == {}

    await topology.create_bound_pod("a", topology.node_name("z1a"))
    await topology.create_bound_pod("b", topology.node_name("z3a"))
    # The dependency's 10M between the zones of its pods, and between their regions.
    allocations = {("z1", "z3"): "10000000", ("west", "east"): "10000000"}
    await wait_until_equal(topology.read_allocations, allocations)
    await topology.delete_pod("b")
    await wait_until_equal(topology.read_allocations, {})


async def test_topologies_of_other_namespaces_get_costs_under_the_shipped_rights(
    topology: MeasuredTopology, start_manager: StartManager, control_plane: ControlPlane
) -> None:
    """The role allows to read ConfigMaps of netaware's namespace only."""
    user, name = f"restricted-{topology.namespace}", f"nt-{topology.namespace}"
    await grant_shipped_rights(topology.client, topology.namespace, user)
    kubeconfig = control_plane.write_kubeconfig(user, user)
    await topology.create(name, "default", configmapName="mine")
    replica = start_manager(kubeconfig, topology={"namespaces": ["default"]})

    async def are_priced() -> bool:
        await topology.agents.measure()
        has_conditions = bool((await topology.read(name, "default")).status.conditions)
        return has_conditions and len(await topology.read_costs(name, "default")) == len(ALL_COSTS)

    try:
        await poll_until(are_priced)
    finally:
        await topology.client.delete(NETWORK_TOPOLOGIES, name, namespace="default")
    forbidden = [line for line in replica.log.read_text().splitlines() if "forbidden" in line]
    assert all("configmaps" in line and "default" in line for line in forbidden), forbidden
