"""The manager's probe plans follow nodes and zones, and are written again after a loss."""

from __future__ import annotations

import asyncio

import pytest

from kubekit.client import JSON_PATCH
from kubekit.wire import CONFIGMAPS, NODES, Object
from lab.polling import poll_until
from netperf.contract import ZONE_LABEL
from netperf.plans import plan_object_name
from tests.integration.conftest import install_crds, remove_crds
from tests.integration.controller.appgroups import make_group
from tests.integration.controller.harness import Replica, StartManager, read_plans, wait_until_equal
from tests.integration.controller.measured_topology import REGION_BY_ZONE, MeasuredTopology


async def test_plans_costs_and_results_follow_nodes_and_their_zones(
    topology: MeasuredTopology, manager: Replica
) -> None:
    await topology.patch_results({"mine": "1"})
    for suffix in ("z3a", "z3b"):
        await topology.patch_node(suffix, {"metadata": {"labels": {ZONE_LABEL: "z9"}}})
    await wait_until_equal(topology.read_planned_zones, {"z1", "z2", "z9"})
    topology.agents.set_latency("z1", "z9", 50)

    async def is_measured() -> bool:
        await topology.agents.measure()
        return (await topology.read_costs()).get(("z1", "z9")) == 50

    await poll_until(is_measured)
    assert all("z3" not in pair for pair in await topology.read_costs())

    for suffix in ("z3a", "z3b"):
        await topology.client.delete(NODES, topology.node_name(suffix))

    async def are_results_removed() -> bool:
        keys = await topology.read_results()
        return "mine" in keys and not any("-z3" in key for key in keys)

    await poll_until(are_results_removed)
    await topology.wait_for_costs({("z1", "z2"): 5, ("z2", "z1"): 5})


@pytest.mark.slow
async def test_deleted_and_malformed_plans_are_written_again(topology: MeasuredTopology, manager: Replica) -> None:
    plans = await read_plans(topology.client, topology.namespace)
    deleted, malformed, _ = (plan_object_name(plan.zone) for plan in plans)
    await topology.client.delete(CONFIGMAPS, deleted, namespace=topology.namespace)
    patch = [{"op": "replace", "path": "/data/plan.json", "value": "{"}]
    await topology.client.patch(
        CONFIGMAPS, malformed, patch, Object, patch_type=JSON_PATCH, namespace=topology.namespace
    )
    await wait_until_equal(topology.read_planned_zones, set(REGION_BY_ZONE))


@pytest.mark.slow
async def test_a_new_leader_reports_no_results_of_the_previous_plan_as_unplanned(
    topology: MeasuredTopology, manager: Replica, start_manager: StartManager
) -> None:
    await manager.stop()
    old_results = await topology.read_results()
    node_name = topology.node_name("z3b")
    assert any(node_name in value for value in old_results.values())
    await topology.patch_node("z3b", {"spec": {"unschedulable": True}})
    start_manager()

    async def is_unplanned() -> bool:
        return node_name not in await topology.read_planned_nodes()

    await poll_until(is_unplanned)
    for _ in range(20):
        await asyncio.sleep(0.2)
        # Agents that have not read the new plan yet go on with the one before.
        await topology.patch_results(old_results)
        assert await topology.read_condition("OutlierNodes") == ("False", "AllAgree")


@pytest.mark.slow
async def test_probes_are_planned_before_definitions_exist_which_are_used_once_they_do(
    topology: MeasuredTopology, start_manager: StartManager
) -> None:
    await remove_crds(topology.client)
    replica = start_manager()
    await poll_until(topology.agents.measure)
    assert await replica.is_leader()

    await install_crds(topology.client)
    await topology.create()
    await topology.create_group_from_body(make_group({"a": "b", "b": "a"}))
    await topology.measure_until_priced()
    await topology.wait_for_group_condition("SpecValid", "False")
