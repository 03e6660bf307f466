"""A manager that starts without our CustomResourceDefinitions measures, and uses them once they exist."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from controller.cluster.crds import APPGROUPS, NETWORK_TOPOLOGIES, NetworkTopology
from controller.topology.weights import zone_costs_of
from kubekit.client import Client
from kubekit.errors import ApiError
from kubekit.wire import CUSTOM_RESOURCE_DEFINITIONS, Object, Resource
from lab.polling import poll_until
from tests.integration.conftest import MakeNode, crd_bodies, remove_crds
from tests.integration.controller.appgroups import make_group, read_group
from tests.integration.controller.harness import SimulatedAgents, StartReplica, announce_agent
from tests.support.bodies import make_topology_body


async def create_once_defined(client: Client, namespace: str, resource: Resource, body: dict[str, Any]) -> None:
    """Create an object as soon as the API server serves its new definition."""

    async def is_created() -> bool:
        try:
            await client.create(resource, body, Object, namespace=namespace)
        except ApiError as error:
            if not error.is_not_found:
                raise
            return False
        return True

    await poll_until(is_created)


async def measure_and_count_costs(client: Client, namespace: str, agents: SimulatedAgents) -> int:
    await agents.measure()
    topology = await client.get(NETWORK_TOPOLOGIES, "nt-default", NetworkTopology, namespace=namespace)
    return len(zone_costs_of(topology.weight("NetperfCosts")))


@pytest.mark.slow
async def test_definitions_may_be_created_later_and_probe_plans_do_not_wait_for_them(
    client: Client, namespace: str, make_node: MakeNode, start: StartReplica
) -> None:
    await remove_crds(client)
    for zone in ("z1", "z2"):
        await make_node(f"{namespace}-{zone}", zone=zone)
        await announce_agent(client, f"{namespace}-{zone}")
    agents, replica = SimulatedAgents(client, namespace), start()

    async def has_both_costs() -> bool:
        return await measure_and_count_costs(client, namespace, agents) == 2

    async def is_ordered() -> bool:
        return bool((await read_group(client, namespace)).status.topology_order)

    try:
        await poll_until(agents.measure)
        assert await replica.is_leader()
        for body in crd_bodies().values():
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, body, Object)
        create = partial(create_once_defined, client, namespace)
        await create(NETWORK_TOPOLOGIES, make_topology_body())
        await create(APPGROUPS, make_group({"a": "b", "b": "a"}))
        await poll_until(has_both_costs)
        await poll_until(is_ordered)
    finally:
        await remove_crds(client)
